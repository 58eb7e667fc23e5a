// Turns tensors and arguments of calls into values of the graph.
#include "core/calls/call_record.h"
#include "core/calls/own_generators.h"
#include "core/capture/recorder.h"
#include "core/capture/wrapper_parts.h"
#include "core/dispatch/operator_info.h"
#include "core/fake/converter.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/process_groups.h"
#include "core/fake/wrapper_tensors.h"
#include "ir/records.h"

namespace shadowgraph {

// ---- Tensors to values

bool Recorder::matches(const Value& value, ValueId id, const FakeTensorImpl& fake) const {
  const auto equal = [](std::span<const int64_t> a, c10::IntArrayRef b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  return value.offset == fake.storage_offset() && value.dtype == fake.dtype().toScalarType() &&
         equal(graph_.sizes(id), fake.sizes()) && equal(graph_.strides(id), fake.strides()) &&
         value.storage == find_storage_id(*fake.unsafe_storage().unsafeGetStorageImpl(), session_);
}

ValueId Recorder::value_of(FakeTensorImpl& fake) {
  if (fake.session() == session_) {
    Value& value = mutable_value(graph_, fake.value());
    if (matches(value, fake.value(), fake)) {
      if (!value.requires_grad) value.requires_grad = fake.requires_grad();
      return fake.value();
    }
  }
  const StorageId storage = find_storage_id(*fake.unsafe_storage().unsafeGetStorageImpl(), session_);
  check_has_memory(fake);
  if (!storage.valid()) {
    const c10::StorageImpl* const unmet = fake.unsafe_storage().unsafeGetStorageImpl();
    const auto grown = growths_.find(unmet);
    if (C10_UNLIKELY(grown != growths_.end() && is_bound(*unmet, session_))) {
      return grown_before(fake, growths_.extract(grown).mapped());
    }
    return placeholder_for(fake);
  }

  const ValueId root = storage_root_[storage.index];
  if (matches(graph_.value(root), root, fake)) {
    fake.bind(session_, root);
    return root;
  }
  const Argument source[] = {Argument::of_value(root)};
  const NodeId node = graph_.append(target_of(Builtin::kAlias), source);
  mutable_node(graph_, node).region = materialise(regions_.size() - 1);
  mutable_node(graph_, node).phase = phase_.valid() ? phase_ : Graph::kForward;
  if (!recomputations_.empty()) mutable_node(graph_, node).phase = Graph::kBackward;
  const ValueId value = new_value(node, fake, storage);
  const Argument result[] = {Argument::of_value(value)};
  graph_.set_results(node, result);
  if (!body_.valid()) body_ = node;
  last_ = node;
  return value;
}

// Records set_ with a storage, which no value is. `after`, its self as it left it, says which part of which storage it
// took. So the call is recorded as set_ with a tensor, an alias of that storage. A storage that no tensor of the
// program had stays opaque.
TargetId Recorder::set_from_storage(const OperatorInfo& info, FakeTensorImpl& after) {
  const c10::StorageImpl* storage = after.unsafe_storage().unsafeGetStorageImpl();
  if (!find_storage_id(*storage, session_).valid()) {
    for (auto& [real, entry] : mode_.memo.tensors) {
      FakeTensorImpl* fake = as_fake(entry.fake);
      if (fake == nullptr || fake->unsafe_storage().unsafeGetStorageImpl() != storage) continue;
      value_of(*fake);
      break;
    }
  }
  if (!find_storage_id(*storage, session_).valid()) return target_of_operator(info);
  const Argument self = arguments_[0];
  after.bind(0, ValueId());
  arguments_ = {self, Argument::of_value(value_of(after))};
  static const auto set_tensor = c10::Dispatcher::singleton().findSchemaOrThrow("aten::set_", "source_Tensor");
  return target_of_operator(OperatorInfo::of(set_tensor));
}

namespace {

// A number that libtorch made a tensor of for this call (prim::NumToTensor) may be gone by now: what it was is known.
std::optional<at::Tensor> value_of_converted(FakeTensorImpl& fake, const ModeState& mode) {
  if (fake.mode_id() != mode.id || mode.id == 0) return std::nullopt;  // made before this capture
  const at::Tensor tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(&fake));
  if (!is_known(tensor) || !assumptions_of(tensor).empty()) return std::nullopt;
  const auto value = known_value(tensor);
  const RealCalls real;
  return value ? std::optional(value->clone()) : std::nullopt;
}

}  // namespace

ValueId Recorder::placeholder_for(FakeTensorImpl& fake) {
  const at::Tensor real = real_of_fake(fake, mode_);
  auto name = names_.find(&fake);
  if (name == names_.end() && real.defined()) name = names_.find(real.unsafeGetTensorImpl());

  Builtin kind = Builtin::kInput;
  Argument argument;
  if (name != names_.end()) {
    kind = name->second.kind;
    argument = graph_.string_argument(name->second.name);
  } else if (real.defined()) {
    kind = Builtin::kConstant;
    argument = Argument::of_constant(graph_.add_constant(real));
  } else if (const auto value = value_of_converted(fake, mode_)) {
    kind = Builtin::kConstant;
    argument = Argument::of_constant(graph_.add_constant(*value));
  } else {
    std::string unused;
    do {
      unused = "input" + std::to_string(inputs_++);
    } while (input_names_.contains(unused));
    argument = graph_.string_argument(unused);
  }
  const Argument arguments[] = {argument};
  const NodeId node = graph_.insert_before(body_, target_of(kind), arguments);

  Storage storage = storage_of(fake, node);
  static constexpr StorageKind kKinds[] = {StorageKind::kParameter, StorageKind::kBuffer, StorageKind::kInput,
                                           StorageKind::kConstant};
  storage.kind = kKinds[static_cast<size_t>(kind)];
  const StorageId id = graph_.add_storage(storage);
  bind_storage(*fake.unsafe_storage().unsafeGetStorageImpl(), id, c10::intrusive_ptr<SessionLink>::reclaim_copy(link_));

  const ValueId value = new_value(node, fake, id);
  const Argument result[] = {Argument::of_value(value)};
  graph_.set_results(node, result);
  storage_root_.resize(size_t{id.index} + 1);
  storage_root_[id.index] = value;
  graph_.set_requires_grad(value, fake.requires_grad());
  if (mode_.watch_size_reads && kind == Builtin::kInput) fake.watch_size_reads();
  if (kind == Builtin::kParameter || kind == Builtin::kBuffer) {
    const size_t dot = name->second.name.rfind('.');
    owners_.resize(std::max<size_t>(owners_.size(), size_t{id.index} + 1));
    if (dot != std::string::npos) owners_[id.index] = graph_.intern(name->second.name.substr(0, dot));
  }
  return value;
}

ValueId Recorder::new_value(NodeId producer, FakeTensorImpl& fake, StorageId storage) {
  const ValueId value = graph_.new_tensor(producer, spec_of(fake, storage));
  fake.bind(session_, value);
  return value;
}

StorageId Recorder::storage_of_result(FakeTensorImpl& fake, NodeId node) {
  c10::StorageImpl& impl = *fake.unsafe_storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<int64_t>(impl.nbytes());
  const StorageId known = find_storage_id(impl, session_);
  if (known.valid()) {
    // resize_ may have grown it.
    mutable_storage(graph_, known).bytes = std::max(graph_.storage(known).bytes, bytes);
    return known;
  }
  const StorageId id = graph_.add_storage(storage_of(fake, node));
  bind_storage(impl, id, c10::intrusive_ptr<SessionLink>::reclaim_copy(link_));
  storage_root_.resize(size_t{id.index} + 1);
  return id;
}

// ---- Arguments and results

Argument Recorder::argument_of_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return Argument::none();
  if (FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) return Argument::of_value(value_of(*fake));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return number_of(graph_, tensor);
  if (C10_UNLIKELY(is_wrapper(tensor))) {
    c10::SmallVector<Argument, 2> parts;
    for (const at::Tensor& part : parts_of(tensor)) parts.push_back(argument_of_tensor(part));
    if (!parts.empty()) return parts.size() == 1 ? parts[0] : graph_.make_list({parts.data(), parts.size()});
  }
  return Argument::of_value(value_of(*as_fake(fake_of_real(tensor, &mode_))));
}

