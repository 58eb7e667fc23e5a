// What an active mode consists of. Internal to core/; programs use FakeTensorMode and CaptureSession.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <unordered_map>

#include "core/fake/call_observer.h"
#include "core/fake/data_sizes.h"
#include "core/fake/device_profile.h"

namespace shadowgraph {

class SavedTensorObserver;

enum class ModeKind : uint8_t {
  kFake,     // factories make fakes, real inputs are converted
  kObserve,  // nothing is faked: real calls are shown to the observer (tests compare against this)
};

// Real tensors met so far and their fakes. Weak on the real side: nothing real is kept alive.
struct ConversionMemo {
  struct StorageEntry {
    c10::weak_intrusive_ptr<c10::StorageImpl> real{c10::intrusive_ptr<c10::StorageImpl>()};
    c10::Storage meta;
  };
  struct TensorEntry {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> real{
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    at::Tensor fake;
  };
  std::unordered_map<const c10::StorageImpl*, StorageEntry> storages;
  std::unordered_map<const c10::TensorImpl*, TensorEntry> tensors;       // by the real tensor
  std::unordered_map<const c10::TensorImpl*, c10::TensorImpl*> origins;  // fake -> real, same entries
};

struct ModeState {
  ModeKind kind = ModeKind::kFake;
  c10::Device default_device = c10::Device(c10::DeviceType::CPU);
  DeviceProfile profile;
  CallObserver* observer = nullptr;
  SavedTensorObserver* saved_tensors = nullptr;
  bool watch_size_reads = false;
  bool map_devices_to_default = false;  // TorchScript traces carry the device they were made on
  ConversionMemo memo;
  DataSizes data_sizes;
};

void note_size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept;

}  // namespace shadowgraph
