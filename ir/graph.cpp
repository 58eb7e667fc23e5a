#include "ir/graph.h"

#include <c10/core/ScalarType.h>

namespace shadowgraph {

std::string_view to_string(StorageKind kind) {
  static constexpr std::string_view kNames[] = {"parameter",  "buffer",   "input",           "constant",
                                                "activation", "gradient", "optimizer_state", "temporary"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view to_string(RegionKind kind) {
  static constexpr std::string_view kNames[] = {"root", "module", "composite", "checkpoint", "scope"};
  return kNames[static_cast<size_t>(kind)];
}

Graph::Graph() {
  for (const char* phase : {"forward", "backward", "optimizer", "init"}) phases_.emplace_back(phase);
  for (uint32_t i = 0; i < kBuiltinCount; ++i) {
    intern_target(Target(TargetKind::kBuiltin, builtin_schema(static_cast<Builtin>(i))));
  }
  Region root;
  root.name = intern("");
  root.class_name = root.name;
  add_region(root);
}

StringId Graph::intern(std::string_view text) {
  auto [entry, added] = string_ids_.try_emplace(std::string(text), StringId(static_cast<uint32_t>(strings_.size())));
  if (added) strings_.emplace_back(text);
  return entry->second;
}

PhaseId Graph::intern_phase(std::string_view name) {
  for (uint32_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i] == name) return PhaseId(i);
  }
  phases_.emplace_back(name);
  return PhaseId(static_cast<uint32_t>(phases_.size() - 1));
}

TargetId Graph::intern_target(Target target) {
  const TargetId next(static_cast<uint32_t>(targets_.size()));
  auto [entry, added] = target_ids_.try_emplace(target.schema_text(), next);
  if (added) targets_.push_back(std::move(target));
  return entry->second;
}

TargetId Graph::intern_operator(const c10::OperatorHandle& op) {
  return intern_target(Target(TargetKind::kOperator, op.schema()));
}

ConstantId Graph::add_constant(at::Tensor tensor) {
  constants_.push_back(std::move(tensor));
  return ConstantId(static_cast<uint32_t>(constants_.size() - 1));
}

int64_t Graph::numel(ValueId id) const {
  int64_t count = 1;
  for (int64_t size : sizes(id)) count *= size;
  return count;
}

int64_t Graph::logical_bytes(ValueId id) const {
  const Value& v = value(id);
  return v.kind == ValueKind::kTensor ? numel(id) * static_cast<int64_t>(c10::elementSize(v.dtype)) : 0;
}

const Argument* Graph::find_argument(NodeId id, std::string_view name) const {
  const auto& formal = target(id).schema().arguments();
  const auto actual = arguments(id);
  for (size_t i = 0; i < formal.size() && i < actual.size(); ++i) {
    if (formal[i].name() == name) return &actual[i];
  }
  return nullptr;
}

Argument Graph::complex_argument(double real, double imaginary) {
  const double parts[] = {real, imaginary};
  return Argument::of_run(ArgumentKind::kComplex, floats_.push_run(std::span<const double>(parts)));
}

NodeId Graph::insert_before(NodeId position, TargetId target, std::span<const Argument> arguments) {
  Node node;
  node.target = target;
  node.region = kRootRegion;
  node.phase = kForward;
  node.arguments = arguments_.push_run(arguments);
  // The use of a list element is noted in the element itself, so two nodes must not share one.
  for (uint32_t i = 0; i < node.arguments.size; ++i) {
    const Argument argument = arguments_.view(node.arguments)[i];
    if (argument.kind == ArgumentKind::kList && has_entered_uses(list(argument))) {
      arguments_.view(node.arguments)[i].run = copy_list(argument.run);
    }
  }
  const NodeId id(nodes_.push(node));
  link_before(id, position);
  enter_uses(id, arguments_.view(node.arguments));
  ++live_nodes_;
  return id;
}

ValueId Graph::new_tensor(NodeId producer, const TensorSpec& spec) {
  const auto rank = static_cast<uint32_t>(spec.sizes.size());
  const Run dims = ints_.push_run(2 * rank);
  const auto pool = ints_.view(dims);
  std::copy(spec.sizes.begin(), spec.sizes.end(), pool.begin());
  std::copy(spec.strides.begin(), spec.strides.end(), pool.begin() + rank);
  Value value;
  value.dtype = spec.dtype;
  value.layout = spec.layout;
  value.device_type = spec.device.type();
  value.device_index = spec.device.index();
  value.requires_grad = spec.requires_grad;
  value.rank = static_cast<uint16_t>(rank);
  value.dims = dims.offset;
  value.storage = spec.storage;
  value.offset = spec.offset;
  value.producer = producer;
  return ValueId(values_.push(value));
}

void Graph::set_geometry(ValueId id, const TensorSpec& spec) {
  Value& changed = value(id);
  if (changed.rank != spec.sizes.size()) {
    changed.rank = static_cast<uint16_t>(spec.sizes.size());
    changed.dims = ints_.push_run(2 * changed.rank).offset;
  }
  const auto pool = ints_.view({changed.dims, 2U * changed.rank});
  std::copy(spec.sizes.begin(), spec.sizes.end(), pool.begin());
  std::copy(spec.strides.begin(), spec.strides.end(), pool.begin() + changed.rank);
  changed.dtype = spec.dtype;
  changed.layout = spec.layout;
  changed.device_type = spec.device.type();
  changed.device_index = spec.device.index();
  changed.requires_grad = spec.requires_grad;
  changed.storage = spec.storage;
  changed.offset = spec.offset;
}

ValueId Graph::new_scalar(NodeId producer, ValueKind kind) {
  Value value;
  value.kind = kind;
  value.producer = producer;
  return ValueId(values_.push(value));
}

void Graph::set_results(NodeId id, std::span<const Argument> results) {
  node(id).results = arguments_.push_run(results);
}

ValueId Graph::add_tensor_result(NodeId id, const TensorSpec& spec) {
  const ValueId value = new_tensor(id, spec);
  std::vector<Argument> results(this->results(id).begin(), this->results(id).end());
  results.push_back(Argument::of_value(value));
  set_results(id, results);
  return value;
}

void Graph::set_frees(NodeId id, std::span<const StorageId> frees) {
  for (StorageId storage_id : this->frees(id)) storage(storage_id).freed_after = NodeId();
  node(id).frees = frees_.push_run(frees);
  for (StorageId storage_id : frees) storage(storage_id).freed_after = id;
}

void Graph::erase(NodeId id) {
  for_each_output(id, [&](ValueId v) {
    if (has_uses(v)) {
      throw GraphEditError("cannot erase a call of " + target(id).name() +
                           ": one of its results is still used; replace its uses first");
    }
  });
  drop_uses(arguments(id));
  if (const NodeId before = node(id).previous; node(id).frees.size != 0 && before.valid()) {
    std::vector<StorageId> freed(frees(before).begin(), frees(before).end());
    for (StorageId storage_id : frees(id)) {
      if (storage(storage_id).born != id) freed.push_back(storage_id);
    }
    set_frees(before, freed);
  }
  unlink(id);
  node(id).target = TargetId();
  --live_nodes_;
}

void Graph::move_before(NodeId id, NodeId position) {
  if (id == position) return;
  unlink(id);
  link_before(id, position);
}

void Graph::replace_all_uses(ValueId of, ValueId with) {
  if (of == with) return;
  while (has_uses(of)) {
    const NodeId user = uses_[value(of).first_use].user;
    const uint32_t first = value(of).first_use;
    redirect_uses(arguments_.view(node(user).arguments), of, with);
    TORCH_INTERNAL_ASSERT(value(of).first_use != first, "a use that no argument of its user knows of");
    for (SavedTensor& saved : saved_.view(node(user).saved)) {
      if (saved.value == of && saved.role == SavedRole::kArgument) saved.value = with;
    }
  }
}

// All of one node's uses of `of` at once, so that a node that reads it many times is walked once.
void Graph::redirect_uses(std::span<Argument> arguments, ValueId of, ValueId with) {
  for (Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kList) {
      redirect_uses(arguments_.view(argument.run), of, with);
    } else if (argument.kind == ArgumentKind::kValue && argument.ref.value == of) {
      drop_uses(std::span<const Argument>(&argument, 1));
      argument.ref.value = with;
      uses_[argument.ref.use] = {.user = uses_[argument.ref.use].user, .value = with};
      append_use(argument.ref.use, with);
    }
  }
}

