// Finds the operators that a trace's calls are of, and makes their arguments again on fake tensors. A trace names
// operators without their overloads, tensors by sizes, and numbers as text.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiler/device_trace/trace_events.h"

namespace shadowgraph {

class CallResolver {
 public:
  CallResolver();
  // The overload whose arguments the inputs fit. Empty if this process has no such operator.
  std::optional<c10::OperatorHandle> find(const TraceOp& op);
  // Makes the arguments of a call; tensors are made on `device`, so call it in a fake mode. `list_dtype` is that of lists
  // of tensors, which traces do not have. Throws Error for an argument that the trace does not tell.
  static torch::jit::Stack arguments(const c10::OperatorHandle& op, const TraceOp& call, c10::Device device,
                                     c10::ScalarType list_dtype);

 private:
  std::map<std::string, std::vector<c10::OperatorName>> overloads_;
  std::map<std::string, std::optional<c10::OperatorHandle>> found_;  // by name and types of inputs
};

}  // namespace shadowgraph
