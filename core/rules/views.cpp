// Views that programs make all the time. Their Meta kernels are right but reach the view through two more dispatcher
// calls (t -> transpose -> as_strided); these make it at once.
#include <c10/core/WrapDimMinimal.h>

#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "core/rules/support.h"

namespace shadowgraph::rules {
namespace {

at::Tensor transpose(const at::Tensor& self, int64_t dim0, int64_t dim1) {
  const auto rank = self.dim();
  dim0 = c10::maybe_wrap_dim(dim0, rank);
  dim1 = c10::maybe_wrap_dim(dim1, rank);
  auto view = at::Tensor(c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                              self.key_set(), self.dtype()));
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  c10::DimVector strides(self.strides().begin(), self.strides().end());
  if (rank != 0) {
    std::swap(sizes[static_cast<size_t>(dim0)], sizes[static_cast<size_t>(dim1)]);
    std::swap(strides[static_cast<size_t>(dim0)], strides[static_cast<size_t>(dim1)]);
  }
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, self.storage_offset());
  return view;
}

at::Tensor t(const at::Tensor& self) {
  TORCH_CHECK(self.dim() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", self.dim(), "D");
  return self.dim() < 2 ? transpose(self, 0, 0) : transpose(self, 0, 1);
}

}  // namespace

void register_views(RuleRegistry& registry) {
  registry.add("aten::transpose.int", &transpose);
  registry.add("aten::t", &t);
}

}  // namespace shadowgraph::rules
