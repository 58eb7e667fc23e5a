#include "core/fake/meta_kernel.h"

#include <cstdlib>
#include <string_view>

namespace shadowgraph {
namespace {

// The dispatcher tells nobody about kernels that are hidden, but an explicit instantiation may name private members.
// These are OperatorHandle's pointer to its definition and OperatorEntry's kernels by dispatch key, newest first
// (libtorch 2.13.0).
template <class Name, auto member>
struct Opened {
  friend constexpr auto member_called(Name) { return member; }
};
struct Definition {
  friend constexpr auto member_called(Definition);
};
struct Kernels {
  friend constexpr auto member_called(Kernels);
};
template struct Opened<Definition, &c10::OperatorHandle::operatorDef_>;
template struct Opened<Kernels, &c10::impl::OperatorEntry::kernels_>;

const c10::KernelFunction* cpp_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  const auto& kernels = (op.*member_called(Definition()))->op.*member_called(Kernels());
  const auto found = kernels.find(key);
  if (found == kernels.end()) return nullptr;
  for (const auto& annotated : found->second) {
    const c10::KernelFunction& kernel = annotated.kernel;
    // Kernels from Python are boxed only.
    if (!kernel.isFallthrough() && (kernel.isValidUnboxed() || kernel.isValidSymUnboxed())) return &kernel;
  }
  return nullptr;
}

// Says whether the environment asks for Python's kernels, so that a test can compare the two.
bool leaves_them_to_python() {
  static const bool python = [] {
    const char* const kernels = std::getenv("SHADOWGRAPH_META_KERNELS");
    return kernels != nullptr && std::string_view(kernels) == "python";
  }();
  return python;
}

}  // namespace

const c10::KernelFunction* cpp_meta_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (leaves_them_to_python() && op.hasKernelForDispatchKey(DispatchKey::Meta)) return nullptr;
  for (const auto key : {DispatchKey::Meta, DispatchKey::CompositeExplicitAutogradNonFunctional,
                         DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeImplicitAutograd}) {
    if (const auto* kernel = cpp_kernel(op, key)) return kernel;
    // Python's kernel for an operator of the user's own comes before that operator's composite kernels.
    if (key == DispatchKey::Meta && has_meta_kernel_of_its_own(op)) return nullptr;
  }
  return nullptr;
}

bool has_meta_kernel_of_its_own(const c10::OperatorHandle& op) {
  const auto space = op.schema().getNamespace();
  if (space && *space == "aten") return cpp_kernel(op, c10::DispatchKey::Meta) != nullptr;
  return op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

}  // namespace shadowgraph
