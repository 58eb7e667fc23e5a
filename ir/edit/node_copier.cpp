// Copies nodes one by one, with what they bring along: regions, storages, saved tensors, deaths.
#include <fmt/format.h>

#include <utility>

#include "ir/edit/copied_argument.h"
#include "ir/graph_editor.h"
#include "ir/records.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {

NodeCopier::NodeCopier(const Graph& from, Graph& into, RegionId region) : from_(from), into_(into) {
  regions_[Graph::kRootRegion] = region;
}

// Lets a value of the other graph stand for one of this. It also binds their storages, so that views of it that are
// copied later land in the right place:
//
//     piece: %0 @s0, %1 = t(%0) @s0      into: %7 @s4 +6      bind(%0, %7)      copy of %1: @s4 +6
void NodeCopier::bind(ValueId from, ValueId to) {
  const Value& inner = from_.value(from);
  const Value& outer = into_.value(to);
  if (inner.storage.valid() && outer.storage.valid()) {
    const HomeOfStorage home{.storage = outer.storage, .shift = outer.offset - inner.offset, .bound = true};
    // Two inputs that share a storage must stand for two values that do, at the same distance.
    HomeOfStorage& known = storages_[inner.storage];
    if (known.storage.valid() && (known.storage != home.storage || known.shift != home.shift)) {
      throw GraphEditError(
          fmt::format("value id {} shares a storage with another that stands for a value in a different storage, or "
                      "elsewhere in it",
                      from.index));
    }
    known = home;
  }
  values_[from] = to;
}

// Copies a region with those around it that are not here yet, outermost first: a region's parent must have the smaller
// id. The root stands for the region that the piece is put into.
RegionId NodeCopier::region(RegionId from) {
  std::vector<RegionId> missing;
  RegionId known = from;
  for (; !regions_.contains(known); known = from_.region(known).parent) {
    missing.push_back(known);
  }
  for (size_t i = missing.size(); i-- > 0;) {
    Region copy = from_.region(missing[i]);
    copy.parent = regions_[copy.parent];
    copy.name = into_.intern(from_.text_or_empty(copy.name));
    copy.class_name = into_.intern(from_.text_or_empty(copy.class_name));
    if (copy.target.valid()) copy.target = into_.intern_target(from_.target(copy.target));
    copy.arguments = {};
    // Values among a composite's arguments may be none that is copied; a region says what it was called with, and
    // nothing computes from it.
    std::vector<Argument> arguments;
    for (const Argument& a : from_.region_arguments(missing[i])) arguments.push_back(copy_argument(a, true));
    const RegionId id = into_.add_region(copy);
    if (!arguments.empty()) into_.set_region_arguments(id, arguments);
    regions_[missing[i]] = id;
  }
  return regions_[from];
}

// Copies an argument. With `tolerant`, a value that was not copied becomes one that is not there.
Argument NodeCopier::copy_argument(const Argument& from, bool tolerant) {
  if (from.kind == ArgumentKind::kValue) {
    const ValueId to = value(from.ref.value);
    if (!to.valid() && !tolerant) {
      throw GraphEditError(fmt::format("an operand (value id {}) is neither bound nor made by a node copied before",
                                       from.ref.value.index));
    }
    return Argument::of_value(to);
  }
  // Within one graph constants are shared, so that a copy of a node costs no tensor.
  if (from.kind == ArgumentKind::kConstant && &from_ != &into_) {
    const auto [to, added] = constants_.try_emplace(from.constant);
    if (added) to->second = into_.share_constant(from_, from.constant);
    return Argument::of_constant(to->second);
  }
  return copied_argument(into_, from_, from, [&](const Argument& e) { return copy_argument(e, tolerant); });
}