Argument Recorder::argument_of(const CallArgument& value) {
  using Kind = CallArgument::Kind;
  c10::SmallVector<Argument, 8> elements;
  switch (value.kind()) {
    case Kind::kBoxed:
      return argument_of(value.boxed());
    case Kind::kNone:
      return Argument::none();
    case Kind::kTensor:
      return argument_of_tensor(value.tensor());
    case Kind::kTensors:
      for (const at::Tensor& element : value.tensors()) elements.push_back(argument_of_tensor(element));
      break;
    case Kind::kTensorRefs:
      for (const at::Tensor& element : value.tensor_refs()) elements.push_back(argument_of_tensor(element));
      break;
    case Kind::kOptionalTensors:
      return argument_of(c10::IValue(value.optional_tensors()));
    case Kind::kInt:
      return Argument::of_int(value.integer());
    case Kind::kInts:
      return graph_.int_list({value.ints().data(), value.ints().size()});
    case Kind::kFloat:
      return Argument::of_float(value.real());
    case Kind::kBool:
      return Argument::of_bool(value.boolean());
    case Kind::kBools:
      for (const bool element : value.bools()) elements.push_back(Argument::of_bool(element));
      break;
    case Kind::kScalar:
      return argument_of(c10::IValue(value.scalar()));
    case Kind::kString:
      return graph_.string_argument(value.string());
    case Kind::kDevice:
      return Argument::of_device(value.device());
    case Kind::kGenerator:
      return shadowgraph::argument_of(value.generator());
  }
  return graph_.make_list({elements.data(), elements.size()});
}

