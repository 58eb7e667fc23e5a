// What Interpreter runs: a graph compiled once into steps, arguments as IValues that only lack their tensors.
// Internal to core/replay.
//
// One TensorImpl can be several values: an in-place operator gives its self back as a new value. Where such an operator
// changes the geometry (t_, resize_, set_, an `out=` that is resized) the old values must keep theirs if they are used
// later, so the step lists them under `preserved`, and they become aliases of their own before the operator runs.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/replay/functions.h"
#include "core/replay/interpreter.h"
#include "ir/effects.h"

namespace shadowgraph {

struct ReplayProgram {
  enum class StepKind : uint8_t { kOperator, kFunction, kPlaceholder, kConstant, kAlias, kOutput, kGradient };

  struct Range {
    uint32_t begin = 0;
    uint32_t size = 0;
  };

  // Fills position `argument` of the stack: with a value, or with list `list` if the value is invalid.
  struct Patch {
    uint32_t argument = 0;
    ValueId value;
    uint32_t list = 0;
  };
  // A list argument that holds tensors, made anew for each call.
  struct ListTemplate {
    c10::TypePtr element_type;
    std::vector<c10::IValue> elements;
    std::vector<Patch> patches;  // Patch::argument is the index into `elements`
  };

  struct Step {
    NodeId node;
    StepKind kind = StepKind::kOperator;
    bool grad_mode = false;                        // some kernels ask: oneDNN's LSTM keeps its workspace only then
    bool written = false;                          // placeholder or constant: the program writes its storage
    const c10::OperatorHandle* op = nullptr;       // kOperator
    const RegisteredFunction* function = nullptr;  // kFunction
    Range arguments;                               // into templates
    Range patches;
    Range results;    // into result_codes
    Range released;   // into values: last used here
    Range preserved;  // into values
  };

  // What becomes of the results on the stack, flattened: a value's index, kNoValue, or kList | how many codes follow.
  static constexpr uint32_t kNoValue = 0xFFFFFFFFU;
  static constexpr uint32_t kList = 0x80000000U;

  struct Placeholder {
    uint32_t step;
    uint32_t position;  // among all those of the graph
    const std::string* name;
  };
  // A node that cannot run in this process.
  struct Problem {
    uint32_t step;
    std::string what;
  };
  struct DeviceUse {
    c10::Device device;
    NodeId node;  // the first
  };

  std::vector<Step> steps;
  std::vector<c10::IValue> templates;
  std::vector<Patch> patches;
  std::vector<ListTemplate> lists;
  std::vector<uint32_t> result_codes;
  std::vector<ValueId> values;
  std::vector<Placeholder> placeholders;  // without constants
  uint32_t all_placeholders = 0;          // of the graph, those outside the slice included
  std::vector<Problem> problems;          // by step
  std::vector<DeviceUse> devices;
  bool random = false;

  std::span<const ValueId> released(const Step& step) const {
    return {values.data() + step.released.begin, step.released.size};
  }
  std::span<const ValueId> preserved(const Step& step) const {
    return {values.data() + step.preserved.begin, step.preserved.size};
  }
  const Problem* problem(uint32_t step) const;

  static std::unique_ptr<const ReplayProgram> compile(const Graph& graph, const InterpreterOptions& options);

  std::vector<std::optional<c10::OperatorHandle>> operators;         // by TargetId
  std::vector<std::shared_ptr<const RegisteredFunction>> functions;  // by TargetId
};

}  // namespace shadowgraph
