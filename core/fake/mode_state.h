// The state of an active mode. Internal to core/; programs use FakeTensorMode and Capture.
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
  kFake,     // factories create fakes, real inputs are converted
  kObserve,  // real calls are reported to the observer (reference for tests)
};

// Maps real tensors to their fakes. Holds only weak references to the real ones. A real tensor may have fakes on
// several devices, which share nothing.
struct ConversionMemo {
  struct StorageEntry {
    c10::weak_intrusive_ptr<c10::StorageImpl> real{c10::intrusive_ptr<c10::StorageImpl>()};
    c10::Storage meta;
    c10::Device device;  // of the fakes
  };
  struct TensorEntry {
    // The real tensor's state at conversion. If it has changed since, by `.data =`, t_(), or a write if contents were
    // copied, the tensor gets a new fake.
    const c10::StorageImpl* storage = nullptr;
    std::vector<int64_t> geometry;
    uint32_t version = 0;
    bool has_contents = false;
    bool has_gradient = false;  // the real tensor's gradient, if any, was converted
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> real{
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    at::Tensor fake;
    c10::Device device;  // of the fake
  };
  std::unordered_multimap<const c10::StorageImpl*, StorageEntry> storages;
  std::unordered_multimap<const c10::TensorImpl*, TensorEntry> tensors;        // by real tensor, one entry per device
  std::unordered_map<const c10::TensorImpl*, const c10::TensorImpl*> origins;  // fake -> real, same entries
  // Reference counts of real tensors that represent their fakes (fakeify): a write to one is a write to its fake.
  std::unordered_map<const c10::TensorImpl*, int> adopted;
};

struct ModeState {
  ModeKind kind = ModeKind::kFake;
  uint32_t id = 0;  // unique in the process; 0: none (an ObserveMode)
  FakeTensorOptions options{.profile = DeviceProfile(), .real_tensors = RealTensors::kConvert};  // none left open
  c10::Device default_device = c10::Device(c10::DeviceType::CPU);
  CallObserver* observer = nullptr;
  SavedTensorObserver* saved_tensors = nullptr;
  bool watch_size_reads = false;
  bool reads_data = false;  // the observer computes calls that depend on contents
  ConversionMemo memo;
  std::recursive_mutex memo_mutex;  // several threads may share a mode
  DataSizes data_sizes;
  HostReadValues host_read_values;
  Routings routings;

  const DeviceProfile& profile() const { return *options.profile; }
  bool maps_devices() const { return options.map_devices_to_default; }
  RealTensors real_tensors() const { return *options.real_tensors; }
};

// Grants core and passes access to FakeTensorMode.
struct ModeAccess {
  static const std::shared_ptr<ModeState>& state(FakeTensorMode& mode) { return mode.state_; }
};
inline ModeState& state_of(FakeTensorMode& mode) { return *ModeAccess::state(mode); }

// A recording that continues after its scope (core/deferred/): calls outside any mode on one of its tensors are
// recorded too. `enter` returns the mode to run such a call under, on this thread, until `leave`.
class PersistentMode {
 public:
  virtual ~PersistentMode() = default;
  virtual ModeState& enter() = 0;
  virtual void leave() noexcept = 0;
};
using FindPersistentMode = std::shared_ptr<PersistentMode> (*)(const FakeTensorImpl&);
extern std::atomic<uint32_t> persistent_modes;                // number of live ones; mostly 0
extern std::atomic<FindPersistentMode> find_persistent_mode;  // may be nullptr; returns nullptr for other tensors

// Returns this thread's mode if it creates fake tensors; nullptr if there is none, or it only observes.
inline ModeState* active_fake_mode() {
  ModeState* mode = thread_state.mode;
  return mode != nullptr && mode->kind == ModeKind::kFake ? mode : nullptr;
}

inline bool may_have_persistent_mode(const ModeState* mode) {
  return mode == nullptr && persistent_modes.load(std::memory_order_relaxed) != 0;
}

void note_size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept;

}  // namespace shadowgraph
