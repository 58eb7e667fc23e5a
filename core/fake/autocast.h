// torch.autocast. The header of libtorch that has it brings all of ATen along; only autocast.cpp pays for that.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace shadowgraph {

bool is_autocast_available(c10::DeviceType device);
bool is_autocast_enabled(c10::DeviceType device);

// While it lives, autocast of this thread is as given, on one kind of device. As torch.autocast enters and leaves: copies
// of weights that were cast are kept until the outermost scope ends.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype, bool enabled = true, bool cache = true);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_;
  bool cache_;
  c10::ScalarType dtype_;
};

}  // namespace shadowgraph
