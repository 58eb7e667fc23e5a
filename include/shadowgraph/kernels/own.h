// A kernel of one's own for an operator: eager calls and replays run it in place of what libtorch has.
//
//     const UsedKernel mine = use_kernel({.op = "aten::cumsum", .run = my_cumsum}, c10::DispatchKey::CPU);
//     x.cumsum(0);                                           // my_cumsum ran, below autograd
//     ReplayExecutor(graph).run(bindings);                   // in graphs, too; groups of compiled kernels come before it
//     mine.report();                                         // calls that it ran, and that it did not take
//
// The kernel gets the call's arguments and gives its results, or nothing if it does not take this call. Then the call
// runs as it would have. Results are held against what the operator gives: their number, dtype, sizes and device. What
// is wrong there is a KernelError in the call, not a wrong number later.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKey.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/kernels/program.h"

namespace SHADOWGRAPH_API shadowgraph {

struct OwnKernel {
  using Results = std::optional<std::vector<c10::IValue>>;
  std::string op;  // with overload: "aten::add_.Tensor"
  // Arguments by schema position. Called from several threads. What it calls of this operator itself runs without it.
  // For an in-place operator the result is the argument that it wrote.
  std::function<Results(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments)> run;
};

// The function `symbol` of a shared library, as shadowgraph/kernels/c_kernel.h declares it. It stays loaded. It takes
// no call with lists of tensors or texts, with tensors that are not strided, or whose results only data decides. Throws
// KernelError for a library or symbol that is not there.
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

// `key`: of the device whose tensors it gets: CPU, CUDA, PrivateUse1. Throws KernelError, naming the operator, for one
// that does not exist, that has no kernel of this device, or that libtorch makes of others.
UsedKernel use_kernel(OwnKernel kernel, c10::DispatchKey key);

}  // namespace shadowgraph
