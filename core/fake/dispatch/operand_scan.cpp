#include "core/fake/dispatch/operand_scan.h"

#include <ATen/core/enum_tag.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <typeinfo>

#include "core/fake/converter.h"
#include "core/fake/rules/registry.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

void refuse_write_while_deferring(const OperatorInfo& info, const at::Tensor& outside, const ModeState* mode) {
  if (mode == nullptr || !mode->reads_data) return;
  throw DeferredError(info.name + " would write to a tensor created outside of deferred_init (" +
                      c10::str(outside.scalar_type(), " ", outside.sizes()) + ")" + kOutsideWriteHint);
}

void OperandDevices::refuse(uint16_t position, c10::Device common, c10::Device other) const {
  std::string words;
  if (info_.op.hasTag(at::Tag::pointwise) || rule_ == DeviceRule::kIndexedWrite) {
    if (common.is_cpu()) std::swap(common, other);
    words = "found at least two devices, " + common.str() + " and " + other.str() + "!";
  } else {
    const std::string backend =
        common.is_cpu() ? c10::DeviceTypeName(other.type()) : c10::DeviceTypeName(common.type());
    const bool structured = has_dedicated_meta_kernel(info_.op);
    const auto& name = info_.op.operator_name();
    const std::string base = name.name.substr(name.name.find("::") + 2);
    words = "got " + info_.op.schema().arguments()[position].name() + " is on " + other.str() +
            ", different from other tensors on " + common.str() + " (when checking argument in method wrapper_" +
            backend + "_" + (structured ? "" : name.overload_name + "_") + base + ")";
  }
  throw Error(info_.name + ": Expected all tensors to be on the same device, but " + words +
              " Move one of them with .to(); only 0-dimensional CPU tensors can be mixed with other devices" +
              (info_.is_user_defined ? ", unless register_devices allows it for the operator" : ""));
}

void OperandDevices::refuse_index_device() const {
  throw Error(info_.name + ": indices should be either on cpu or on the same device as the indexed tensor (" +
              common_.device.str() + ")");
}

// Argument 0 is written, 1 holds the indices, which are moved to its device, 2 the values. The values may be a 0-dim
// tensor on any device, or a CPU tensor of one element if the index is a mask: the call is then masked_fill_.
void OperandDevices::see_indexed_write(const FakeTensorImpl& fake, c10::Device device, uint16_t position) {
  if (position == 0) {
    common_.known = true;
    common_.device = device;
  } else if (position == 1) {
    const c10::ScalarType dtype = c10::typeMetaToScalarType(fake.dtype());
    masked_ = indices_++ == 0 && (dtype == at::kBool || dtype == at::kByte) && device == common_.device;
  } else if (position == 2 && device != common_.device) {
    const bool fills = masked_ && device.is_cpu() && fake.numel() == 1;
    if (fake.rank() != 0 && !fills) refuse(position, common_.device, device);
  }
}

static bool is_adopted(const at::Tensor& real, ModeState* mode) {
  if (mode == nullptr) return false;
  const std::lock_guard lock(mode->memo_mutex);
  if (mode->memo.adopted.empty()) return false;
  if (mode->memo.adopted.count(real.unsafeGetTensorImpl()) != 0) return true;
  // Any tensor on the same storage counts: optimizers write to `p.data()`.
  const c10::StorageImpl* storage = real.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return std::any_of(mode->memo.adopted.begin(), mode->memo.adopted.end(), [&](const auto& entry) {
    return entry.first->unsafe_storage().unsafeGetStorageImpl() == storage;
  });
}

bool writes_reach_real_tensor(const at::Tensor& fake, ModeState* mode) {
  const auto has_version_of_real = [](const at::Tensor& tensor) { return as_fake(tensor)->has_version_of_real(); };
  if (has_version_of_real(fake)) return true;
  const auto* view = torch::autograd::impl::get_view_autograd_meta(fake);
  if (view == nullptr || !view->has_bw_view()) return false;
  const at::Tensor& base = view->get_backward_view().base_;
  if (is_fake(base)) return has_version_of_real(base);
  // The base has been materialized since (core/deferred/), which reports writes to its earlier deferred views itself.
  const bool was_fake = typeid(*base.unsafeGetTensorImpl()) == typeid(FakeTensorImpl);
  return was_fake ? as_fake(fake)->is_view_of_real() : !is_adopted(base, mode);
}

[[noreturn]] static void refuse_write_through_view(const OperatorInfo& info, const at::Tensor& fake,
                                                   const ModeState* mode) {
  refuse_write_while_deferring(info, fake, mode);
  throw UnsupportedError(
      info.name + " would write to a view (" + c10::str(fake.sizes()) +
      ") of a real tensor while fake tensors are in use; nothing was written. Create the view from "
      "the tensor's fake (FakeTensorMode::from_real), convert its module with fakeify, or run this line "
      "under an UnfakeGuard");
}

