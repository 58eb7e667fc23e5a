// A tensor without data on a simulated device.
//
// It is a meta tensor with a meta storage shared with its views, so libtorch's aliasing, version counters and autograd
// work unchanged. device() returns "meta" while a kernel runs on this thread and the simulated device otherwise. (c10's
// TensorImpl::set_fake_device reports the simulated device inside kernels too, and copy_ then runs the CPU loop on a
// null pointer; see docs/captures.md.)
//
// It also stores the recorder's bookkeeping: the session that uses it, and its ValueId there.
//
// A deferred tensor (core/deferred/) may later be materialized in place: the object, its autograd history and all
// references stay valid. From then on it is an ordinary tensor, and as_fake() returns nullptr.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/TensorImpl.h>

#include <optional>
#include <utility>

#include "core/fake/thread_state.h"
#include "shadowgraph/graph/ids.h"

namespace shadowgraph {

class FakeTensorImpl final : public c10::TensorImpl {
 public:
  // Returns a fake with `meta`'s geometry, dtype and storage (shared) on the simulated `device`.
  static at::Tensor wrap(const c10::TensorImpl& meta, c10::Device device);

  // Returns a fresh fake on `device` with a new storage, as a kernel would allocate it.
  static at::Tensor empty(c10::IntArrayRef sizes, caffe2::TypeMeta dtype, c10::MemoryFormat format, c10::Device device);
  static at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, caffe2::TypeMeta dtype,
                                  c10::Device device);
  // Returns a view as a view kernel creates it: same storage, dispatch keys and device, without autograd.
  at::Tensor view(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) const;

  FakeTensorImpl(c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, c10::Device device);
  FakeTensorImpl(const c10::TensorImpl& meta, c10::Device device);
  FakeTensorImpl(ImplType view, c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
                 c10::Device device);

  c10::Device simulated_device() const { return simulated_device_; }
  // Moves a result created on the call's device to another one, for _foreach_*.
  void move_to(c10::Device device);
  // Returns the id of the mode it was created in (ModeState::id); 0 if none.
  uint32_t mode_id() const { return mode_id_; }
  // Bytes of memory that eager allocates for the storage: none for a ZeroTensor (_efficientzerotensor), which forward
  // mode uses as the tangent of what has none.
  int64_t allocated_bytes() const { return _is_zerotensor() ? 0 : static_cast<int64_t>(unsafe_storage().nbytes()); }
  // dim() without recording a size read.
  size_t rank() const { return sizes_and_strides_.size(); }

  // The capture session that last used this tensor (0: none), and its value there.
  uint32_t session() const { return session_; }
  ValueId value() const { return value_; }
  void bind(uint32_t session, ValueId value) {
    session_ = session;
    value_ = value;
  }

  c10::Device device_custom() const override {
    return thread_state.kernel_depth != 0 ? c10::Device(c10::DeviceType::Meta) : simulated_device_;
  }
  // While size reads are watched (to record guards), sizes() and dim() are routed through these.
  c10::IntArrayRef sizes_custom() const override;
  int64_t size_custom(int64_t dimension) const override;
  int64_t dim_custom() const override;
  void watch_size_reads();
  // Returns whether it was watched. libtorch refuses to resize tensors with custom sizes, so watching is suspended for
  // such kernels.
  bool stop_watching_size_reads();
  // Takes over the storage, dtype, geometry, device and dispatch keys of `real`; keeps `recipe` for rematerialization.
  void become_real(const c10::intrusive_ptr<TensorImpl>& real, c10::intrusive_ptr<c10::intrusive_ptr_target> recipe);
  // Reverts become_real: takes over the storage, geometry, device and keys of `fake`.
  void become_fake(const FakeTensorImpl& fake);
  const c10::intrusive_ptr<c10::intrusive_ptr_target>& recipe() const { return recipe_; }

  // Marks a view kernel's result as a view of a real tensor, whose fake owns its memory. Autograd then sets the real
  // tensor as its base or, where it tracks no view (detach), shares the real tensor's version counter.
  void set_view_of_real() { view_of_real_ = true; }
  bool is_view_of_real() const { return view_of_real_; }
  bool has_version_of_real() const { return version_of_real_; }

  // Returns whether a rule created it and no call has returned it yet, and clears that flag.
  bool take_fresh() { return std::exchange(fresh_, false); }
  bool is_fresh() const { return fresh_; }
  void mark_fresh() { fresh_ = true; }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

 private:
  template <class Version>
  c10::intrusive_ptr<TensorImpl> copy_and_detach(Version&& version_counter, bool allow_tensor_metadata_change) const;
  const char* tensorimpl_type_name() const override { return "FakeTensorImpl"; }

  c10::Device simulated_device_;
  bool fresh_ = false;
  bool view_of_real_ = false;
  bool version_of_real_ = false;
  uint32_t mode_id_ = thread_state.mode_id;
  uint32_t session_ = 0;
  ValueId value_;
  c10::intrusive_ptr<c10::intrusive_ptr_target> recipe_;  // of a materialized tensor
};

// Returns a meta storage of `bytes` bytes, without allocating.
c10::Storage meta_storage(size_t bytes);

// Adds the current device's index to a device without one: tensors always have an index.
c10::Device with_current_index(c10::DeviceType type);
inline c10::Device with_index(c10::Device device) {
  // The CPU never has an index: libtorch's allocator treats "cpu:0" as "cpu".
  if (device.is_cpu() || device.is_meta()) return c10::Device(device.type());
  return C10_LIKELY(device.has_index()) ? device : with_current_index(device.type());
}

// Returns the dispatch keys of a fake tensor on `device`: those of a dense tensor there, plus kFakeKey.
c10::DispatchKeySet fake_key_set(c10::Device device);
// Returns whether a fake on an accelerator other than CUDA was ever created: backward graphs are then checked first.
bool other_accelerators_are_simulated() noexcept;

// Returns nullptr unless `tensor` is a fake tensor.
FakeTensorImpl* as_fake(const at::Tensor& tensor);
FakeTensorImpl* as_fake(c10::TensorImpl* impl);
bool is_fake(const at::Tensor& tensor);

// Returns whether a tensor wraps other tensors and has no memory, such as Python's DTensor or quantized parameters.
inline bool is_wrapper(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python) && !is_fake(tensor);
}

// Returns the device of a fake tensor or wrapper; nullopt for a real tensor.
inline std::optional<c10::Device> device_of_fake_or_wrapper(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  if (const FakeTensorImpl* fake = as_fake(tensor)) return fake->simulated_device();
  return is_wrapper(tensor) ? std::optional(tensor.device()) : std::nullopt;
}

}  // namespace shadowgraph
