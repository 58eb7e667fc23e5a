// Compiled kernels for operators: in eager mode, for single calls, and for groups of nodes of a graph; custom kernels.
//
// Supported are pointwise operators with broadcasting and type promotion, reductions over any dimensions, and gathers
// (listed in docs/kernels.md); others are reported with a reason. Exactly rounded operations are bitwise equal to eager
// mode; transcendental ones are within the ulps given in docs/kernels.md; sums use another order.
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
  // Do not compile transcendental functions and sums, so that all results are bitwise equal to eager mode.
  bool exact = false;
};

// Measures in the first calls whether the kernel or the original implementation is faster, alternating between them and
// comparing the best times. Verdicts are stored with the kernel, by subject, size class and number of threads.
struct KernelMeasureOptions {
  bool enabled = true;             // false: always use the kernel
  int samples = 5;                 // calls of each
  std::function<int64_t()> clock;  // nanoseconds, for tests; empty: the steady clock
};

// A kernel for nodes of a graph. Sizes and strides are those of the launch, not part of the program.
struct LoweredKernel {
  KernelProgram program;
  std::vector<ValueId> inputs;   // first operands: read, or written in place (see program.operands)
  std::vector<ValueId> outputs;  // following operands: new tensors with the geometry of the values
  // Results that are identical to an input or output (in-place operators return self).
  struct SameTensor {
    ValueId result;
    ValueId tensor;
  };
  std::vector<SameTensor> same_tensor;
  std::vector<int64_t> sizes;  // see KernelFunction
  std::vector<int64_t> strides;
  std::vector<int64_t> scalars;
  // For a single node: the argument of each scalar, and the bits of argument values on which the program depends.
  std::vector<uint32_t> scalar_arguments;
  uint64_t decisive = 0;
  int64_t range = 0;     // number of rows or elements: `end` of KernelFunction
  int64_t row_work = 1;  // elements per unit of the range
  std::string name;      // directory in the cache
};

// `escapes(value)` returns whether the value is used outside of the nodes and must be stored. Returns std::nullopt,
// with the reason in `reason`, if the nodes cannot be compiled.
std::optional<LoweredKernel> lower_kernel(const Graph& graph, std::span<const NodeId> nodes,
                                          const KernelOptions& options, const std::function<bool(ValueId)>& escapes,
                                          std::string* reason);

class Trial;

// Kernels for individual operator calls. Thread-safe.
class OperatorKernels {
 public:
  enum class Outcome : uint8_t {
    kRan,
    kCompiling,
    kUnsupported,
    kOriginal,  // the original implementation is faster, or is to be measured
  };
  // A measured call of the original implementation, which starts when call() returns.
  class OriginalCall {
   public:
    OriginalCall() = default;
    void ended();  // call it on success

   private:
    friend class OperatorKernels;
    OriginalCall(Trial* trial, int64_t began) : trial_(trial), began_(began) {}
    Trial* trial_ = nullptr;  // owned by the OperatorKernels; nullptr: not measured
    int64_t began_ = 0;
  };

  explicit OperatorKernels(std::shared_ptr<KernelCache> cache, KernelOptions options = {},
                           KernelMeasureOptions measure = {});
  ~OperatorKernels();
  C10_DISABLE_COPY_AND_ASSIGN(OperatorKernels);

  // Runs the call on host memory, regardless of the tensors' device (a PrivateUse1 device may have host memory).
  // Changes the stack only if it ran. With `original`, the caller must run the original implementation if the outcome
  // is kOriginal, and report its end. Without it, nothing is measured, and the kernel is used if available.
  Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack, OriginalCall* original = nullptr);

  struct Report {
    std::string op;
    int64_t ran = 0;
    int64_t compiling = 0;
    int64_t unsupported = 0;
    int64_t original = 0;  // measured, or known to be faster
    std::string reason;    // of the most recent unsupported call
  };
  // Returns the reports of all operators that were called, by name.
  std::vector<Report> report() const;
  KernelCache& cache() const;

 private:
  class Table;
  std::unique_ptr<Table> table_;
};

// Compiled operators in eager mode: selected overloads run kernels that are compiled on demand for the dtypes and
// layouts they are called with. The rest of libtorch, including autograd and optimizers, calls them unchanged.
//
// Until its kernel is compiled, a call runs the original implementation (or waits, without
// KernelCacheOptions::background). See also KernelMeasureOptions.

struct CompileOperatorsOptions {
  KernelOptions kernels;
  KernelMeasureOptions measure;        // for calls on the CPU; on other devices the kernel is always used
  std::shared_ptr<KernelCache> cache;  // nullptr: KernelCache::shared()
};

// Active until it is destroyed. Several may exist, even for the same operator: the most recent one takes precedence. It
// may be destroyed while other threads call the operators; running calls finish with their kernel.
//
// The first registration for an operator in a process modifies libtorch's dispatch table, which must not happen
// concurrently with calls of that operator. The table entry remains afterwards and forwards calls if nothing is active.
class CompiledOperators {
 public:
  CompiledOperators(CompiledOperators&&) noexcept;
  CompiledOperators& operator=(CompiledOperators&&) noexcept;
  ~CompiledOperators();

  std::vector<OperatorKernels::Report> report() const;  // as OperatorKernels::report()
  KernelCache& cache() const;

