#include <tuple>

#include "ir/edit/bulk_edits.h"
#include "ir/records.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/verify.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {
namespace {

class Merger {
 public:
  Merger(const Graph& before, const Graph& after) : before_(before) { merged_.graph = clone(after); }

  MergedGraph merge(const Graph& after) {
    const GraphDiff diff = GraphDiff::of(before_, after);
    std::vector<uint8_t> gone(before_.node_capacity(), 0), paired(before_.node_capacity(), 0);
    std::vector<uint8_t> fresh(after.node_capacity(), 0);
    for (const GraphDiff::Change& change : diff.changes) {
      if (!change.after.valid()) {
        gone[change.before.index] = 1;
        continue;
      }
      fresh[change.after.index] = 1;
      merged_.marks[change.after] = change.before.valid() ? ViewMark::kChanged : ViewMark::kAdded;
      ++(change.before.valid() ? merged_.changed : merged_.added);
      if (!change.before.valid()) continue;
      paired[change.before.index] = 1;
      twin_[change.before] = change.after;
    }
    // Nodes that are not in the list of changes are equal, and in the same order in both graphs.
    NodeId at = after.first();
    uint32_t number = 0;
    for (const NodeId node : after.nodes()) merged_.number[node] = number++;
    for (const NodeId node : before_.nodes()) {
      if (gone[node.index] != 0 || paired[node.index] != 0) continue;
      while (at.valid() && fresh[at.index] != 0) at = after.node(at).next;
      if (!at.valid()) break;
      twin_[node] = at;
      at = after.node(at).next;
    }
    // Walk from the end, so that the next node is known.
    std::vector<NodeId> position(before_.node_capacity());
    NodeId next;
    for (const NodeId node : before_.nodes_reversed()) {
      if (std::as_const(twin_)[node].valid()) next = std::as_const(twin_)[node];
      position[node.index] = next;
    }
    number = 0;
    for (const NodeId node : before_.nodes()) {
      const NodeId twin = std::as_const(twin_)[node];
      if (twin.valid()) {
        pair_values(node, twin);
      } else if (gone[node.index] != 0) {
        insert(node, position[node.index], number);
      }
      ++number;
    }
    find_lost_uses(gone);
    return std::move(merged_);
  }

 private:
  Graph& graph() { return merged_.graph; }

  void pair_values(NodeId node, NodeId twin) {
    std::vector<ValueId> theirs;
    graph().for_each_output(twin, [&](ValueId value) { theirs.push_back(value); });
    size_t i = 0;
    before_.for_each_output(node, [&](ValueId value) {
      if (i < theirs.size()) pair_value(value, theirs[i]);
      ++i;
    });
  }
  void pair_value(ValueId before, ValueId after) {
    value_[before] = after;
    const StorageId storage = before_.value(before).storage;
    if (storage.valid() && graph().value(after).storage.valid()) storage_[storage] = graph().value(after).storage;
  }

  void insert(NodeId node, NodeId position, uint32_t number) {
    const Node& old = before_.node(node);
    // A second sg::output or sg::gradient adds nothing; its lost uses are recorded instead.
    if (old.target == target_of(Builtin::kOutput) || old.target == target_of(Builtin::kGradient)) return;
    std::vector<Argument> arguments;
    for (const Argument& argument : before_.arguments(node)) arguments.push_back(copied(argument));
    const NodeId made = graph().insert_before(position, graph().intern_target(before_.target(old.target)), arguments);
    twin_[node] = made;
    merged_.marks[made] = ViewMark::kRemoved;
    merged_.number[made] = number;
    ++merged_.removed;
    Node& record = mutable_node(graph(), made);
    record.phase = graph().intern_phase(before_.phase_name(old.phase));
    record.region = region_of(old.region);
    record.source = graph().intern(before_.text_or_empty(old.source));
    if (old.forward.valid()) record.forward = std::as_const(twin_)[old.forward];
    std::vector<Argument> results;
    before_.for_each_output(node, [&](ValueId value) {
      const Value& v = before_.value(value);
      ValueId result;
      if (v.kind == ValueKind::kTensor) {
        result = graph().new_tensor(made, {.dtype = v.dtype,
                                           .sizes = before_.sizes(value),
                                           .strides = before_.strides(value),
                                           .storage = storage_of(v.storage, made),
                                           .offset = v.offset,
                                           .device = v.device(),
                                           .layout = v.layout,
                                           .requires_grad = v.requires_grad});
      } else {
        result = graph().new_scalar(made, v.kind);
      }
      value_[value] = result;
      results.push_back(Argument::of_value(result));
    });
    graph().set_results(made, results);
  }

