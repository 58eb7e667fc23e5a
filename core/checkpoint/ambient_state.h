// What a function sees besides its inputs, taken when it runs and put back when it runs again: random state and
// autocast. Internal to core/checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <utility>
#include <vector>

namespace shadowgraph {

class AutocastState {
 public:
  AutocastState();  // that of this thread
  class Restored;

 private:
  void set() const;
  struct OfDevice {
    c10::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::array<OfDevice, 2> devices_;
  bool cache_enabled_;
};

// Until its end, that state on this thread.
class AutocastState::Restored {
 public:
  explicit Restored(const AutocastState& state);
  ~Restored();
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  const AutocastState before_;
};

// States of the default generators of the CPU and of the inputs' CUDA devices. Fake tensors draw no numbers: under a
// FakeTensorMode there is no state, but in a capture there are the tensors that would hold it, and the graph says so.
class RandomStates {
 public:
  RandomStates() = default;  // none
  static RandomStates take(const std::vector<at::Tensor>& inputs);

  class Restored {
   public:
    explicit Restored(const RandomStates& states);
    ~Restored();
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;

   private:
    std::vector<std::pair<c10::Device, at::Tensor>> before_;
  };

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

}  // namespace shadowgraph