 private:
  friend CompiledOperators compile_operators(const std::vector<std::string>&, c10::DispatchKey,
                                             const CompileOperatorsOptions&);
  class State;
  explicit CompiledOperators(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// `operators`: names with overload, "aten::add_.Tensor". `key`: dispatch key of the device supported by the cache's
// back end. A back end for the CPU also supports PrivateUse1 if that device uses host memory. Throws UnsupportedError
// for other keys and, naming the operator, for one that does not exist, cannot be compiled, or is composite.
CompiledOperators compile_operators(const std::vector<std::string>& operators, c10::DispatchKey key,
                                    const CompileOperatorsOptions& options = {});

// Returns all overloads that compile_operators() supports, sorted.
std::vector<std::string> compilable_operators();
// Returns all other operators of libtorch, with the reason that they are not supported.
std::map<std::string, std::string> operators_without_kernels();

// Custom kernels: replace libtorch's implementation of an operator in eager calls and replay.
//
// The kernel takes the call's arguments and returns its results, or std::nullopt to run the original implementation.
// Results with another number, dtype, size or device throw UnsupportedError.

struct KernelOverride {
  using Results = std::optional<std::vector<c10::IValue>>;
  std::string op;  // with overload: "aten::add_.Tensor"
  // Arguments by schema position. Must be thread-safe. Calls of the same operator inside run the original
  // implementation. An in-place operator returns the argument that it has written.
  std::function<Results(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments)> run;
};

// Loads the function `symbol` of a shared library, declared as in shadowgraph/kernels/c_kernel.h, for the lifetime of
// the process. Declines calls with tensor lists, strings, tensors that are not strided, or data-dependent results.
// Throws UnsupportedError if the library or symbol does not exist.
KernelOverride library_kernel(const std::string& op, const std::string& library, const std::string& symbol);

// Active until it is destroyed. The most recent one for an operator takes precedence, including compile_operators().
class ScopedKernelOverride {
 public:
  ScopedKernelOverride(ScopedKernelOverride&&) noexcept;
  ScopedKernelOverride& operator=(ScopedKernelOverride&&) noexcept;
  ~ScopedKernelOverride();

  struct Report {
    std::string op;
    int64_t ran = 0;
    int64_t declined = 0;   // declined calls
    int64_t unchecked = 0;  // calls run with data-dependent results, which cannot be checked
  };
  Report report() const;

 private:
  friend ScopedKernelOverride override_kernel(KernelOverride, c10::DispatchKey);
  class State;
  explicit ScopedKernelOverride(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// `key`: dispatch key of the device: CPU, CUDA, PrivateUse1. Throws UnsupportedError, naming the operator, if it does
// not exist, has no kernel for this device, or is composite.
ScopedKernelOverride override_kernel(KernelOverride kernel, c10::DispatchKey key);

// Replay of graphs with compiled kernels for groups of nodes.
//
// A group consists of nodes of one phase that lower_kernel compiles to one program and that can run at one position: no
// dependence by values, writes, random numbers or host reads leads out of the group and back. Other nodes remain calls.
// Results used only within a group are not stored; writes go to the same tensors as before.
//
// The first calls of a kernel are measured against its nodes, and the faster way is used from then on. The cache's
// manifest stores the result by size class and number of threads for later processes (KernelMeasureOptions). The nodes
// run individually if the tensors of a run differ from the graph's, if operators are being observed, or if tensors that
// a group writes overlap with others in a way not recorded in the graph.

struct GroupKernelsOptions {
  KernelOptions kernels;
  KernelMeasureOptions measure;
  int64_t min_nodes = 1;  // minimum size of a group; even a single node may be faster as a kernel
  int64_t max_nodes = 64;
};

class KernelGroups : public NodeGroups {
 public:
  enum class State : uint8_t {
    kCompiling,
    kMeasuring,  // compiled; measured against its nodes
    kKernel,     // uses the kernel
    kNodes,      // uses the nodes, which are faster
    kFailed,     // uses the nodes; `problem` has the reason
  };
  friend constexpr auto enum_names(State) {
    return names_in_order<State>("compiling", "measuring", "kernel", "nodes", "failed");
  }
  struct Report {
    std::vector<std::string> operators;
    State state = State::kCompiling;
    std::string problem;
    int64_t elements = 0;     // per call
    int64_t kernel_runs = 0;  // since construction
    int64_t node_runs = 0;
    int64_t kernel_ns = 0;  // best measured time; 0: unknown
    int64_t nodes_ns = 0;
  };
  // Returns one report for each of groups().
  virtual std::vector<Report> report() const = 0;
  // Returns the number of groups by state, and of ungrouped nodes by operator.
  virtual std::string summary() const = 0;
  // Blocks until all compilations have finished.
  virtual void wait() const = 0;
  virtual const LoweredKernel& lowered(uint32_t group) const = 0;
};

// `cache` nullptr: KernelCache::shared(). The graph that is run must have the same ids. About 25 us a node.
std::shared_ptr<KernelGroups> group_kernels(const Graph& graph, std::shared_ptr<KernelCache> cache = nullptr,
                                            const GroupKernelsOptions& options = {});

// Generates C++ with kernels: same as emit_cpp, with groups of nodes as the loops that the back end would compile.
//
// In addition to emit_cpp's files, generates NAME_kernels.cpp with the loops, without includes, and NAME_kernels.h,
// which calls them on tensors and is used by NAME.cpp. The code depends on libtorch only: no shadowgraph library, cache
// or compiler at run time. CMakeLists.txt compiles the loops for the CPU of the build machine (NAME_KERNEL_FLAGS).
// Groups measured as slower than their nodes remain nodes, as do groups that write in place and return further results.
//
// Tensors written by a call must not overlap with its other tensors, unless they do in the graph; otherwise the call
// throws std::invalid_argument. Replay and emit_cpp without kernels support such calls, as in eager mode.

// `groups` are of this graph. Throws UnsupportedError as emit_cpp, and for `autograd`, `device` and `only`.
GeneratedCode emit_cpp_with_kernels(const Graph& graph, const KernelGroups& groups, const CodegenOptions& options = {});

}  // namespace shadowgraph
