// From operators to kernels: what a node, a group of nodes or one call becomes, and how it is run.
//
//     OperatorKernels kernels(KernelCache::shared());
//     switch (kernels.call(op, stack)) {                   // as a boxed kernel gets them
//       case OperatorKernels::Outcome::kRan: return;       // arguments are off the stack, results on it
//       default: op.redispatchBoxed(keys, &stack);         // the stack is as it was
//     }
//
// What is made: pointwise operators with broadcasting and type promotion, reductions over any dimensions, gathers
// (docs/kernels.md lists them). All else is unsupported, with the reason. Exactly rounded operations are bit for bit
// those of eager mode; transcendental ones within the ulps that docs/kernels.md states, sums in another order.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/capture/replay.h"
#include "shadowgraph/codegen/codegen.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/kernels/program.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

struct KernelOptions {
  // Nodes with a transcendental function stay calls of libtorch, so that all results are eager's bit for bit; so do
  // sums.
  bool exact = false;
};

// The first calls find which way is faster, the kernel or what would have run. Each way is used in turn, each call
// once, and the best times count. Verdicts are kept with the kernel by what it stands for, size class and threads.
struct KernelMeasureOptions {
  bool enabled = true;             // false: the kernel, whatever it takes
  int samples = 5;                 // of each way
  std::function<int64_t()> clock;  // nanoseconds, for tests; empty: the steady clock
};

// Nodes of a graph as one kernel. Sizes and strides of the graph are those of the launch, not of the program.
struct KernelPlan {
  KernelProgram program;
  std::vector<ValueId> inputs;   // operands 0 ...: read, or written in place (program.operands says which)
  std::vector<ValueId> outputs;  // the operands that follow: fresh tensors with the values' geometry
  // Results that are the very tensor of an input or output (in-place operators return their self).
  struct SameTensor {
    ValueId result;
    ValueId tensor;
  };
  std::vector<SameTensor> same_tensor;
  std::vector<int64_t> sizes;  // see KernelFunction
  std::vector<int64_t> strides;
  std::vector<int64_t> scalars;
  // For one node: the argument that each scalar is, and bits of the arguments whose value decided what the program is.
  std::vector<uint32_t> scalar_arguments;
  uint64_t decisive = 0;
  int64_t range = 0;     // rows, or elements: KernelFunction's `end`
  int64_t row_work = 1;  // elements in one step of the range
  std::string name;      // of the cache's folder
};

// `escapes(value)`: the value is needed after the nodes, and is stored. Returns an empty optional and why not in
// `reason`.
std::optional<KernelPlan> plan_kernel(const Graph& graph, std::span<const NodeId> nodes, const KernelOptions& options,
                                      const std::function<bool(ValueId)>& escapes, std::string* reason);

class Trial;

// Operators one call at a time. Thread-safe.
class OperatorKernels {
 public:
  enum class Outcome : uint8_t {
    kRan,
    kCompiling,
    kUnsupported,
    kOriginal,  // what would have run is faster, or is to be measured
  };
  // A call of what would have run, which begins when call() has returned.
  class OriginalCall {
   public:
    OriginalCall() = default;
    void ended();  // without an error

   private:
    friend class OperatorKernels;
    OriginalCall(Trial* trial, int64_t began) : trial_(trial), began_(began) {}
    Trial* trial_ = nullptr;  // of that OperatorKernels; nullptr: nobody measures
    int64_t began_ = 0;
  };

  explicit OperatorKernels(std::shared_ptr<KernelCache> cache, KernelOptions options = {},
                           KernelMeasureOptions measure = {});
  ~OperatorKernels();
  OperatorKernels(const OperatorKernels&) = delete;
  OperatorKernels& operator=(const OperatorKernels&) = delete;

  // Runs the call on CPU memory, whatever device the tensors say (a PrivateUse1 device may have host memory). The stack
  // is changed only if it ran. With `original`, the caller runs what would have run if the outcome is kOriginal, and
  // tells when it ended. Without, nothing is measured, and a kernel that is there runs.
  Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack, OriginalCall* original = nullptr);

  struct Report {
    std::string op;
    int64_t ran = 0;
    int64_t compiling = 0;
    int64_t unsupported = 0;
    int64_t original = 0;  // measured, or known to be faster
    std::string reason;    // of the latest that was not supported
  };
  // By name.
  std::vector<Report> report() const;
  KernelCache& cache() const;

 private:
  class Table;
  std::unique_ptr<Table> table_;
};

