// The figures of the device that a graph was captured for, where none are given.
#pragma once

#include <optional>

#include "profiler/program_costs.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {

// Throws Error where nothing is known of such devices.
inline DeviceSpec given_or_usual_spec(const DeviceSpec* given, const Graph& graph) {
  if (given != nullptr) return *given;
  const std::optional<DeviceSpec> usual = DeviceSpec::find("", main_device(graph, std::nullopt).type());
  if (!usual) throw Error("nothing is known of the time of this graph's device; give the figures of one");
  return *usual;
}

}  // namespace shadowgraph
