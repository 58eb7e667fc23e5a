// Records storages that the program gives another size: untyped_storage().resize_(bytes), as FSDP2 does with gathered
// parameters.
//
// Memory that is given back and taken again is other memory, so the record has another storage for it from there on.
// The old one dies, and the new one is born by aten::empty, whose contents are undefined, too. What the program keeps
// of the contents is a copy. Tensors that look at it become aliases of the new storage when they are used. Replay,
// lifetimes and allocators need to know nothing of it.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include "core/calls/call_record.h"
#include "core/capture/recorder.h"
#include "core/dispatch/operator_info.h"
#include "core/fake/kernel_depth.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "ir/records.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// A fake tensor of `elements` elements at the beginning of the storage.
at::Tensor beginning_of(const c10::Storage& storage, c10::ScalarType dtype, int64_t elements, c10::Device device) {
  c10::Storage shared = storage;
  at::Tensor tensor = at::detail::make_tensor<FakeTensorImpl>(std::move(shared), fake_key_set(device),
                                                              caffe2::TypeMeta::fromScalarType(dtype), device);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  return tensor;
}

}  // namespace

void Recorder::storage_resized(c10::StorageImpl& storage, size_t bytes) {
  if (bytes == storage.nbytes()) return;
  const StorageId before = find_storage_id(storage, session_);
  if (!before.valid()) {
    // What was there belongs to nobody here. Which device the new memory is on, the first tensor that uses it tells.
    if (bytes == 0) {
      growths_.erase(&storage);
    } else {
      const KernelDepth depth;
      const bool in_backward = torch::autograd::get_current_node() != nullptr || !recomputations_.empty();
      const PhaseId phase = phase_.valid() ? phase_ : in_backward ? Graph::kBackward : Graph::kForward;
      growths_[&storage] = {last_, phase, materialise(regions_.size() - 1), other_streams()};
      if (!is_bound(storage, session_)) {
        bind_storage(storage, StorageId(), c10::intrusive_ptr<SessionLink>::reclaim_copy(link_));
      }
    }
    return;
  }
  const c10::Device device = graph_.storage(before).device();
  c10::ScalarType dtype = graph_.value(storage_root_[before.index]).dtype;
  size_t item = c10::elementSize(dtype);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (bytes % item != 0 || kept % item != 0) {
    dtype = c10::kByte;
    item = 1;
  }
  const auto now = at::empty({static_cast<int64_t>(bytes / item)}, at::TensorOptions(device).dtype(dtype));
  if (kept > 0) {
    const auto elements = static_cast<int64_t>(kept / item);
    const c10::Storage shared(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
    const at::NoGradGuard no_grad;
    now.narrow(0, 0, elements).copy_(beginning_of(shared, dtype, elements, device));
  }
  // The two exchange their ids, and the old memory dies with `now`.
  c10::StorageImpl& made = *now.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const StorageId after = find_storage_id(made, session_);
  TORCH_INTERNAL_ASSERT(after.valid(), "an observed call names what it makes");
  rename_storage(made, session_, before);
  rename_storage(storage, session_, after);
  forget_contents(storage);
}

namespace {

bool is_emptied(const at::Tensor& tensor) {
  if (as_fake(tensor) == nullptr) return false;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.unsafe_storage().nbytes() == 0 && impl.numel() != 0;
}

}  // namespace

// Says whether the call gives a view of memory that was given back. That computes nothing, and what the view shows once
// there is memory again is an alias of it.
bool Recorder::looks_at_nothing(const OperatorInfo& info, std::span<const CallArgument> arguments) const {
  if (!info.is_view && !info.inplace_view) return false;
  if (arguments.empty()) return false;
  const CallArgument& self = arguments[0];
  if (self.kind() == CallArgument::Kind::kTensor) return is_emptied(self.tensor());
  return self.kind() == CallArgument::Kind::kBoxed && self.boxed().isTensor() && is_emptied(self.boxed().toTensor());
}

// Refuses what reads or writes memory that was given back. Eager reads behind the null pointer.
void Recorder::check_has_memory(const FakeTensorImpl& fake) const {
  if (fake.layout() != c10::Layout::Strided || fake.numel() == 0) return;
  int64_t end = fake.storage_offset() + 1;
  for (size_t d = 0; d < fake.sizes().size(); ++d) end += (fake.sizes()[d] - 1) * fake.strides()[d];
  const auto bytes = static_cast<int64_t>(fake.unsafe_storage().nbytes());
  const auto needed = end * static_cast<int64_t>(fake.dtype().itemsize());
  if (needed <= bytes) return;
  throw Error(c10::str(calling_ != nullptr ? calling_->name : std::string("the program"), " uses a tensor of ",
                       fake.sizes(), " ", fake.dtype().toScalarType(), ", which needs ", needed,
                       " bytes of a storage that has ", bytes,
                       ": its memory was given back (untyped_storage().resize_). Use it before, or give the storage "
                       "memory again first"));
}

// Puts the aten::empty that gave the storage of `fake` its memory where that was.
ValueId Recorder::grown_before(FakeTensorImpl& fake, const Growth& growth) {
  c10::StorageImpl& impl = *fake.unsafe_storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<int64_t>(impl.nbytes());
  const auto item = static_cast<int64_t>(fake.dtype().itemsize());
  const c10::ScalarType dtype = bytes % item == 0 ? fake.dtype().toScalarType() : c10::kByte;
  const int64_t sizes[] = {bytes % item == 0 ? bytes / item : bytes};
  static const auto empty = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format");
  const Argument arguments[] = {graph_.int_list(sizes), Argument::of_int(static_cast<int64_t>(dtype)),
                                Argument::none(),       Argument::of_device(fake.pretended_device()),
                                Argument::none(),       Argument::none()};
  const NodeId next = growth.after.valid() ? graph_.node(growth.after).next : body_;
  const NodeId node = graph_.insert_before(next, target_of_operator(OperatorInfo::of(empty)), arguments);
  if (!growth.after.valid()) body_ = node;
  if (growth.after == last_) last_ = node;
  Node& n = mutable_node(graph_, node);
  n.phase = growth.phase;
  n.region = growth.region;

  Storage storage = storage_of(fake, node);
  const StorageId id = graph_.add_storage(storage);
  rename_storage(impl, session_, id);
  storage_root_.resize(size_t{id.index} + 1);
  const int64_t strides[] = {1};
  const ValueId root = graph_.new_tensor(
      node, {.dtype = dtype, .sizes = sizes, .strides = strides, .storage = id, .device = fake.pretended_device()});
  storage_root_[id.index] = root;
  const Argument result[] = {Argument::of_value(root)};
  graph_.set_results(node, result);
  streams_.put(graph_, node, growth.streams);
  return value_of(fake);
}

}  // namespace shadowgraph
