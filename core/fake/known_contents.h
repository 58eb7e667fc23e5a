// Fake tensors with known contents: literals, and values computed only from known contents. Internal to core/.
//
// A program may evaluate `if (at::tensor({1, 2}).sum().item<int>() > 2)`, count steps in a tensor, or loop over the
// values of an arange. Contents belong to storages: every view of a known storage is known. A write through any alias
// is applied to the contents if all its inputs are known, and otherwise makes them unknown.
//
//   available  literals (at::tensor, torch::tensor), small factories with number arguments (zeros, full, arange, ...),
//              real CPU tensors of one element, small results of aten operators on available operands; held in a real
//              CPU buffer
//   on demand  everything else that follows from numbers, sizes and known contents: the call is kept
//              (core/fake/dispatch/contents_of_call.h) until a result is read, within the mode's ContentsBudget. A
//              uniform tensor (zeros of any size, and results of pointwise operators and some reductions on it) is
//              represented by one number
//   never      random numbers, uninitialized memory, results of user-defined operators
//
// On a simulated CPU such a tensor can be read and written like a real one (data_ptr, accessor). Writes by the host are
// detected at the next use and reported to the observer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/fake/data_dependent_values.h"
#include "core/fake/storage_context.h"
#include "core/fake/thread_state.h"

namespace shadowgraph {

inline constexpr int64_t kMaxKnownElements = int64_t{1} << 18;  // token ids and masks of a batch
inline constexpr int64_t kMaxFilledElements = 64;               // for factories, such as initial optimizer states
inline constexpr size_t kMaxKnownBytes = 8 * kMaxKnownElements;

// Returns the maximum number of known elements. Token ids, masks and lengths affect control flow. Floating-point tables
// (rotary embeddings) do not, and would be computed for real in every capture.
inline int64_t max_known_elements(c10::ScalarType dtype) {
  constexpr int64_t kMaxFloatingElements = 1024;
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? kMaxKnownElements : kMaxFloatingElements;
}

// Contents where every element has the same value.
struct UniformContents {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Storage element;  // a single element, on the CPU
};

// Computes contents when they are read.
class PendingContents {
 public:
  virtual ~PendingContents() = default;
  // Sets the buffer or uniform element of `contents`, which are pending on this. Throws DataDependentError beyond the
  // budget, and errors of the calls.
  virtual void resolve(struct KnownContents& contents) = 0;
  uint32_t depth = 1;  // length of the chain of pending calls
};

// Exactly one of `real`, `uniform` and `pending` is set.
struct KnownContents {
  size_t bytes = 0;  // size of the meta storage when the contents were set
  std::shared_ptr<const UniformContents> uniform;
  std::shared_ptr<PendingContents> pending;
  bool failed = false;  // the CPU could not compute them: unknown
  Assumptions assumed;  // that they derive from

