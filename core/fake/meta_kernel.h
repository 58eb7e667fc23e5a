// Finds the C++ kernel that libtorch has for an operator on Meta tensors. Internal to core/.
//
// `import torch` registers some 1,350 Python functions for aten operators on the same dispatch key, in front of the C++
// kernels (torch/_meta_registrations.py, torch/_decomp). Their results are the same, but a redispatch to Meta would run
// Python on every call, tens of microseconds each. Kernels that a later registration hides stay in the dispatcher's
// entry of the operator, where they are looked up here, once an operator. With SHADOWGRAPH_META_KERNELS=python in the
// environment those of Python are called all the same: tests/package/test_meta_kernels.py compares the graphs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace shadowgraph {

// Returns what a redispatch to Meta would call if nothing had been registered from Python. That is the kernel for Meta
// or, without one, for a composite key; nullptr if there is none in C++. Kernels of libtorch stay registered for the
// life of the process.
const c10::KernelFunction* cpp_meta_kernel(const c10::OperatorHandle& op);
// Says whether a kernel is registered for Meta itself. For libtorch's own operators it must be in C++. For others any
// will do, since shape functions of custom operators come that way (torch.library.register_fake).
bool has_meta_kernel_of_its_own(const c10::OperatorHandle& op);

// Calls it: OnMeta<at::_ops::clone>::call(x, format).
template <class Operator, class Signature = typename Operator::schema>
struct OnMeta;
template <class Operator, class Return, class... Args>
struct OnMeta<Operator, Return(Args...)> {
  static Return call(Args... args) {
    constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::Meta);
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name);
    static const c10::KernelFunction* const kernel = cpp_meta_kernel(op);
    if (kernel == nullptr) return Operator::redispatch(kKeys, std::forward<Args>(args)...);
    return kernel->template call<Return, Args...>(op, kKeys, std::forward<Args>(args)...);
  }
};

}  // namespace shadowgraph
