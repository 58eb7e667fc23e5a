// What an interpreter runs: slices of graphs, pending transfers and compiled steps. A slice is the part of a graph that some values need: what computes them, and what writes what they contain.
//
//     std::vector<NodeId> nodes = slice_for(graph, Effects::of(graph), {weight});
//
// A chosen value stands for its tensor at the end of the program: every write to its storage belongs to the slice. So
// does every write, through whatever alias, that comes before a node of the slice reads the storage. Random nodes write
// their generator. So those that draw before a random node of the slice belong to it, and the numbers are the same as
// in the whole run. Program order is kept. sg::output and sg::gradient are never part of a slice.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/calls/node_calls.h"
#include "core/calls/own_generators.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/analysis.h"

namespace shadowgraph {

// Returns another tensor object with the same storage, geometry and version counter.
at::Tensor shallow_copy(const at::Tensor& tensor);

// Draws from `given` wherever the default generator would be asked, operators without a generator argument included.
class GeneratorInPlaceOfDefault {
 public:
  explicit GeneratorInPlaceOfDefault(at::Generator given);
  ~GeneratorInPlaceOfDefault();
  GeneratorInPlaceOfDefault(const GeneratorInPlaceOfDefault&) = delete;
  GeneratorInPlaceOfDefault& operator=(const GeneratorInPlaceOfDefault&) = delete;

 private:
  at::Generator given_;
  at::Generator default_;
  at::Tensor before_;
};

// Says whether a node is a placeholder that a tensor is bound to: a parameter, a buffer or an input.
inline bool is_bound(const Graph& graph, NodeId node) {
  return graph.node(node).target.index <= target_of(Builtin::kInput).index;
}

// Returns nodes in program order; linear in the graph. Throws Error for a value that is not alive in the graph.
std::vector<NodeId> slice_for(const Graph& graph, const Effects& effects, std::span<const ValueId> values);

// Sends and receives of a run that have begun and are not over. Internal to core/replay.
//
// Two ranks may each post a receive before they send to the other. So a run must not wait at once for what stands before
// a send. It waits where its program did: at wait_tensor, which has what was received as its operand.
// Who did not wait so has used a future; then the first use waits. What is sent may be read, not written.

class PendingTransfers {
 public:
  static bool transfers(const c10::OperatorHandle& op);  // c10d::send, c10d::recv_, c10d::recv_any_source_

  bool empty() const { return under_way_.empty(); }
  // `tensors`: the first argument of the call; `result`: its Work.
  void add(const c10::OperatorHandle& op, const c10::IValue& tensors, c10::IValue result);
  // Waits for what a call with these arguments needs. `schema`: none of a function, which may write any.
  void wait_for(const c10::FunctionSchema* schema, std::span<const c10::IValue> arguments);
  void wait_for_all();
  void forget() { under_way_.clear(); }

 private:
  struct Transfer {
    c10::Storage storage;
    c10::IValue work;
    bool receives = false;
  };
  void wait_for(const at::Tensor& tensor, bool writes);
  std::vector<Transfer> under_way_;
};

// Compiles a graph once into the steps that Interpreter runs. Internal to core/replay and to code generation
// (passes/codegen/), which lays the same steps out as text.
//
// One TensorImpl can be several values: an in-place operator gives its self back as a new value. Such an operator may
// change the geometry: t_, resize_, set_, an `out=` that is resized. The old values must keep theirs if they are used
// later. So the step lists them under `preserved`, and they become aliases of their own before the operator runs.

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
    bool transfers = false;                        // core/replay/replay_program.h
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