  c10::Storage real;            // on the CPU, of the same size as the meta storage
  std::vector<bool> known;      // per byte; empty: all
  bool readable = false;        // the simulated device is the CPU
  bool host_may_write = false;  // a mutable pointer was handed out
  c10::Storage recorded;        // the contents last reported to the observer, if the host may write
};

// Returns whether every element is available. Accepts any tensor, including a kernel's plain view of a fake.
bool is_known(const at::Tensor& tensor);
// Returns whether every element is available or can be computed.
bool is_knowable(const at::Tensor& tensor);
// Returns the contents as a real CPU tensor of the same sizes and dtype, computed if needed; nullopt if unknown. Has
// the tensor's strides, or zero strides if the contents are uniform. Throws DataDependentError if computing them
// exceeds the budget.
std::optional<at::Tensor> known_value(const at::Tensor& tensor);
// Makes the contents readable through the tensor's data pointer, computed if needed. Does nothing if they are unknown
// or the simulated device is not the CPU. Throws DataDependentError if computing them exceeds the budget.
void make_readable(const at::Tensor& fake);
// Returns the value of all elements if they are known to be equal, without computing; nullopt for large buffers.
std::optional<c10::Scalar> uniform_value(const at::Tensor& tensor);
// Returns or adds the assumptions that known contents derive from.
Assumptions assumptions_of(const at::Tensor& tensor);
void mark_assumed(const at::Tensor& fake, const Assumptions& assumed);
// Sets the contents to a copy of `real`, of the same sizes and dtype. Ignored above the size limit.
void set_contents(const at::Tensor& fake, const at::Tensor& real);
// Sets every element of the storage of `fake` to `number`, replacing previous contents.
void set_uniform_contents(const at::Tensor& fake, const c10::Scalar& number);
// Sets contents that `pending` computes when they are first read.
std::shared_ptr<KnownContents> set_pending_contents(const at::Tensor& fake, std::shared_ptr<PendingContents> pending);
// Returns the storage's current contents, unaffected by later writes; nullptr if unknown.
std::shared_ptr<KnownContents> snapshot_of_contents(const at::Tensor& fake);
// Returns a real tensor on `contents` with the geometry of `like`, computed if needed; nullopt if that fails.
std::optional<at::Tensor> value_in(KnownContents& contents, const at::Tensor& like);
// Sets the contents to `real`, of the same size, or to `element`, a one-element tensor, everywhere.
void settle(KnownContents& contents, c10::Storage real);
void resolve_to_uniform(KnownContents& contents, const at::Tensor& element);
void forget_contents(c10::StorageImpl& storage);
// Returns a real CPU tensor on the contents for writing; without contents, all elements are unknown. Call mark_known
// afterwards.
at::Tensor contents_to_write(const at::Tensor& fake);
void mark_known(const at::Tensor& fake);

// Active while operators run on real tensors: no mode, autograd or autocast, and unobserved.
class RealCalls {
 public:
  RealCalls();
  ~RealCalls();
  C10_DISABLE_COPY_AND_ASSIGN(RealCalls);

 private:
  ModeState* mode_;
  uint32_t mode_id_;
  uint32_t kernel_depth_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Returns a CPU storage of `bytes` zeros.
c10::Storage zeroed(size_t bytes);
c10::Storage copied(const c10::Storage& from);
// Returns a real CPU tensor on `memory` with the geometry, dtype and lazy bits of `like`.
at::Tensor real_view(const c10::Storage& memory, const at::Tensor& like);

// Returns the storage of a fake tensor, and its contents: nullptr if unknown.
inline c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}
KnownContents* contents_of(const c10::StorageImpl& storage);

// Replaces the pointer and deleter, keeping the context.
void set_pointer(c10::StorageImpl& storage, void* pointer, c10::DeleterFnPtr deleter);
// Updates the storage's pointer: set if the host may read the contents, otherwise null.
void publish(c10::StorageImpl& storage);

// Calls `f` with the byte offset and size of every element of `tensor`.
template <class F>
void for_each_element(const at::Tensor& tensor, F&& f) {
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  const auto item = static_cast<int64_t>(tensor.dtype().itemsize());
  c10::SmallVector<int64_t, 5> index(sizes.size(), 0);
  int64_t position = tensor.storage_offset();
  for (int64_t left = tensor.numel(); left > 0; --left) {
    f(static_cast<size_t>(position * item), static_cast<size_t>(item));
    for (size_t d = sizes.size(); d-- > 0;) {
      position += strides[d];
      if (++index[d] < sizes[d]) break;
      position -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
}

// ---- Temporary access through data pointers: literals and printing

// at::tensor({...}) allocates an empty tensor and writes the numbers through data_ptr. Allows that for a new 1-D tensor
// until the next call on this thread.
void open_for_literal(const at::Tensor& fake);
void close_literal();
inline void close_open_literal() {
  if (C10_UNLIKELY(thread_state.literal != nullptr)) close_literal();
}

// Printing converts a tensor to a double CPU tensor and reads it through a pointer. After such a conversion, reading
// the fake throws with a message of ours until the next call on this thread. That is temporary because the same flag
// breaks code that only compares data pointers, for example to check for overlap.
void refuse_to_print(const at::Tensor& fake);
// Returns whether `fake` is currently refused, in which case copies made for printing must be refused too.
bool is_refused_to_print(const at::Tensor& fake);
// The start of that error message.
inline constexpr std::string_view kPrintedFakeError = "a fake tensor has no data to print or to read";

class CallObserver;
// Reports to the observer what the host wrote into `fake` through a pointer since the last report.
void show_host_writes(const at::Tensor& fake, CallObserver& observer);

}  // namespace shadowgraph
