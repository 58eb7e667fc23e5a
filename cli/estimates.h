// What a profile is told beside the graph: the device's figures, its links, what was measured on this machine.
#pragma once

#include <optional>

#include "cli/commands.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/time.h"

namespace shadowgraph::cli {

class Estimates {
 public:
  Estimates(const ProfileRequest& request, const Graph& graph);
  Estimates(const Estimates&) = delete;  // options() point into it
  Estimates& operator=(const Estimates&) = delete;
  const ProfileOptions& options() const { return options_; }

 private:
  void measure(const Graph& graph);

  ProfileOptions options_;
  MeasuredCalls measured_;
  std::optional<DeviceSpec> spec_;
  std::optional<Interconnect> links_;
};

}  // namespace shadowgraph::cli