Argument Recorder::argument_of(const c10::IValue& value) {
  return shadowgraph::argument_of(graph_, value, [this](const at::Tensor& t) { return argument_of_tensor(t); });
}

Argument Recorder::result_of_tensor(const at::Tensor& tensor, NodeId node) {
  FakeTensorImpl* fake = as_fake(tensor);
  if (fake == nullptr) return Argument::none();
  const StorageId storage = storage_of_result(*fake, node);
  const ValueId id = new_value(node, *fake, storage);
  if (!storage_root_[storage.index].valid()) storage_root_[storage.index] = id;
  return Argument::of_value(id);
}

Argument Recorder::result_of(const CallArgument& value, NodeId node) {
  using Kind = CallArgument::Kind;
  switch (value.kind()) {
    case Kind::kBoxed:
      return result_of(value.boxed(), node);
    case Kind::kTensor:
      return result_of_tensor(value.tensor(), node);
    case Kind::kTensors: {
      c10::SmallVector<Argument, 8> elements;
      for (const at::Tensor& element : value.tensors()) elements.push_back(result_of_tensor(element, node));
      return graph_.make_list({elements.data(), elements.size()});
    }
    case Kind::kInt:
      return Argument::of_value(graph_.new_scalar(node, ValueKind::kInt));
    case Kind::kFloat:
      return Argument::of_value(graph_.new_scalar(node, ValueKind::kFloat));
    case Kind::kBool:
      return Argument::of_value(graph_.new_scalar(node, ValueKind::kBool));
    default:
      return Argument::none();
  }
}

Argument Recorder::result_of(const c10::IValue& value, NodeId node) {
  return shadowgraph::result_of(graph_, node, value, [&](const at::Tensor& t) { return result_of_tensor(t, node); });
}

TargetId Recorder::target_of_operator(const OperatorInfo& info) {
  if (info.id >= targets_.size()) targets_.resize(info.id + 64);
  TargetId& target = targets_[info.id];
  if (!target.valid()) target = graph_.intern_target(info.target);
  return target;
}

}  // namespace shadowgraph