  StorageId storage_of(StorageId id, NodeId born) {
    if (!id.valid()) return id;
    StorageId& known = storage_[id];
    if (!known.valid()) {
      const Storage& old = before_.storage(id);
      known = graph().add_storage({.bytes = old.bytes,
                                   .device_type = old.device_type,
                                   .device_index = old.device_index,
                                   .kind = old.kind,
                                   .born = born});
    }
    return known;
  }

  // Returns the region with the same name and call under the same parent, or a new one.
  RegionId region_of(RegionId id) {
    if (!id.valid() || id == Graph::kRootRegion) return id;
    if (!regions_known_) {
      regions_known_ = true;
      for (uint32_t i = 1; i < graph().region_count(); ++i) enter(RegionId(i));
    }
    if (const RegionId known = std::as_const(region_)[id]; known.valid()) return known;
    // Outermost first.
    std::vector<RegionId> pending;
    for (RegionId at = id; at.valid() && at != Graph::kRootRegion && !std::as_const(region_)[at].valid() &&
                           pending.size() <= before_.region_count();
         at = before_.region(at).parent) {
      pending.push_back(at);
    }
    for (; !pending.empty(); pending.pop_back()) {
      const Region& old = before_.region(pending.back());
      const RegionId parent = old.parent.valid() && old.parent != Graph::kRootRegion
                                  ? std::as_const(region_)[old.parent]
                                  : Graph::kRootRegion;
      const Key key{parent, old.kind, std::string(before_.text_or_empty(old.name)), old.call};
      const auto found = by_name_.find(key);
      if (found != by_name_.end()) {
        region_[pending.back()] = found->second;
        continue;
      }
      Region added{.kind = old.kind, .inferred = old.inferred, .parent = parent, .call = old.call};
      added.name = graph().intern(before_.text_or_empty(old.name));
      added.class_name = graph().intern(before_.text_or_empty(old.class_name));
      region_[pending.back()] = graph().add_region(added);
      by_name_.emplace(key, region_[pending.back()]);
    }
    return region_[id];
  }
  using Key = std::tuple<RegionId, RegionKind, std::string, uint32_t>;
  void enter(RegionId id) {
    const Region& region = graph().region(id);
    const RegionId parent = region.parent.valid() ? region.parent : Graph::kRootRegion;
    by_name_.emplace(Key{parent, region.kind, std::string(graph().text_or_empty(region.name)), region.call}, id);
  }

  Argument copied(const Argument& argument) {
    if (argument.kind == ArgumentKind::kConstant) {
      return Argument::of_constant(graph().share_constant(before_, argument.constant));
    }
    if (argument.kind != ArgumentKind::kValue) {
      return copied_argument(graph(), before_, argument, [this](const Argument& e) { return copied(e); });
    }
    const ValueId value = std::as_const(value_)[argument.ref.value];
    return value.valid() ? Argument::of_value(value) : Argument();
  }

  void find_lost_uses(const std::vector<uint8_t>& gone) {
    for (const NodeId node : before_.nodes()) {
      const NodeId user = std::as_const(twin_)[node];
      if (gone[node.index] != 0 || !user.valid()) continue;
      before_.for_each_input(node, [&](ValueId value) {
        const NodeId maker = before_.value(value).producer;
        const ValueId twin = std::as_const(value_)[value];
        if (maker.valid() && gone[maker.index] != 0 && twin.valid()) merged_.lost_uses.push_back({user, twin});
      });
    }
  }

  const Graph& before_;
  MergedGraph merged_;
  IdMap<NodeId, NodeId> twin_;
  IdMap<ValueId, ValueId> value_;
  IdMap<StorageId, StorageId> storage_;
  IdMap<RegionId, RegionId> region_;
  std::map<Key, RegionId> by_name_;
  bool regions_known_ = false;
};

}  // namespace

MergedGraph MergedGraph::of(const Graph& before, const Graph& after) { return Merger(before, after).merge(after); }

}  // namespace shadowgraph
