// Eager mode through kernels made on demand: chosen overloads of chosen devices run kernels that are compiled for the
// dtypes and layouts that they meet. The rest of libtorch, autograd and optimizers included, goes on as before and calls them.
//
//     const CompiledOperators compiled = compile_operators({"aten::add.Tensor", "aten::gelu"}, c10::DispatchKey::CPU);
//     loss.backward();                       // gelu runs the kernel, once it is there
//     compiled.report();                     // calls that did, and why others did not
//
// A call whose kernel is there runs it. Without one the call runs what it would have run, while the kernel is compiled
// beside it (or waits for it: KernelCacheOptions::background = false). The first calls go both ways in turn
// (KernelMeasureOptions), and a call that is faster without a kernel runs as it would have.
#pragma once

#include <c10/core/DispatchKey.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shadowgraph/kernels/kernel.h"

namespace SHADOWGRAPH_API shadowgraph {

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
// kernels. One for the CPU serves PrivateUse1, too, as long as that device's memory is the host's. Throws KernelError
// for other keys. Throws it, naming the operator, for one that does not exist or that no
// kernel is ever made of. It also throws for one that libtorch makes of others (name those).
CompiledOperators compile_operators(const std::vector<std::string>& operators, c10::DispatchKey key,
                                    const CompileOperatorsOptions& options = {});

// The overloads that kernels are made of, by name: all that compile_operators() takes.
std::vector<std::string> compilable_operators();
// All other operators of libtorch, by name, each with the reason why no kernel is made of it.
std::map<std::string, std::string> operators_without_kernels();

}  // namespace shadowgraph
