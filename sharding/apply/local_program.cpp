#include "sharding/apply/local_program.h"

#include <algorithm>
#include <utility>

#include "core/calls/fake_values.h"
#include "ir/records.h"

namespace shadowgraph {

LocalProgram::LocalProgram(const Graph& read, Graph& made)
    : rebuild(read, made), emitter(read, made), read_(read), made_(made), calls_(made) {}

void LocalProgram::stand_for(NodeId read) {
  model_ = read;
  const NodeId forward = read_.node(read).forward;
  emitter.stand_for(read, forward.valid() ? rebuild.made(forward) : NodeId());
}

NodeId LocalProgram::append(TargetId target, std::span<const Argument> arguments) {
  const NodeId node = emitter.append(target, arguments);
  if (!redistribution_.empty()) made_.set_note(node, "redistribution", redistribution_);
  return node;
}

torch::jit::Stack LocalProgram::call(NodeId node) {
  torch::jit::Stack stack;
  calls_.push_arguments(
      node, [this](ValueId value) -> const at::Tensor& { return tensors_[value]; }, stack);
  std::optional<c10::Device> device;
  read_.for_each_output(model_, [&](ValueId value) {
    if (!device && read_.value(value).kind == ValueKind::kTensor) device = read_.value(value).device();
  });
  calls_.call(node, device, stack);
  return stack;
}

ValueId LocalProgram::new_value(NodeId node, const at::Tensor& fake, ValueId like) {
  const auto bytes = static_cast<int64_t>(fake.storage().nbytes());
  const auto [known, is_new] = storages_.try_emplace(fake.storage().unsafeGetStorageImpl());
  if (is_new) {
    const StorageId old = like.valid() ? read_.value(like).storage : StorageId();
    if (old.valid() && !std::as_const(selves_)[old].valid()) {
      known->second = rebuild.storage(old, node);
      selves_[old] = known->second;
    } else {
      known->second = made_.add_storage({.born = node});
    }
    Storage& storage = mutable_storage(made_, known->second);
    storage.bytes = bytes;
    storage.device_type = fake.device().type();
    storage.device_index = fake.device().index();
  } else {
    Storage& storage = mutable_storage(made_, known->second);
    storage.bytes = std::max(storage.bytes, bytes);
  }
  const ValueId value = made_.new_tensor(node, {.dtype = fake.scalar_type(),
                                                .sizes = {fake.sizes().data(), fake.sizes().size()},
                                                .strides = {fake.strides().data(), fake.strides().size()},
                                                .storage = known->second,
                                                .offset = fake.storage_offset(),
                                                .device = fake.device(),
                                                .requires_grad = like.valid() && read_.value(like).requires_grad});
  tensors_[value] = fake;
  return value;
}

// ---------------------------------------------------------------------------------------------------------------------
// Nodes of a redistribution

ValueId LocalProgram::call_for_one(const char* name, std::initializer_list<Argument> arguments) {
  return only_result(append(emitter.target(name), std::span<const Argument>(arguments.begin(), arguments.size())));
}

ValueId LocalProgram::only_result(NodeId node) {
  const torch::jit::Stack results = call(node);
  const ValueId value = new_value(node, results.front().toTensor());
  const Argument result = Argument::of_value(value);
  made_.set_results(node, {&result, 1});
  return value;
}

ValueId LocalProgram::view(ValueId source, std::span<const int64_t> sizes) {
  if (std::ranges::equal(made_.sizes(source), sizes)) return source;
  return call_for_one("aten::view", {Argument::of_value(source), made_.int_list(sizes)});
}

ValueId LocalProgram::permute(ValueId source, std::span<const int64_t> order) {
  return call_for_one("aten::permute", {Argument::of_value(source), made_.int_list(order)});
}

ValueId LocalProgram::select(ValueId source, int64_t dim, int64_t index) {
  return call_for_one("aten::select.int", {Argument::of_value(source), Argument::of_int(dim), Argument::of_int(index)});
}

ValueId LocalProgram::slice(ValueId source, int64_t dim, int64_t begin, int64_t end) {
  return call_for_one("aten::slice.Tensor", {Argument::of_value(source), Argument::of_int(dim), Argument::of_int(begin),
                                             Argument::of_int(end), Argument::of_int(1)});
}

ValueId LocalProgram::contiguous_clone(ValueId source) {
  return call_for_one("aten::clone", {Argument::of_value(source),
                                      Argument::of_int(static_cast<int64_t>(c10::MemoryFormat::Contiguous))});
}

ValueId LocalProgram::contiguous(ValueId source) {
  return made_.is_contiguous(source) ? source : contiguous_clone(source);
}

ValueId LocalProgram::divided(ValueId source, int64_t by) {
  return call_for_one("aten::div.Tensor", {Argument::of_value(source), Argument::of_int(by)});
}

ValueId LocalProgram::collective(const char* name, std::initializer_list<Argument> arguments,
                                 std::span<const int64_t> sizes) {
  const NodeId node = append(emitter.target(name), std::span<const Argument>(arguments.begin(), arguments.size()));
  const at::Tensor& input = tensors_[arguments.begin()->ref.value];
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  int64_t bytes = static_cast<int64_t>(input.itemsize());
  for (const int64_t size : sizes) bytes *= size;
  const at::Tensor fake =
      fake_on(fake_storage(bytes), input.scalar_type(), sizes, strides, /*offset=*/0, input.device());
  const ValueId sent = new_value(node, fake);
  const Argument result = Argument::of_value(sent);
  made_.set_results(node, {&result, 1});
  const NodeId wait = append(emitter.target("_c10d_functional::wait_tensor"), {&result, 1});
  const Argument waited = Argument::of_value(new_value(wait, fake));
  made_.set_results(wait, {&waited, 1});
  return waited.ref.value;
}

}  // namespace shadowgraph