// Eager mode through kernels made on demand: chosen overloads of chosen devices run kernels that are compiled for the
// dtypes and layouts that they meet. The rest of libtorch, autograd and optimizers included, goes on as before and
// calls them.
//
//     const CompiledOperators compiled = compile_operators({"aten::add.Tensor", "aten::gelu"}, c10::DispatchKey::CPU);
//     loss.backward();                       // gelu runs the kernel, once it is there
//     compiled.report();                     // calls that did, and why others did not
//
// A call whose kernel is there runs it. Without one the call runs what it would have run, while the kernel is compiled
// beside it (or waits for it: KernelCacheOptions::background = false). The first calls go both ways in turn
// (KernelMeasureOptions), and a call that is faster without a kernel runs as it would have.

struct CompileOperatorsOptions {
  KernelOptions kernels;
  KernelMeasureOptions measure;        // of calls on CPU; on another device a kernel that is there runs
  std::shared_ptr<KernelCache> cache;  // nullptr: KernelCache::shared()
};

// Serves calls until it is destroyed; then all calls run as before. Several may be alive, also for one operator: the
// later one is asked first. It may go while other threads call these operators; a call that is under way ends with its
// kernel.
//
// Asking about an operator for the first time in a process changes libtorch's table. That table is not made for calls
// of the operator from other threads meanwhile. The entry stays and passes calls on when nobody is left to be asked.
class CompiledOperators {
 public:
  CompiledOperators(CompiledOperators&&) noexcept;
  CompiledOperators& operator=(CompiledOperators&&) noexcept;
  ~CompiledOperators();

  // By name; only operators that were called.
  std::vector<OperatorKernels::Report> report() const;
  KernelCache& cache() const;

