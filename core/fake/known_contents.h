// Tracks fake tensors whose contents are known: literals, and what is computed from nothing else. Internal to core/.
//
// A program may write `if (at::tensor({1, 2}).sum().item<int>() > 2)`, count steps in a tensor, or loop over the values
// of an arange. Contents belong to storages: every view of a known storage is known. A write through any alias happens
// to the contents too if everything that decides it is known, and otherwise makes them unknown. Nothing else keeps
// them.
//
//   at hand    literals (at::tensor, torch::tensor), small factories that take numbers (zeros, full, arange, ...), real
//              CPU tensors of one element, small results of aten operators on operands at hand: a real CPU buffer
//   on demand  everything else that follows from numbers, sizes and known contents: the call that makes it is kept
//              (core/fake/dispatch/contents_of_call.h) until somebody reads a result, within the mode's ContentsBudget. One number
//              everywhere (zeros of any size, and what pointwise operators and some reductions make of such) is never
//              more than that number
//   never      random numbers, uninitialised memory, operators of the user's own
//
// On a pretended CPU a buffer can be read as a real tensor's can (data_ptr, accessor), and written. What the host wrote
// is noticed at the next use, and shown to the observer.
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

inline constexpr int64_t kMostKnownElements = int64_t{1} << 18;  // token ids and masks of a batch
inline constexpr int64_t kMostFilledElements = 64;  // of what is filled with a number, as optimizer states begin
inline constexpr size_t kMostKnownBytes = 8 * kMostKnownElements;

// Returns how many elements are kept. Token ids, masks and lengths decide which way a program goes. What is computed
// from floating-point tables (rotary embeddings) does not, and would be computed for real with every capture.
inline int64_t most_known_elements(c10::ScalarType dtype) {
  constexpr int64_t kMostFloatingElements = 1024;
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? kMostKnownElements : kMostFloatingElements;
}

// Every element is this one.
struct UniformContents {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Storage element;  // one, on the CPU
};

// Makes contents when somebody reads them.
class PendingContents {
 public:
  virtual ~PendingContents() = default;
  // Gives `contents`, which wait for this, their buffer or uniform element. Throws DataDependentError beyond the
  // budget, and what the calls throw.
  virtual void resolve(struct KnownContents& contents) = 0;
  uint32_t depth = 1;  // of calls that wait for calls
};

// Exactly one of `real`, `uniform` and `pending` is set.
struct KnownContents {
  size_t bytes = 0;  // of the meta storage, when these were its contents
  std::shared_ptr<const UniformContents> uniform;
  std::shared_ptr<PendingContents> pending;
  bool failed = false;  // the CPU could not compute them: unknown
  Assumptions assumed;  // that they follow from

  c10::Storage real;            // on the CPU, with as many bytes as the meta storage
  std::vector<bool> known;      // by byte; empty: all
  bool readable = false;        // the pretended device is the CPU
  bool host_may_write = false;  // a pointer to write through was handed out
  c10::Storage recorded;        // what the observer has been shown, if the host may write
};

