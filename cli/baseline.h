// What `check` keeps of a program and compares: totals, and by whom they are made.
//
// A baseline is the same bytes on every machine: whole numbers, sorted names, nothing measured, no dates. Seconds are
// rounded to nanoseconds, so that the last bits of floating point do not show.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph::cli {

// Who made a storage, or ran a kernel.
struct Maker {
  std::string kind;    // of storages: "activation"; of kernels the phase: "backward"
  std::string module;  // path; "" outside all modules
  std::string op;      // operator; of placeholders with their name: "sg::parameter fc.weight"
  friend auto operator<=>(const Maker&, const Maker&) = default;
};

struct Baseline {
  using Amounts = std::map<Maker, int64_t>;

  std::string program;  // what was captured, in words: "gpt2, train, sgd, f32, cuda:0"
  std::string spec;     // device that the time is of
  int64_t peak = 0;     // most bytes alive at once on the device
  int64_t time = 0;     // nanoseconds of the step
  int64_t saved = 0;    // bytes of activations kept for backward
  int64_t parameters = 0;
  int64_t flops = 0;
  Amounts at_peak;  // bytes
  Amounts kernels;  // nanoseconds

  static Baseline of(const Graph& graph, const DeviceSpec& spec);
  // A file that to_json wrote. Throws ParseError.
  static Baseline from_json(const nlohmann::json& json, const std::string& name);
  nlohmann::json to_json() const;
};

}  // namespace shadowgraph::cli