void OperandScan::run(torch::jit::Stack& stack, size_t begin) {
  for (const uint16_t position : info_.tensor_arguments) {
    position_ = position;
    written_ = info_.writes && is_in(info_.written_arguments, position);
    c10::IValue& argument = stack[begin + position];
    if (argument.isTensor()) {
      visit_slot(argument);
    } else if (argument.isTensorList()) {
      visit_list(argument);
    } else if (argument.isList()) {
      visit_optional_list(argument);
    }
  }
  devices_.check_written();
}

void OperandScan::visit_slot(c10::IValue& slot) {
  const at::Tensor& tensor = slot.toTensor();
  if (!tensor.defined()) return;
  if (const FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) {
    if (written_ && writes_reach_real_tensor(tensor, mode_)) refuse_write_through_view(info_, tensor, mode_);
    devices_.see(*fake, position_, 0, written_);
  } else if (auto converted = converted_operand(tensor)) {
    devices_.see(*as_fake(*converted), position_, 0, written_);
    slot = std::move(*converted);
  }
}

void OperandScan::visit_list(c10::IValue& slot) {
  bool all_fake = true;
  size_t i = 0;
  for (const c10::IValue& element : slot.toListRef()) {
    const size_t index = i++;
    const at::Tensor& tensor = element.toTensor();
    if (!tensor.defined()) continue;
    if (const FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) {
      if (written_ && writes_reach_real_tensor(tensor, mode_)) refuse_write_through_view(info_, tensor, mode_);
      devices_.see(*fake, position_, index, written_);
    } else {
      all_fake = false;
    }
  }
  if (all_fake) return;
  c10::List<at::Tensor> replaced;
  for (const c10::IValue& element : slot.toListRef()) {
    at::Tensor tensor = element.toTensor();
    if (tensor.defined() && !is_fake(tensor)) {
      if (auto converted = converted_operand(tensor)) {
        devices_.see(*as_fake(*converted), position_, replaced.size(), written_);
        tensor = std::move(*converted);
      }
    }
    replaced.push_back(std::move(tensor));
  }
  slot = std::move(replaced);
}

void OperandScan::visit_optional_list(c10::IValue& slot) {
  c10::List<c10::IValue> list = slot.toList();
  for (size_t i = 0; i < list.size(); ++i) {
    const c10::IValue element = list.get(i);
    if (element.isTensorList()) {  // lists of lists: all_gather
      c10::IValue inner = element;
      visit_list(inner);
      list.set(i, std::move(inner));
      continue;
    }
    if (!element.isTensor() || !element.toTensor().defined()) continue;
    if (const FakeTensorImpl* fake = as_fake(element.toTensor().unsafeGetTensorImpl())) {
      devices_.see(*fake, position_, i, written_);
    } else if (auto converted = converted_operand(element.toTensor())) {
      devices_.see(*as_fake(*converted), position_, i, written_);
      list.set(i, std::move(*converted));
    }
  }
}

std::optional<at::Tensor> OperandScan::converted_operand(const at::Tensor& real) {
  if (real.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
  const bool adopted = is_adopted(real, mode_);
  const bool changes_geometry = info_.inplace_view && (written_ || position_ == 0);
  if ((written_ && !adopted) || changes_geometry) refuse_write_while_deferring(info_, real, mode_);
  if (changes_geometry) {
    throw UnsupportedError(info_.name + " would change the sizes or strides of a real tensor (" +
                           c10::str(real.sizes()) +
                           ") while fake tensors are in use; nothing was changed. Convert it first with "
                           "FakeTensorMode::from_real, or run this line under an UnfakeGuard");
  }
  if (written_ && !adopted) {
    throw UnsupportedError(info_.name + " would write to a real tensor (" + c10::str(real.sizes()) +
                           ") while fake tensors are in use; nothing was written. Create the tensor inside the mode, "
                           "convert it with FakeTensorMode::from_real (a module with fakeify), or run this line under "
                           "an UnfakeGuard");
  }
  if (mode_ != nullptr && mode_->real_tensors() == RealTensors::kRefuse && !adopted && !info_.lifts) {
    throw UnsupportedError(info_.name + " got a real tensor (" + c10::str(real.sizes()) +
                           "), which this mode does not allow (RealTensors::kRefuse). Convert it with "
                           "FakeTensorMode::from_real, or run this line under an UnfakeGuard");
  }
  if (!adopted) {
    views_real_ |= info_.is_view;
    block_gradients_into(real);
  }
  return fake_of_real(real, mode_);  // on the default device if the mode maps devices
}

}  // namespace shadowgraph
