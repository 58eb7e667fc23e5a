// The data that `check` saves and compares: totals of a program, broken down by origin.
//
// A baseline file is byte-identical on every machine: integers, sorted names, no measurements, no dates. Times are
// rounded to nanoseconds to hide floating-point noise.
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

// The origin of a storage or a kernel.
struct Maker {
  std::string kind;    // storage kind, "activation", or the kernel's phase, "backward"
  std::string module;  // path; "" outside of modules
  std::string op;      // operator; placeholders include their name: "sg::parameter fc.weight"
  friend auto operator<=>(const Maker&, const Maker&) = default;
};

struct Baseline {
  using Amounts = std::map<Maker, int64_t>;

  std::string program;  // description of the capture: "gpt2, train, sgd, f32, cuda:0"
  std::string spec;     // device of the time estimate
  int64_t peak = 0;     // peak bytes on the device
  int64_t time = 0;     // nanoseconds of the step
  int64_t saved = 0;    // bytes of activations saved for backward
  int64_t parameters = 0;
  int64_t flops = 0;
  Amounts at_peak;  // bytes
  Amounts kernels;  // nanoseconds

  static Baseline of(const Graph& graph, const DeviceSpec& spec);
  // Reads the output of to_json(). `name` is used in messages. Throws ParseError.
  static Baseline from_json(const nlohmann::json& json, const std::string& name);
  nlohmann::json to_json() const;
};

}  // namespace shadowgraph::cli
