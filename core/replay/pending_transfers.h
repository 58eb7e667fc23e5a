// Sends and receives of a run that have begun and are not over. Internal to core/replay.
//
// Two ranks may each post a receive before they send to the other. So a run must not wait at once for what stands before
// a send. It waits where its program did: at wait_tensor, which has what was received as its operand.
// Who did not wait so has used a future; then the first use waits. What is sent may be read, not written.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <span>
#include <vector>

namespace shadowgraph {

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

}  // namespace shadowgraph
