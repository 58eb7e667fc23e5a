// Visits the tensor operands of a boxed call once: converts real ones to fakes and determines the device of the
// results. Internal to core/.
#pragma once

#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "core/fake/dispatch/operator_info.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"

namespace shadowgraph {

// End of the error for a deferred program that writes to a tensor from outside (core/deferred/).
inline constexpr const char* kOutsideWriteHint =
    "; nothing was written. Write to a clone of it, or materialize the deferred tensors first and write outside of "
    "deferred_init";

// Throws that DeferredError if the active mode defers execution.
void refuse_write_while_deferring(const OperatorInfo& info, const at::Tensor& outside, const ModeState* mode);

// Checks the devices of the operands against a device rule.
class OperandDevices {
 public:
  OperandDevices(const OperatorInfo& info, DeviceRule rule) : info_(info), rule_(rule) {}

  void see(const FakeTensorImpl& fake, uint16_t position, size_t slot, bool written) {
    const c10::Device device = fake.simulated_device();
    const bool cpu_scalar = device.is_cpu() && fake.rank() == 0 && info_.mixes_cpu_scalars;
    if (rule_ == DeviceRule::kPerSlot) {
      if (slots_.size() <= slot) slots_.resize(slot + 1);
      slots_[slot].see(*this, device, position, cpu_scalar, written);
    }
    if (rule_ == DeviceRule::kPerSlot && common_.known) return;
    const bool first = !common_.known;
    if (rule_ == DeviceRule::kIndexedWrite) {
      see_indexed_write(fake, device, position);
    } else if (first || rule_ == DeviceRule::kCommon) {
      common_.see(*this, device, position, cpu_scalar, written);
    } else if (rule_ == DeviceRule::kFirstOrCpu && device != common_.device && !device.is_cpu()) {
      refuse_index_device();
    }
  }
  // Called after all operands: a written operand must be on the device of the results.
  void check_written() const {
    if (rule_ == DeviceRule::kCommon) common_.check_written(*this);
    for (const Agreement& slot : slots_) slot.check_written(*this);
  }

  bool known() const { return common_.known; }
  c10::Device or_default(const ModeState* mode) const {
    return known() ? common_.device : mode != nullptr ? mode->default_device : c10::Device(c10::kCPU);
  }
  // Returns the device of element `slot` of a list result.
  c10::Device of_slot(size_t slot, c10::Device otherwise) const {
    return slot < slots_.size() && slots_[slot].known ? slots_[slot].device : otherwise;
  }

 private:
  // Throws with eager's messages: TensorIterator's for pointwise operators, the generated wrappers' for others.
  [[noreturn]] void refuse(uint16_t position, c10::Device common, c10::Device other) const;
  [[noreturn]] void refuse_index_device() const;
  void see_indexed_write(const FakeTensorImpl& fake, c10::Device device, uint16_t position);

  struct Agreement {
    c10::Device device = c10::Device(c10::kCPU);
    c10::Device written = c10::Device(c10::kCPU);
    uint16_t written_position = 0;
    bool known = false;
    bool scalar = false;
    bool is_written = false;

    void see(const OperandDevices& all, c10::Device seen, uint16_t position, bool cpu_scalar, bool writes) {
      if (writes) {
        is_written = true;
        written = seen;
        written_position = position;
      }
      if (!known) {
        known = true;
        device = seen;
        scalar = cpu_scalar;
        return;
      }
      if (seen == device || cpu_scalar) return;
      if (!scalar) all.refuse(position, device, seen);
      device = seen;
      scalar = false;
    }
    void check_written(const OperandDevices& all) const {
      if (is_written && written != device) all.refuse(written_position, device, written);
    }
  };

  const OperatorInfo& info_;
  const DeviceRule rule_;
  bool masked_ = false;  // an indexed write whose only index is a mask
  int indices_ = 0;
  Agreement common_;
  std::vector<Agreement> slots_;
};

class OperandScan {
 public:
  OperandScan(const OperatorInfo& info, ModeState* mode, DeviceRule rule)
      : info_(info), mode_(mode), devices_(info, rule) {}

  void run(torch::jit::Stack& stack, size_t begin);
  const OperandDevices& devices() const { return devices_; }
  // Returns whether the call creates views of a real tensor.
  bool views_real() const { return views_real_; }

 private:
  void visit_slot(c10::IValue& slot);
  void visit_list(c10::IValue& slot);
  void visit_optional_list(c10::IValue& slot);
  // Returns nullopt for wrapped numbers (x * 2), which Meta kernels take as they are.
  std::optional<at::Tensor> converted_operand(const at::Tensor& real);

  const OperatorInfo& info_;
  ModeState* mode_;
  OperandDevices devices_;
  uint16_t position_ = 0;
  bool written_ = false;
  bool views_real_ = false;
};

// Returns whether a write to the fake would change the version and history of a real tensor, because autograd made it a
// view of one. Tensors of a fakeified module do not count.
bool writes_reach_real_tensor(const at::Tensor& fake, ModeState* mode);
// A fast check: false if writes reach no real tensor.
inline bool writes_may_reach_real(const at::Tensor& fake) {
  return fake.unsafeGetTensorImpl()->autograd_meta() != nullptr || as_fake(fake)->has_version_of_real();
}

}  // namespace shadowgraph
