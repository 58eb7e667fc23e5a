// Places in libtorch's tables where kernels are asked before the one that was there. Internal to kernels/eager.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {

// Who is asked. Thread-safe.
class AskedKernel {
 public:
  virtual ~AskedKernel() = default;
  // Runs the call, or leaves the stack as it is. With kOriginal what would have run comes next, and `original` is told
  // when it ended. With any other outcome but kRan the next one is asked.
  virtual OperatorKernels::Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                        OperatorKernels::OriginalCall& original) = 0;
};

class Slot;

// While it lives, calls of some operators ask a kernel. It may go while they are under way; these end as they began.
class AskingSlots {
 public:
  AskingSlots(std::shared_ptr<AskedKernel> kernel, const std::vector<c10::OperatorHandle>& operators,
              c10::DispatchKey key);
  ~AskingSlots();
  AskingSlots(const AskingSlots&) = delete;
  AskingSlots& operator=(const AskingSlots&) = delete;

 private:
  const std::shared_ptr<AskedKernel> kernel_;
  std::vector<Slot*> slots_;
};

// "aten::add.Tensor"
std::string name_with_overload(const c10::OperatorName& name);
// Empty if there is none of that name.
std::optional<c10::OperatorHandle> operator_of_name(const std::string& name);
// libtorch splits such a call above the devices' kernels, where autograd is. A device's kernel would take its gradient
// away.
bool is_made_of_others(const c10::OperatorHandle& op);

}  // namespace shadowgraph
