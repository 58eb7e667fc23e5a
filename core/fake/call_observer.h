// Lets others see the calls that the fake tensor fallback carries out: the recorder of core/capture/ does.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/fake/call_argument.h"

namespace shadowgraph {

struct OperatorInfo;
class FakeTensorImpl;
enum class SizeRead { kRank, kSize, kSizes };

// Arguments are those of the schema, in its order, and results its returns. Calls come on the thread that runs the
// program, never re-entrantly: what a kernel calls belongs to the outer call and is not shown.
class CallObserver {
 public:
  virtual ~CallObserver() = default;

  // A call is about to run; its real tensors have been replaced by fakes already. Throwing refuses the call.
  virtual void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) = 0;
  // It has run.
  virtual void end_call(const OperatorInfo& info, std::span<const CallArgument> results) = 0;
  // It threw.
  virtual void abandon_call(const OperatorInfo& info) noexcept = 0;

  // A composite operator was called (and left, also by an exception); the calls in between are its decomposition.
  virtual void enter_composite(const OperatorInfo& info, std::span<const CallArgument> arguments) = 0;
  virtual void leave_composite() noexcept = 0;

  // With ModeState::reads_data: carries out a call whose results depend on the contents of fakes. Nothing of it is
  // shown otherwise. Returns true if it did, with the results on the stack in place of the arguments.
  virtual bool compute(const OperatorInfo& info, torch::jit::Stack& stack) { return false; }

  // Returns where in its source the program is, "train.py:12"; "" if nobody knows.
  virtual std::string location() { return ""; }

  // An UnfakeGuard begins and ends on the observed thread.
  virtual void mode_suspended() {}
  virtual void mode_resumed() noexcept {}

  // The host wrote `value` into a fake tensor whose contents are known, through a data pointer: at::tensor({...}), an
  // accessor. `value` is a real tensor that the observer keeps. It is shown before the first call that can see it.
  virtual void host_wrote(const at::Tensor& fake, const at::Tensor& value) {}

  // The program is about to give the storage of a fake tensor another size: untyped_storage().resize_(bytes).
  virtual void storage_resized(c10::StorageImpl& storage, size_t bytes) {}

  // The program asked for a size outside any kernel.
  virtual void size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept {}
};

}  // namespace shadowgraph
