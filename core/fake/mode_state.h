// Holds what an active mode consists of. Internal to core/; programs use FakeTensorMode and CaptureSession.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "core/fake/call_observer.h"
#include "core/fake/data_dependent_values.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/capture/fake.h"

namespace shadowgraph {

class SavedTensorObserver;

enum class ModeKind : uint8_t {
  kFake,     // factories make fakes, real inputs are converted
  kObserve,  // nothing is faked: real calls are shown to the observer (tests compare against this)
};

// Keeps real tensors met so far and their fakes. It is weak on the real side: nothing real is kept alive. One real
// tensor may have fakes on several devices, and they share nothing.
struct ConversionMemo {
  struct StorageEntry {
    c10::weak_intrusive_ptr<c10::StorageImpl> real{c10::intrusive_ptr<c10::StorageImpl>()};
    c10::Storage meta;
    c10::Device device;  // of the fakes
  };
  struct TensorEntry {
    // Keeps what the real tensor was like: `.data =`, t_() or a write (where contents were taken) since make another
    // fake.
    const c10::StorageImpl* storage = nullptr;
    std::vector<int64_t> geometry;
    uint32_t version = 0;
    bool has_contents = false;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> real{
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    at::Tensor fake;
    c10::Device device;  // of the fake
  };
  std::unordered_multimap<const c10::StorageImpl*, StorageEntry> storages;
  std::unordered_multimap<const c10::TensorImpl*, TensorEntry> tensors;        // by the real tensor, an entry a device
  std::unordered_map<const c10::TensorImpl*, const c10::TensorImpl*> origins;  // fake -> real, same entries
  // Counts real tensors that stand for their fakes (fakeify): a write to one is a write to its fake.
  std::unordered_map<const c10::TensorImpl*, int> adopted;
};

struct ModeState {
  ModeKind kind = ModeKind::kFake;
  uint32_t id = 0;  // of this mode among all of the process; 0: none (an ObserveMode)
  FakeTensorOptions options{.profile = DeviceProfile(), .real_tensors = RealTensors::kConvert};  // none left open
  c10::Device default_device = c10::Device(c10::DeviceType::CPU);
  CallObserver* observer = nullptr;
  SavedTensorObserver* saved_tensors = nullptr;
  bool watch_size_reads = false;
  bool reads_data = false;  // the observer knows contents: it is asked to compute what depends on them
  ConversionMemo memo;
  std::recursive_mutex memo_mutex;  // several threads may be in one mode
  DataSizes data_sizes;
  HostAnswers host_answers;
  Routings routings;

  const DeviceProfile& profile() const { return *options.profile; }
  bool maps_devices() const { return options.map_devices_to_default; }
  RealTensors real_tensors() const { return *options.real_tensors; }
};

// Gives core and passes the insides of FakeTensorMode.
struct ModeAccess {
  static const std::shared_ptr<ModeState>& state(FakeTensorMode& mode) { return mode.state_; }
};
inline ModeState& state_of(FakeTensorMode& mode) { return *ModeAccess::state(mode); }

// A record that goes on after its scope (core/deferred/). Calls outside any mode that are given one of its tensors are
// shown to its observer. `enter` gives the mode to run the call under, on this thread, until `leave`.
class LastingMode {
 public:
  virtual ~LastingMode() = default;
  virtual ModeState& enter() = 0;
  virtual void leave() noexcept = 0;
};
using FindLastingMode = std::shared_ptr<LastingMode> (*)(const FakeTensorImpl&);
extern std::atomic<uint32_t> lasting_modes;             // how many there are; mostly none
extern std::atomic<FindLastingMode> find_lasting_mode;  // nullptr: nobody's, or the tensor has none

// Returns the mode that makes tensors fake on this thread; nullptr if there is none, or it only observes.
inline ModeState* active_fake_mode() {
  ModeState* mode = thread_state.mode;
  return mode != nullptr && mode->kind == ModeKind::kFake ? mode : nullptr;
}

inline bool may_have_lasting_mode(const ModeState* mode) {
  return mode == nullptr && lasting_modes.load(std::memory_order_relaxed) != 0;
}

void note_size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept;

}  // namespace shadowgraph
