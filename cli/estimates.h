// What a profile is told beside the graph: the device's figures, its links, what was measured on this machine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/source.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph::cli {

struct EstimateRequest {
  std::string spec;                   // name of a device or file with its figures; empty: by the graph's device
  std::string interconnect;           // name or file of links between processes; empty: what is usual around `spec`
  std::string mesh;                   // "dp=8,tp=4"; empty: none
  std::string allocator;              // as PYTORCH_ALLOC_CONF takes it
  std::optional<MemoryLimit> memory;  // of the device; if it names one, times are for that, too
  bool measure = false;               // calls on the CPU that are not known yet
};

class Estimates {
 public:
  Estimates(const EstimateRequest& request, const Graph& graph);
  Estimates(const Estimates&) = delete;  // options() point into it
  Estimates& operator=(const Estimates&) = delete;
  const ProfileOptions& options() const { return options_; }

 private:
  void measure(const Graph& graph);

  ProfileOptions options_;
  MeasuredCalls measured_;
  Machine machine_;
};

// A graph, its profile, and what the profile was told. It stays where it is, since the profile points at the others.
struct Profiled {
  LoadedGraph loaded;
  std::unique_ptr<Estimates> estimates;
  Profile costs;
  std::string title;  // what a reader knows it by: the model, or the file that it was read from
};

// Loads, verifies and profiles a source.
std::unique_ptr<Profiled> load_and_profile(const CaptureRequest& capture, const EstimateRequest& request);
// Writes the page and says on stderr how large it is.
void write_page(const std::string& path, const Profiled& profiled, const HtmlOptions& options);

}  // namespace shadowgraph::cli