 private:
  friend CompiledOperators compile_operators(const std::vector<std::string>&, c10::DispatchKey,
                                             const CompileOperatorsOptions&);
  class State;
  explicit CompiledOperators(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// `operators`: names with overload, "aten::add_.Tensor". `key`: that of the device for which the cache's back end makes
// kernels. One for the CPU serves PrivateUse1, too, as long as that device's memory is the host's. Throws
// UnsupportedError for other keys. Throws it, naming the operator, for one that does not exist or that no
// kernel is ever made of. It also throws for one that libtorch makes of others (name those).
CompiledOperators compile_operators(const std::vector<std::string>& operators, c10::DispatchKey key,
                                    const CompileOperatorsOptions& options = {});

// The overloads that kernels are made of, by name: all that compile_operators() takes.
std::vector<std::string> compilable_operators();
// All other operators of libtorch, by name, each with the reason why no kernel is made of it.
std::map<std::string, std::string> operators_without_kernels();

// A kernel of one's own for an operator: eager calls and replays run it in place of what libtorch has.
//
//     const UsedKernel mine = use_kernel({.op = "aten::cumsum", .run = my_cumsum}, c10::DispatchKey::CPU);
//     x.cumsum(0);                                           // my_cumsum ran, below autograd
//     ReplayExecutor(graph).run(bindings);                   // in graphs, too; groups of compiled kernels come before it
//     mine.report();                                         // calls that it ran, and that it did not take
//
// The kernel gets the call's arguments and gives its results, or nothing if it does not take this call. Then the call
// runs as it would have. Results are held against what the operator gives: their number, dtype, sizes and device. What
// is wrong there is an UnsupportedError in the call, not a wrong number later.

struct OwnKernel {
  using Results = std::optional<std::vector<c10::IValue>>;
  std::string op;  // with overload: "aten::add_.Tensor"
  // Arguments by schema position. Called from several threads. What it calls of this operator itself runs without it.
  // For an in-place operator the result is the argument that it wrote.
  std::function<Results(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments)> run;
};

// The function `symbol` of a shared library, as shadowgraph/kernels/c_kernel.h declares it. It stays loaded. It takes
// no call with lists of tensors or texts, with tensors that are not strided, or whose results only data decides. Throws
// UnsupportedError for a library or symbol that is not there.
OwnKernel library_kernel(const std::string& op, const std::string& library, const std::string& symbol);

// Serves calls until it is destroyed. The latest for an operator is asked first; compile_operators counts as one.
class UsedKernel {
 public:
  UsedKernel(UsedKernel&&) noexcept;
  UsedKernel& operator=(UsedKernel&&) noexcept;
  ~UsedKernel();

  struct Report {
    std::string op;
    int64_t ran = 0;
    int64_t passed_on = 0;  // calls that it did not take
    int64_t unchecked = 0;  // of those that ran: only data decides what the operator gives
  };
  Report report() const;

 private:
  friend UsedKernel use_kernel(OwnKernel, c10::DispatchKey);
  class State;
  explicit UsedKernel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// `key`: of the device whose tensors it gets: CPU, CUDA, PrivateUse1. Throws UnsupportedError, naming the operator, for
// one that does not exist, that has no kernel of this device, or that libtorch makes of others.
UsedKernel use_kernel(OwnKernel kernel, c10::DispatchKey key);

// Graphs replayed with kernels made of their nodes.
//
//     const auto groups = group_kernels(graph);             // finds groups; kernels are compiled in the background
//     ReplayExecutor executor(std::move(graph), {.groups = groups});
//     executor.run(bindings);                                // nodes run one by one until their kernel is there
//     groups->summary();                                     // what became of them
//
// A group is nodes of one phase that plan_kernel makes one program of, and that can run at one point. No way leads out
// of it and back in, by values, writes, draws or what the host reads. What no kernel does stays a call. Within a group
// results that nobody outside reads are never stored, and writes reach the tensors that they reached.
//
// The first calls of a kernel are made both ways in turn, and the faster way is kept. The cache's manifest has it by
// size class and threads, so that the next process knows (KernelMeasureOptions). Nodes run as they would have where a
// run's tensors are not as the graph says, and where somebody watches operators. So they do where tensors that a group
// writes overlap others unknown to the graph.

struct GroupKernelsOptions {
  KernelOptions kernels;
  KernelMeasureOptions measure;
  int64_t min_nodes = 1;  // of the smallest group; one node alone may be faster as a kernel, too
  int64_t max_nodes = 64;
};

class KernelGroups : public NodeGroups {
 public:
  enum class State : uint8_t {
    kCompiling,
    kMeasuring,  // ready, and used in turn with its nodes
    kKernel,     // its kernel runs
    kNodes,      // its nodes run: they are faster
    kFailed,     // its nodes run: `problem` says why there is no kernel
  };
  friend constexpr auto enum_names(State) {
    return names_in_order<State>("compiling", "measuring", "kernel", "nodes", "failed");
  }
  struct Report {
    std::vector<std::string> operators;
    State state = State::kCompiling;
    std::string problem;
    int64_t elements = 0;     // of one call
    int64_t kernel_runs = 0;  // since it was made
    int64_t node_runs = 0;
    int64_t kernel_ns = 0;  // the best that was measured; 0: not known
    int64_t nodes_ns = 0;
  };
  // One for each of groups().
  virtual std::vector<Report> report() const = 0;
  // Groups by state, and nodes that stayed calls by operator.
  virtual std::string summary() const = 0;
  // Until no kernel is under way.
  virtual void wait() const = 0;
  virtual const KernelPlan& plan(uint32_t group) const = 0;
};

// `cache` nullptr: KernelCache::shared(). The graph is looked at here only; its ids must mean the same where it is run.
// About 25 us a node.
std::shared_ptr<KernelGroups> group_kernels(const Graph& graph, std::shared_ptr<KernelCache> cache = nullptr,
                                            const GroupKernelsOptions& options = {});

// A graph as C++ with kernels in it: emit_cpp, with groups of nodes written as the loops that a back end would compile.
//
//     const auto groups = group_kernels(graph);                 // perhaps measured by some runs of an Interpreter
//     write_code(emit_cpp_with_kernels(graph, *groups, {.name = "gpt2_step"}), "out");
//
// Beside emit_cpp's files come NAME_kernels.cpp, loops that include nothing, and NAME_kernels.h, which calls them on
// tensors; NAME.cpp calls that. All of it needs libtorch alone: no library of shadowgraph, no cache, no compiler at run
// time. CMakeLists.txt compiles the loops for the processor that builds them (NAME_KERNEL_FLAGS), so build where it
// runs. Groups that were measured and are slower than their nodes stay nodes. So do those that write in place and give
// more results besides. All others are kernels.
//
// Tensors that one call writes must not overlap others that it is given, unless they do in the graph: such a call
// throws std::invalid_argument. Plain replay and emit_cpp without kernels run it as eager does.

// `groups` were made for this graph. Throws UnsupportedError as emit_cpp does, and for `autograd`, `device` and `only`,
// which kernels have not.
GeneratedCode emit_cpp_with_kernels(const Graph& graph, const KernelGroups& groups, const CodegenOptions& options = {});

}  // namespace shadowgraph
