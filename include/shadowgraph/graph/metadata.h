// What a graph says of itself at its head: which model it is, how it was run, and what its maker wanted noted.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class ProgramMode : uint8_t { kInfer, kTrain };
// Which training step was recorded: the first one makes the optimizer's state, the steady one finds it.
enum class TrainingStep : uint8_t { kFirst, kSteady };

std::string_view to_string(ProgramMode mode);   // "infer", "train"
std::string_view to_string(TrainingStep step);  // "first", "steady"

// Printed as `meta "key" = "text"`, a line each in the order of keys; the fields under their own names.
struct Metadata {
  std::optional<std::string> model;
  std::optional<ProgramMode> mode;
  std::optional<TrainingStep> step;
  std::optional<c10::Device> device;     // where the program was meant to run
  std::optional<c10::ScalarType> dtype;  // of parameters
  std::optional<std::string> optimizer;  // "adamw"
  std::optional<int64_t> batch;
  std::optional<int64_t> seq;
  std::map<std::string, std::string> other;  // anything else; a field's name as a key here is no line of its own

  // All of it, sorted by key.
  std::vector<std::pair<std::string, std::string>> lines() const;
  // The text of one line. Throws Error if the key is a field's and the text says no such thing: a device "gpu".
  void set(const std::string& key, std::string text);
  // Whether there is a line with this key.
  bool has(const std::string& key) const;

  friend bool operator==(const Metadata&, const Metadata&) = default;
};

}  // namespace shadowgraph
