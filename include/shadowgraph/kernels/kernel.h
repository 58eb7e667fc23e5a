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
#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph.h"
#include "shadowgraph/kernels/cache.h"

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

// `escapes(value)`: the value is needed after the nodes, and is stored. Returns an empty optional and why not in `reason`.
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

}  // namespace shadowgraph
