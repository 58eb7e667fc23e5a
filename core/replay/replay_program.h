// The compiled form of a graph that an interpreter runs, its slices, and pending transfers.
//
// A slice is the part of a graph that some values need: nodes that compute them, and nodes that write their contents.
//
//     std::vector<NodeId> nodes = slice_for(graph, Effects::of(graph), {weight});
//
// A requested value means its tensor at the end of the program, so all writes to its storage are included, as are
// writes through any alias before a node of the slice reads the storage. Random nodes write their generator, so earlier
// draws from the same generator are included and the random numbers match those of a full run. Program order is
// preserved. sg::output and sg::gradient are never part of a slice.
#pragma once

#include <c10/core/Storage.h>

#include "core/calls/node_calls.h"
#include "core/calls/program_generators.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/analysis.h"

namespace shadowgraph {

// Returns another tensor object with the same storage, geometry and version counter.
at::Tensor shallow_copy(const at::Tensor& tensor);

// Replaces the default generator by `given`, even for operators without a generator argument, for its lifetime.
class DefaultGeneratorOverride {
 public:
  explicit DefaultGeneratorOverride(at::Generator given);
  ~DefaultGeneratorOverride();
  C10_DISABLE_COPY_AND_ASSIGN(DefaultGeneratorOverride);

 private:
  at::Generator given_, default_;
  at::Tensor before_;
};

// Returns whether a node is a placeholder that a tensor is bound to: a parameter, buffer or input.
inline bool is_bound(const Graph& graph, NodeId node) {
  return graph.node(node).target.index <= target_of(Builtin::kInput).index;
}

// Returns nodes in program order; linear in the graph. Throws Error for a value that is not in the graph.
std::vector<NodeId> slice_for(const Graph& graph, const Effects& effects, std::span<const ValueId> values);

// Sends and receives of a run that have not completed.
//
// Two ranks may both post a receive before they send to each other, so a run must not wait right after the call. It
// waits where the program did: at wait_tensor on the received tensor or, if the program used a future, at the first
// use. Tensors being sent may be read but not written.
class PendingTransfers {
 public:
  static bool transfers(const c10::OperatorHandle& op);  // c10d::send, c10d::recv_, c10d::recv_any_source_

  bool empty() const { return under_way_.empty(); }
  // `tensors`: the first argument of the call; `result`: its Work.
  void add(const c10::OperatorHandle& op, const c10::IValue& tensors, c10::IValue result);
  // Waits for the transfers that a call with these arguments depends on. `schema`: nullptr for a function, which may
  // write any argument.
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

// A graph compiled into the steps that Interpreter runs. Also used by code generation (codegen/), which prints the same
// steps as source code.
//
// One TensorImpl can represent several values: an in-place operator returns its `self` as a new value. If such an
// operator changes the geometry (t_, resize_, set_, a resized `out=`), earlier values that are used later must keep
// theirs. They are listed in the step's `preserved` and copied shallowly before the operator runs.
struct ReplayProgram {
  enum class StepKind : uint8_t { kOperator, kFunction, kPlaceholder, kConstant, kAlias, kOutput, kGradient };

  using Range = CallTemplates::Range;
  static constexpr uint32_t kNoGroup = 0xFFFFFFFFU, kNoGenerator = 0xFFFFFFFFU;

  struct Step {
    NodeId node;
    StepKind kind = StepKind::kOperator;
    bool grad_mode = false;                        // affects some kernels: oneDNN's LSTM keeps its workspace
    bool written = false;                          // placeholder or constant: the program writes its storage
    bool loose_out = false;                        // an `out=` that is not dense may also be an operand
    bool transfers = false;                        // a send or receive (PendingTransfers)
    const c10::OperatorHandle* op = nullptr;       // kOperator
    const RegisteredFunction* function = nullptr;  // kFunction
    CallTemplates::Call call;
    uint32_t group = kNoGroup;          // the group that begins here, into `groups`
    uint32_t generator = kNoGenerator;  // one of the program's generators, into `generators`
    uint16_t generator_position = 0;    // among the arguments
    Range results;                      // into result_codes
    Range released;                     // into values: last used here
    Range preserved;                    // into values
  };

  // Where results on the stack go, flattened: a value's index, kNoValue, or kList | number of codes that follow.
  static constexpr uint32_t kNoValue = 0xFFFFFFFFU, kList = 0x80000000U;

  struct Placeholder {
    uint32_t step;
    uint32_t position;  // among all placeholders of the graph
    const std::string* name;
  };
  // The reason why a node cannot run in this process.
  struct Problem {
    uint32_t step;
    std::string what;
  };
  // Steps that InterpreterOptions::groups may run as one kernel.
  struct StepGroup {
    uint32_t number;  // into NodeGroups::groups()
    uint32_t end;     // one past its last step
    Range released;   // into values, except values internal to the group
  };
  struct DeviceUse {
    c10::Device device;
    NodeId node;  // the first one on it
  };

  std::vector<Step> steps;
  CallTemplates templates;
  std::vector<uint32_t> result_codes;
  std::vector<ValueId> values;
  std::vector<StepGroup> groups;
  std::vector<Placeholder> placeholders;  // excluding constants
  uint32_t all_placeholders = 0;          // of the graph, including those outside the slice
  std::vector<Problem> problems;          // by step
  std::vector<DeviceUse> devices;
  std::vector<ProgramGenerator> generators;
  bool random = false;
  bool transfers = false;  // some step is a send or receive
  bool grad_mode = false;  // some operator ran with gradients enabled

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
  std::vector<std::shared_ptr<const RegisteredFunction>> bodies;     // of calls with an embedded body
};

}  // namespace shadowgraph
