// Takes what a function sees besides its inputs (random state, autocast) when it runs, and puts it back when it runs
// again. Internal to core/checkpoint.
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

// Until its end, this thread has that state.
class AutocastState::Restored {
 public:
  explicit Restored(const AutocastState& state);
  ~Restored();
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  const AutocastState before_;
};

// States of the default generators of the CPU and of the inputs' CUDA devices. Fake tensors draw no numbers, so a
// FakeTensorMode has no state. A capture has the tensors that would hold it, and the graph says so.
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