// Copies a result: makes the value, and its storage the first time that one is met. A bound storage decides the device:
// a piece may be spliced into a program on another one.
Argument NodeCopier::copy_result(const Argument& from, NodeId producer) {
  if (from.kind == ArgumentKind::kList) {
    std::vector<Argument> elements;
    for (const Argument& e : from_.list(from)) elements.push_back(copy_result(e, producer));
    return into_.make_list(elements);
  }
  if (from.kind != ArgumentKind::kValue) return from;
  const ValueId id = from.ref.value;
  const Value value = from_.value(id);
  if (value.kind != ValueKind::kTensor) {
    values_[id] = into_.new_scalar(producer, value.kind);
    return Argument::of_value(values_[id]);
  }
  HomeOfStorage home;
  c10::Device device = value.device();
  if (value.storage.valid()) {
    // A storage of the piece is born where its first copied value is made, if the node that allocated it is not copied.
    HomeOfStorage& known = storages_[value.storage];
    if (!known.storage.valid()) {
      Storage copy = from_.storage(value.storage);
      const NodeId born = copy.born.valid() ? node(copy.born) : NodeId();
      copy.born = born.valid() ? born : producer;
      copy.freed_after = NodeId();
      known.storage = into_.add_storage(copy);
    }
    home = known;
    if (home.bound) device = into_.storage(home.storage).device();
  }
  // Copies: the pools may grow, and may be the same graph's.
  const std::vector<int64_t> sizes(from_.sizes(id).begin(), from_.sizes(id).end());
  const std::vector<int64_t> strides(from_.strides(id).begin(), from_.strides(id).end());
  values_[id] = into_.new_tensor(producer, {.dtype = value.dtype,
                                            .sizes = sizes,
                                            .strides = strides,
                                            .storage = home.storage,
                                            .offset = value.offset + home.shift,
                                            .device = device,
                                            .layout = value.layout,
                                            .requires_grad = value.requires_grad});
  return Argument::of_value(values_[id]);
}

// Copies one node before `position`. Lists are copied out first: both graphs may be the same one, whose pools grow
// meanwhile.
NodeId NodeCopier::copy(NodeId from, NodeId position) {
  const Node node = from_.node(from);
  TargetId& target = targets_[node.target];
  if (!target.valid()) target = &from_ == &into_ ? node.target : into_.intern_target(from_.target(node.target));
  std::vector<Argument> arguments;
  for (const Argument& a : std::vector<Argument>(from_.arguments(from).begin(), from_.arguments(from).end())) {
    arguments.push_back(copy_argument(a, false));
  }
  const RegionId region = this->region(node.region);
  const NodeId to = into_.insert_before(position, target, arguments);
  nodes_[from] = to;
  Node& copy = mutable_node(into_, to);
  copy.region = region;
  copy.phase = node.phase.index <= Graph::kInit.index ? node.phase : into_.intern_phase(from_.phase_name(node.phase));
  copy.flags = node.flags;
  copy.source = node.source.valid() ? into_.intern(std::string(from_.text_or_empty(node.source))) : StringId();
  // The forward link is kept where that node is copied, too. In the same graph it may also stay where it was.
  if (node.forward.valid()) {
    copy.forward = this->node(node.forward);
    if (!copy.forward.valid() && &from_ == &into_) copy.forward = node.forward;
  }
  std::vector<Argument> results;
  for (const Argument& r : std::vector<Argument>(from_.results(from).begin(), from_.results(from).end())) {
    results.push_back(copy_result(r, to));
  }
  if (!results.empty()) into_.set_results(to, results);
  // Deaths are copied for storages that the copy made. A bound storage belongs to the graph around, which decides when
  // it dies.
  std::vector<StorageId> freed;
  for (StorageId s : from_.frees(from)) {
    const auto home = storages_.find(s);
    if (home != storages_.end() && !home->second.bound) freed.push_back(home->second.storage);
  }
  if (!freed.empty()) into_.set_frees(to, freed);
  std::vector<std::pair<std::string, std::string>> notes;
  from_.for_each_note(from, [&](const std::string& key, const std::string& text) { notes.emplace_back(key, text); });
  // The list is sorted by key; setting the last first makes every insertion a constant one.
  for (size_t i = notes.size(); i-- > 0;) into_.set_note(to, notes[i].first, notes[i].second);
  if (node.saved.size != 0) copy_saved(from, to);
  return to;
}

// Tensors saved from a node that comes later are not known yet; finish() asks again.
void NodeCopier::copy_saved(NodeId from, NodeId to) {
  std::vector<SavedTensor> saved;
  for (SavedTensor tensor : from_.saved(from)) {
    tensor.value = value(tensor.value);
    if (tensor.value.valid()) saved.push_back(tensor);
  }
  if (saved.size() != from_.saved(from).size()) unfinished_.push_back(from);
  into_.set_saved(to, saved);
}

void NodeCopier::finish() {
  for (NodeId from : std::exchange(unfinished_, {})) copy_saved(from, node(from));
}

}  // namespace shadowgraph
