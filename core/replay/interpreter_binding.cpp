// What the interpreter does before the first node: placeholders get the tensors that are bound to them, if they fit.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/fake/converter.h"
#include "core/fake/mode_state.h"
#include "core/replay/replay_program.h"
#include "core/replay/replayed_tensor.h"
#include "shadowgraph/replay.h"

namespace shadowgraph {

void Interpreter::check_devices() const {
  if (active_fake_mode() != nullptr) return;
  for (const auto& use : program_->devices) {
    if (use.device.is_cpu() || use.device.is_meta()) continue;
    const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(use.device.type())].load();
    if (guard == nullptr || (use.device.has_index() && use.device.index() >= guard->deviceCount())) {
      fail(use.node, "there is no " + use.device.str() +
                         " in this process; set InterpreterOptions::device to run everything on another device");
    }
  }
}

void Interpreter::check_binding(NodeId node, const at::Tensor& tensor) const {
  const ValueId id = graph_.results(node)[0].ref.value;
  const Value& value = graph_.value(id);
  const auto sizes = graph_.sizes(id);
  const auto strides = graph_.strides(id);
  const c10::Device device = options_.device ? *options_.device : value.device();
  const bool on_device =
      tensor.device().type() == device.type() &&
      (!device.has_index() || !tensor.device().has_index() || tensor.device().index() == device.index());
  if (!on_device) {
    fail(node, "the tensor bound to it is on " + tensor.device().str() + ", not on " + device.str() +
                   "; move it there, or set InterpreterOptions::device");
  }
  const auto same_strides = [&] {
    if (tensor.layout() != c10::Layout::Strided || tensor.numel() == 0) return true;
    for (size_t i = 0; i < strides.size(); ++i) {
      if (sizes[i] != 1 && tensor.strides()[i] != strides[i]) return false;
    }
    return true;
  };
  if (tensor.scalar_type() == value.dtype && std::ranges::equal(tensor.sizes(), sizes) && same_strides()) return;
  fail(node, "the tensor bound to it is " +
                 geometry_text(tensor.scalar_type(), tensor.sizes(),
                               tensor.layout() == c10::Layout::Strided ? tensor.strides() : c10::IntArrayRef()) +
                 ", not " + geometry_text(value.dtype, {sizes.data(), sizes.size()}, {strides.data(), strides.size()}) +
                 "; capture the graph with such a tensor, or set InterpreterOptions::check_bindings to false if the "
                 "program does not mind");
}

// Returns the run's own TensorImpl of a bound tensor: what changes its geometry must not change the caller's.
at::Tensor Interpreter::own_tensor(const at::Tensor& bound, bool copied) {
  at::Tensor tensor = bound;
  if (ModeState* mode = active_fake_mode()) tensor = fake_of_real(bound, mode);
  if (!copied || !tensor.has_storage()) return shallow_copy(tensor);
  const c10::Storage& storage = tensor.storage();
  auto& copy = copies_[storage.unsafeGetStorageImpl()];
  if (!copy) copy = copy_of_storage(tensor);
  at::Tensor own =
      with_geometry(tensor, copy, tensor.dtype(), tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return own;
}

void Interpreter::bind(const Bindings& bindings) {
  const auto& placeholders = program_->placeholders;
  const auto& ordered = bindings.ordered();
  if (!ordered.empty() && ordered.size() != program_->all_placeholders) {
    throw ReplayError("the graph has " + std::to_string(program_->all_placeholders) +
                          " parameters, buffers and inputs, but " + std::to_string(ordered.size()) +
                          " tensors are bound in order",
                      NodeId());
  }
  size_t found = 0;
  for (size_t i = 0; i < placeholders.size(); ++i) {
    const ReplayProgram::Step& step = program_->steps[placeholders[i].step];
    const auto named = bindings.named().find(*placeholders[i].name);
    at::Tensor tensor;
    if (named != bindings.named().end()) {
      tensor = named->second.tensor;
      found += named->second.must_exist ? 1 : 0;
    } else if (!ordered.empty()) {
      tensor = ordered[placeholders[i].position];
    }
    if (!tensor.defined()) {
      fail(step.node, "no tensor is bound to it; call Bindings::bind(\"" + *placeholders[i].name + "\", tensor)");
    }
    if (options_.check_bindings) check_binding(step.node, tensor);
    if (options_.autograd && active_fake_mode() == nullptr) {  // autograd counts writes itself
      values_[graph_.results(step.node)[0].ref.value.index] = tensor;
      continue;
    }
    const bool copied = options_.copy_inputs && step.written;
    // Below view tracking nothing counts writes, but autograd must notice them in what the caller holds.
    if (step.written && !copied && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    values_[graph_.results(step.node)[0].ref.value.index] = own_tensor(tensor, copied);
  }
  const auto wanted =
      std::ranges::count_if(bindings.named(), [](const auto& entry) { return entry.second.must_exist; });
  if (found != static_cast<size_t>(wanted)) {
    check_names(bindings);
  }
}

// Refuses a name that no placeholder has. In a slice, placeholders that it does not need may be bound as well.
void Interpreter::check_names(const Bindings& bindings) const {
  std::unordered_map<std::string_view, bool> known;
  for (const NodeId node : graph_.nodes()) {
    const TargetId target = graph_.node(node).target;
    if (target.index <= target_of(Builtin::kInput).index) known[graph_.text(graph_.arguments(node)[0].string)] = true;
  }
  for (const auto& [name, entry] : bindings.named()) {
    if (!entry.must_exist || known.contains(name)) continue;
    throw ReplayError("the graph has no placeholder '" + name +
                          "' (an input that shares the storage of an earlier one has none: it is an sg::alias of it)",
                      NodeId());
  }
}

}  // namespace shadowgraph
