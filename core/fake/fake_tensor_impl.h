// Defines a tensor without data that pretends to live on a device.
//
// It *is* a meta tensor: its storage is a meta storage, shared with its views, so libtorch's own aliasing, version
// counters and autograd work unchanged. It answers "meta" for its device while a kernel runs on this thread and the
// pretended device otherwise. (c10's own TensorImpl::set_fake_device answers the pretended device inside kernels too,
// and copy_ then runs the CPU loop on a null pointer; see docs/captures.md.)
//
// A recorder finds its bookkeeping in the tensor itself: which session knows it, and as which Value.
//
// A fake tensor that was described rather than run (core/deferred/) may later become real, in place. The object, its
// autograd history and everybody who holds it stay. From then on it is a tensor like any other, and as_fake() says so.
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
  // Returns a fake with `meta`'s geometry, dtype and storage (shared), pretending to be on `device`.
  static at::Tensor wrap(const c10::TensorImpl& meta, c10::Device device);

  // Returns a fresh fake on `device`, with a storage of its own: what a kernel would allocate.
  static at::Tensor empty(c10::IntArrayRef sizes, caffe2::TypeMeta dtype, c10::MemoryFormat format, c10::Device device);
  static at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, caffe2::TypeMeta dtype,
                                  c10::Device device);
  // Returns a view of this one, as a view kernel makes it: same storage, dispatch keys and device, no autograd yet.
  at::Tensor view(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) const;

  FakeTensorImpl(c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, c10::Device device);
  FakeTensorImpl(const c10::TensorImpl& meta, c10::Device device);
  FakeTensorImpl(ImplType view, c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
                 c10::Device device);

  c10::Device pretended_device() const { return pretended_device_; }
  // Moves a result that a rule made on the call's device to another one where it belongs: _foreach_*.
  void move_to(c10::Device device);
  // Returns the mode it was made in (ModeState::id); 0 if in none.
  uint32_t mode_id() const { return mode_id_; }
  // Returns dim() for us, without noting that somebody read it.
  size_t rank() const { return sizes_and_strides_.size(); }

  // Return which capture session last met this tensor (0: none), and the Value it is there.
  uint32_t session() const { return session_; }
  ValueId value() const { return value_; }
  void bind(uint32_t session, ValueId value) {
    session_ = session;
    value_ = value;
  }

  c10::Device device_custom() const override {
    return thread_state.kernel_depth != 0 ? c10::Device(c10::DeviceType::Meta) : pretended_device_;
  }
  // While size reads are watched (capture of guards), sizes() and dim() go through these.
  c10::IntArrayRef sizes_custom() const override;
  int64_t size_custom(int64_t dimension) const override;
  int64_t dim_custom() const override;
  void watch_size_reads();
  // Says whether it was watched. libtorch refuses to resize a tensor with sizes of its own, so kernels get it
  // unwatched.
  bool stop_watching_size_reads();
  // Takes over `real`'s storage, dtype, geometry, device and dispatch keys; `recipe` is kept for whoever made it real.
  void become_real(const c10::intrusive_ptr<TensorImpl>& real, c10::intrusive_ptr<c10::intrusive_ptr_target> recipe);
  // Goes back: takes `fake`'s storage and geometry, its device and keys.
  void become_fake(const FakeTensorImpl& fake);
  const c10::intrusive_ptr<c10::intrusive_ptr_target>& recipe() const { return recipe_; }
  void forget_recipe() { recipe_.reset(); }

  // Notes that a view kernel made this one of a real tensor: its memory is that of the real one's fake. Autograd goes
  // on to give it the real one for a base or, where it tracks no view (detach), the real one's version counter.
  void set_view_of_real() { view_of_real_ = true; }
  bool is_view_of_real() const { return view_of_real_; }
  bool has_version_of_real() const { return version_of_real_; }

  // Says whether a rule made this one and no call has returned it yet. Asking makes it known.
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

  c10::Device pretended_device_;
  bool fresh_ = false;
  bool view_of_real_ = false;
  bool version_of_real_ = false;
  uint32_t mode_id_ = thread_state.mode_id;
  uint32_t session_ = 0;
  ValueId value_;
  c10::intrusive_ptr<c10::intrusive_ptr_target> recipe_;  // of a real one
};

// Returns a storage of so many bytes on the meta device: none are allocated.
c10::Storage meta_storage(size_t bytes);

// Returns a device with an index, which a tensor always has: "cuda" is the current device.
c10::Device with_current_index(c10::DeviceType type);
inline c10::Device with_index(c10::Device device) {
  // libtorch's allocator calls "cpu:0" the CPU as well.
  if (device.is_cpu() || device.is_meta()) return c10::Device(device.type());
  return C10_LIKELY(device.has_index()) ? device : with_current_index(device.type());
}

// The dispatch keys of a fake tensor on `device`: those of a dense tensor there, plus Fake.
c10::DispatchKeySet fake_key_set(c10::Device device);
// Whether there has been a fake on an accelerator other than CUDA: backwards are then looked through before they run.
bool other_accelerators_are_pretended() noexcept;

// nullptr unless `tensor` is a fake tensor.
FakeTensorImpl* as_fake(const at::Tensor& tensor);
FakeTensorImpl* as_fake(c10::TensorImpl* impl);
bool is_fake(const at::Tensor& tensor);

// Tells tensors that hold other tensors and have no memory of their own: Python's DTensor, quantised parameters.
// Internal to core/.

inline bool is_wrapper(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python) && !is_fake(tensor);
}

// Returns where a fake tensor, or a wrapper, says that it is; nothing for a real tensor.
inline std::optional<c10::Device> device_of_fake_or_wrapper(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  if (const FakeTensorImpl* fake = as_fake(tensor)) return fake->pretended_device();
  return is_wrapper(tensor) ? std::optional(tensor.device()) : std::nullopt;
}

}  // namespace shadowgraph