size_t Graph::allocated_bytes() const {
  return nodes_.allocated_bytes() + values_.allocated_bytes() + storages_.allocated_bytes() +
         regions_.allocated_bytes() + arguments_.allocated_bytes() + ints_.allocated_bytes() +
         floats_.allocated_bytes() + uses_.allocated_bytes() + saved_.allocated_bytes() + frees_.allocated_bytes();
}

void Graph::link_before(NodeId id, NodeId position) {
  const NodeId previous = position.valid() ? node(position).previous : last_;
  node(id).previous = previous;
  node(id).next = position;
  (previous.valid() ? node(previous).next : first_) = id;
  (position.valid() ? node(position).previous : last_) = id;
}

void Graph::unlink(NodeId id) {
  const Node& n = node(id);
  (n.previous.valid() ? node(n.previous).next : first_) = n.next;
  (n.next.valid() ? node(n.next).previous : last_) = n.previous;
}

void Graph::enter_uses(NodeId id, std::span<Argument> arguments) {
  for (Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue) {
      argument.ref.use = uses_.push({.user = id, .value = argument.ref.value});
      append_use(argument.ref.use, argument.ref.value);
    } else if (argument.kind == ArgumentKind::kList) {
      enter_uses(id, arguments_.view(argument.run));
    }
  }
}

