// Walks once over the tensor operands of a boxed call: replaces the real ones by fakes and judges on which device the
// results belong. Internal to core/.
#pragma once

#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "core/fake/dispatch/operator_info.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"

namespace shadowgraph {

// Ends the error that refuses a described program a write to a tensor from outside (core/deferred/).
inline constexpr const char* kNotWrittenFromOutside =
    "; nothing was written. Write to a clone of it, or materialise what is described and write outside of "
    "deferred_init";

// Throws that error, DeferredError, if a program is being described.
void refuse_write_while_describing(const OperatorInfo& info, const at::Tensor& outside, const ModeState* mode);

// Judges the devices of the operands by the operator's rule (OperatorInfo::device_rule, or another one).
class OperandDevices {
 public:
  OperandDevices(const OperatorInfo& info, DeviceRule rule) : info_(info), rule_(rule) {}

  void see(const FakeTensorImpl& fake, uint16_t position, size_t slot, bool written) {
    const c10::Device device = fake.pretended_device();
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
  // Checks, after all operands, that an operand that is written is where the results are.
  void check_written() const {
    if (rule_ == DeviceRule::kCommon) common_.check_written(*this);
    for (const Agreement& slot : slots_) slot.check_written(*this);
  }

  bool known() const { return common_.known; }
  c10::Device or_default(const ModeState* mode) const {
    return known() ? common_.device : mode != nullptr ? mode->default_device : c10::Device(c10::kCPU);
  }
  // Returns where result `slot` of a list belongs.
  c10::Device of_slot(size_t slot, c10::Device otherwise) const {
    return slot < slots_.size() && slots_[slot].known ? slots_[slot].device : otherwise;
  }

 private:
  // Refuses in eager's own words: those of TensorIterator for pointwise operators, those of the generated wrappers for
  // others.
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
  bool masked_ = false;  // an indexed write whose one index is a mask
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
  // Says whether the call makes views of a real tensor.
  bool views_real() const { return views_real_; }

 private:
  void visit_slot(c10::IValue& slot);
  void visit_list(c10::IValue& slot);
  void visit_optional_list(c10::IValue& slot);
  // Returns nothing for what stays as it is: a number that the C++ API wrapped (x * 2), which Meta kernels take as it
  // is.
  std::optional<at::Tensor> converted_operand(const at::Tensor& real);

  const OperatorInfo& info_;
  ModeState* mode_;
  OperandDevices devices_;
  uint16_t position_ = 0;
  bool written_ = false;
  bool views_real_ = false;
};

// Says whether a write to the fake would reach a real tensor's version and history, because autograd made it a view of
// one. Real tensors that stand for their fakes (fakeify) do not count.
bool writes_reach_real(const at::Tensor& fake, ModeState* mode);
// Answers quickly: false if writes do not reach any.
inline bool writes_may_reach_real(const at::Tensor& fake) {
  return fake.unsafeGetTensorImpl()->autograd_meta() != nullptr || as_fake(fake)->has_version_of_real();
}

}  // namespace shadowgraph
