// Reports what libtorch says that this machine's processor can do.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "shadowgraph/fake.h"

namespace shadowgraph {
namespace {

// Asks an operator without arguments what oneDNN supports here. Its kernel is called whatever mode this thread is in.
bool onednn_says(const char* name) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!op) return false;  // a libtorch without oneDNN
  torch::jit::Stack stack;
  op->callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  return stack.at(0).toBool();
}

}  // namespace

const CpuProfile& CpuProfile::this_machine() {
  static const CpuProfile machine{.mkldnn_bf16 = onednn_says("mkldnn::_is_mkldnn_bf16_supported"),
                                  .mkldnn_fp16 = onednn_says("mkldnn::_is_mkldnn_fp16_supported")};
  return machine;
}

}  // namespace shadowgraph