void Graph::append_use(uint32_t use, ValueId id) {
  Value& v = value(id);
  uses_[use].previous = v.last_use;
  (v.last_use != Argument::kNoUse ? uses_[v.last_use].next : v.first_use) = use;
  v.last_use = use;
}

void Graph::drop_uses(std::span<const Argument> arguments) {
  for (const Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue && argument.ref.use != Argument::kNoUse) {
      const Use use = uses_[argument.ref.use];
      Value& v = value(use.value);
      (use.previous != Argument::kNoUse ? uses_[use.previous].next : v.first_use) = use.next;
      (use.next != Argument::kNoUse ? uses_[use.next].previous : v.last_use) = use.previous;
    } else if (argument.kind == ArgumentKind::kList) {
      drop_uses(list(argument));
    }
  }
}

bool Graph::has_entered_uses(std::span<const Argument> arguments) const {
  for (const Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue && argument.ref.use != Argument::kNoUse) return true;
    if (argument.kind == ArgumentKind::kList && has_entered_uses(list(argument))) return true;
  }
  return false;
}

Run Graph::copy_list(Run list) {
  const Run copy = arguments_.push_run(arguments_.view(list));
  for (uint32_t i = 0; i < copy.size; ++i) {
    const Argument element = arguments_.view(copy)[i];
    if (element.kind == ArgumentKind::kList) arguments_.view(copy)[i].run = copy_list(element.run);
  }
  return copy;
}

namespace {

template <class T>
bool holds(const Arena<T>& arena, Run run) {
  return run.size == 0 || uint64_t{run.offset} + run.size <= arena.size();
}

}  // namespace

bool Graph::in_bounds(const Node& node) const {
  return holds(arguments_, node.arguments) && holds(arguments_, node.results) && holds(saved_, node.saved) &&
         holds(frees_, node.frees);
}

bool Graph::in_bounds(const Region& region) const { return holds(arguments_, region.arguments); }

bool Graph::in_bounds(const Argument& argument) const {
  switch (argument.kind) {
    case ArgumentKind::kIntList:
      return holds(ints_, argument.run);
    case ArgumentKind::kList:
      return holds(arguments_, argument.run);
    case ArgumentKind::kComplex:
      return argument.run.size == 2 && holds(floats_, argument.run);
    case ArgumentKind::kValue:
      return argument.ref.value.index < values_.size();
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque:
      return argument.string.index < strings_.size();
    case ArgumentKind::kConstant:
      return argument.constant.index < constants_.size();
    default:
      return true;
  }
}

}  // namespace shadowgraph