// Says whether every element is at hand. Any tensor may be asked: a fake, or what a kernel made of one.
bool is_known(const at::Tensor& tensor);
// Says whether every element is at hand or can be computed.
bool is_knowable(const at::Tensor& tensor);
// Returns the contents as a real CPU tensor of the same sizes and dtype, computed if need be; empty if they are not
// known. The tensor is on the same memory with the same strides or, if one number is everywhere, has strides of zero.
// Throws DataDependentError if computing it would cost more than the budget.
std::optional<at::Tensor> known_value(const at::Tensor& tensor);
// Puts the contents behind the tensor's pointer, for the host to read, computed if need be. Does nothing where they are
// not known or the pretended device is not the CPU. Throws DataDependentError if that would cost more than the budget.
void make_readable(const at::Tensor& fake);
// Returns the number that every element is known to be, without computing anything; nothing for buffers of more than a
// few.
std::optional<c10::Scalar> uniform_value(const at::Tensor& tensor);
// Returns what the contents follow from besides what the program says; and says so of contents that are known.
Assumptions assumptions_of(const at::Tensor& tensor);
void mark_assumed(const at::Tensor& fake, const Assumptions& assumed);
// Makes the contents known: a copy of `real`, which has the same sizes and dtype. Ignored if they are too many.
void give_contents(const at::Tensor& fake, const at::Tensor& real);
// Puts the same number everywhere, in the whole storage of `fake`, whose contents are forgotten.
void give_uniform_contents(const at::Tensor& fake, const c10::Scalar& number);
// Lets the contents be what `pending` makes of them.
std::shared_ptr<KnownContents> give_pending_contents(const at::Tensor& fake, std::shared_ptr<PendingContents> pending);
// Returns the storage's contents as they are now, whatever is written later; nullptr if they are not known.
std::shared_ptr<KnownContents> snapshot_of_contents(const at::Tensor& fake);
// Returns a real tensor on `contents` with the geometry of `like`; computed if need be, nothing if they cannot be.
std::optional<at::Tensor> value_in(KnownContents& contents, const at::Tensor& like);
// Makes `real`, with as many bytes, the contents; or `element`, a tensor of one element, everywhere.
void settle(KnownContents& contents, c10::Storage real);
void settle_uniform(KnownContents& contents, const at::Tensor& element);
void forget_contents(c10::StorageImpl& storage);
// Returns a real CPU tensor on the contents, to be written, all unknown where there were none. Call mark_known once it
// is done.
at::Tensor contents_to_write(const at::Tensor& fake);
void mark_known(const at::Tensor& fake);

// While it lives, calls are on real tensors and nobody watches: no mode, no autograd, no autocast.
class RealCalls {
 public:
  RealCalls();
  ~RealCalls();
  RealCalls(const RealCalls&) = delete;
  RealCalls& operator=(const RealCalls&) = delete;

 private:
  ModeState* mode_;
  uint32_t mode_id_;
  uint32_t kernel_depth_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Holds the real memory behind known contents, and puts it behind the pointers of fake storages. Internal to core/.

struct KnownContents;

// Returns so many bytes of zeros, on the CPU.
c10::Storage zeroed(size_t bytes);
c10::Storage copied(const c10::Storage& from);
// Returns a real CPU tensor on `memory` with the geometry, dtype and lazy bits of `like`.
at::Tensor real_view(const c10::Storage& memory, const at::Tensor& like);

// Returns the storage that a fake tensor is on, and its contents: nullptr if it has none.
inline c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}
KnownContents* contents_of(const c10::StorageImpl& storage);

// Replaces pointer and deleter, keeping the context.
void set_pointer(c10::StorageImpl& storage, void* pointer, c10::DeleterFnPtr deleter);
// Lets the storage's pointer say what its contents are: there for the host to read, or not.
void publish(c10::StorageImpl& storage);

// Calls `f` with the position in bytes of every element of the storage that `tensor` sees.
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

// Fake tensors whose memory the host reaches by a pointer for a moment: literals that it writes, and tensors that it is
// about to print. Internal to core/.

// at::tensor({...}) makes an empty tensor and writes the numbers through data_ptr. This lets a new one-dimensional
// tensor be written that way until the next call on this thread.
void open_for_literal(const at::Tensor& fake);
void close_literal();
inline void close_open_literal() {
  if (C10_UNLIKELY(thread_state.literal != nullptr)) close_literal();
}

// Printing a tensor converts it to a CPU tensor of doubles, which it reads through a pointer. After a conversion to
// exactly that, reading such a fake throws with words of ours, until the next call on this thread. Later libtorch's own
// words have to do. The same flag of a storage answers whoever asks where its data begins, to see whether tensors
// overlap.
void refuse_to_print(const at::Tensor& fake);
// Says whether `fake` was just refused: a copy that printing makes of it is to be refused, too.
bool is_refused_to_print(const at::Tensor& fake);
// How that error begins.
inline constexpr std::string_view kPrintedFake = "a fake tensor has no data to print or to read";

class CallObserver;
// Shows the observer what the host wrote into `fake`, through a pointer, since it was last shown.
void show_host_writes(const at::Tensor& fake, CallObserver& observer);

}  // namespace shadowgraph
