// Compiles a graph once into the steps that Interpreter runs. Internal to core/replay and to code generation
// (passes/codegen/), which lays the same steps out as text.
//
// One TensorImpl can be several values: an in-place operator gives its self back as a new value. Such an operator may
// change the geometry: t_, resize_, set_, an `out=` that is resized. The old values must keep theirs if they are used
// later. So the step lists them under `preserved`, and they become aliases of their own before the operator runs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/calls/call_templates.h"
#include "core/calls/own_generators.h"
#include "shadowgraph/replay.h"

namespace shadowgraph {

struct ReplayProgram {
  enum class StepKind : uint8_t { kOperator, kFunction, kPlaceholder, kConstant, kAlias, kOutput, kGradient };

  using Range = CallTemplates::Range;
  static constexpr uint32_t kNoGroup = 0xFFFFFFFFU;
  static constexpr uint32_t kNoGenerator = 0xFFFFFFFFU;

  struct Step {
    NodeId node;
    StepKind kind = StepKind::kOperator;
    bool grad_mode = false;                        // some kernels ask: oneDNN's LSTM keeps its workspace only then
    bool written = false;                          // placeholder or constant: the program writes its storage
    bool loose_out = false;                        // an `out=` that is not dense may be an operand as well
    bool transfers = false;                        // core/replay/pending_transfers.h
    const c10::OperatorHandle* op = nullptr;       // kOperator
    const RegisteredFunction* function = nullptr;  // kFunction
    CallTemplates::Call call;
    uint32_t group = kNoGroup;          // that begins here, into `groups`
    uint32_t generator = kNoGenerator;  // of the program's own, into `generators`
    uint16_t generator_position = 0;    // among the arguments
    Range results;                      // into result_codes
    Range released;                     // into values: last used here
    Range preserved;                    // into values
  };

  // Says what becomes of the results on the stack, flattened: a value's index, kNoValue, or kList | how many codes
  // follow.
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
  // Steps that InterpreterOptions::groups may run as one.
  struct StepGroup {
    uint32_t number;  // among NodeGroups::groups()
    uint32_t end;     // the step after its last
    Range released;   // into values, but for what the group alone sees
  };
  struct DeviceUse {
    c10::Device device;
    NodeId node;  // the first
  };

  std::vector<Step> steps;
  CallTemplates templates;
  std::vector<uint32_t> result_codes;
  std::vector<ValueId> values;
  std::vector<StepGroup> groups;
  std::vector<Placeholder> placeholders;  // without constants
  uint32_t all_placeholders = 0;          // of the graph, those outside the slice included
  std::vector<Problem> problems;          // by step
  std::vector<DeviceUse> devices;
  std::vector<OwnGenerator> generators;
  bool random = false;
  bool transfers = false;  // some step does
  bool grad_mode = false;  // some operator ran with gradients on

  std::span<const ValueId> released(const Step& step) const {
    return {values.data() + step.released.begin, step.released.size};
  }
  std::span<const ValueId> preserved(const Step& step) const {
    return {values.data() + step.preserved.begin, step.preserved.size};
  }
  const Problem* problem(uint32_t step) const;

  explicit ReplayProgram(const Graph& graph) : templates(graph) {}
  static std::unique_ptr<const ReplayProgram> compile(const Graph& graph, const InterpreterOptions& options);

  std::vector<std::optional<c10::OperatorHandle>> operators;         // by TargetId
  std::vector<std::shared_ptr<const RegisteredFunction>> functions;  // by TargetId
  std::vector<std::shared_ptr<const RegisteredFunction>> bodies;     // of calls that carry one
};

}  // namespace shadowgraph
