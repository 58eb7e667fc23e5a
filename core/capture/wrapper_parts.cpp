#include "core/capture/wrapper_parts.h"

#include <atomic>

#include "shadowgraph/capture.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

std::atomic<WrapperParts> wrapper_parts{nullptr};

}  // namespace

void set_wrapper_parts(WrapperParts parts) { wrapper_parts.store(parts, std::memory_order_release); }

std::vector<at::Tensor> parts_of(const at::Tensor& wrapper) {
  const WrapperParts look = wrapper_parts.load(std::memory_order_acquire);
  if (look == nullptr) {
    throw Error(c10::str("a tensor of another language holds other tensors, and nobody says which: a ",
                         wrapper.scalar_type(), " of sizes ", wrapper.sizes(), "; give set_wrapper_parts a function"));
  }
  return look(wrapper);
}

}  // namespace shadowgraph
