// The rules that all others rely on, by their numbers in shadowgraph/verify.h: the list of nodes, references in range,
// the tree of regions, and uses.
#include <algorithm>

#include "ir/analysis/verifier.h"

namespace shadowgraph {

// ---- 1, 2, 12: what everything else relies on -----------------------------------------------------------------------

// A list that goes in a circle ends the check of links: everything else walks along them.
void Verifier::links() {
  NodeId previous;
  for (NodeId n = graph_.first(); n.valid(); n = graph_.node(n).next) {
    if (n.index >= graph_.node_capacity())
      return report(Rule::kLinks, {}, "the node list goes to id {}, which is out of range", n.index);
    if (ordinals_[n.index] != Numbering::kNone)
      return report(Rule::kLinks, {}, "the node list comes to node id {} twice", n.index);
    if (graph_.is_erased(n)) return report(Rule::kLinks, {}, "the node list comes to id {}, which is erased", n.index);
    // Positions are counted here and not asked of the graph, whose own order may be broken.
    ordinals_[n.index] = static_cast<uint32_t>(order_.size());
    order_.push_back(n);
    if (graph_.node(n).previous != previous) {
      report(Rule::kLinks, {}, "node id {} names as previous another than the one it comes after", n.index);
    }
    // Labels are checked beside the links: is_before() answers from labels alone.
    if (previous.valid() && !graph_.is_before(previous, n)) {
      report(Rule::kLinks, {}, "is_before() does not say that node id {} comes after the one before it", n.index);
    }
    previous = n;
  }
  if (graph_.last() != previous) report(Rule::kLinks, {}, "the last node is not where the list ends");
  if (order_.size() != graph_.node_count()) {
    report(Rule::kLinks, {}, "the list holds {} nodes, the graph counts {}", order_.size(), graph_.node_count());
  }
  // A node that is not erased and in no list is lost.
  for (uint32_t i = 0; i < graph_.node_capacity(); ++i) {
    if (ordinals_[i] == Numbering::kNone && !graph_.is_erased(NodeId(i))) {
      report(Rule::kLinks, {}, "live node id {} is not in the list", i);
    }
  }
}

// Lists nest at most kMaxListDepth deep, so that later walks may recurse without asking.
bool Verifier::arguments_in_range(std::span<const Argument> arguments, int depth, bool results) {
  return std::all_of(arguments.begin(), arguments.end(), [&](const Argument& a) {
    if (!graph_.in_bounds(a) || a.kind > ArgumentKind::kOpaque) return false;
    if (a.kind != ArgumentKind::kList) return true;
    return depth < kMaxListDepth && arguments_in_range(graph_.list(a), depth + 1, results);
  });
}

// Every index in the record must name something. Messages do not print such a node, as printing would follow the
// indices.
bool Verifier::references(NodeId id) {
  const Node& n = graph_.node(id);
  // The first fault is enough: behind it nothing of the node can be trusted.
  const auto bad = [&](const char* what) {
    broken_[id.index] = true;
    report(Rule::kReferences, id, "node id {}: {} is out of range", id.index, what);
    return false;
  };
  if (!graph_.in_bounds(n)) return bad("a run of arguments, results, saved tensors or frees");
  if (n.target.index >= graph_.target_count()) return bad("the target");
  if (!arguments_in_range(graph_.arguments(id), 0, false)) return bad("an argument (or lists nest too deep)");
  if (!arguments_in_range(graph_.results(id), 0, true)) return bad("a result (or lists nest too deep)");
  if (n.region.index >= graph_.region_count()) return bad("the region");
  if (n.phase.index >= graph_.phase_count()) return bad("the phase");
  if (n.source.valid() && n.source.index >= graph_.string_count()) return bad("the source line");
  // An erased forward node is in range, and is allowed.
  if (n.forward.valid() && n.forward.index >= graph_.node_capacity()) return bad("the forward node");
  for (const SavedTensor& saved : graph_.saved(id)) {
    if (saved.value.index >= graph_.value_capacity()) return bad("a saved tensor");
  }
  for (const StorageId storage : graph_.frees(id)) {
    if (storage.index >= graph_.storage_count()) return bad("a freed storage");
  }
  bool values = true;
  graph_.for_each_output(id, [&](ValueId v) { values = values && graph_.in_bounds(graph_.value(v)); });
  return values || bad("the sizes of a result");
}

// Parents come first, so a region tree cannot have a circle.
void Verifier::regions() {
  for (uint32_t i = 0; i < graph_.region_count(); ++i) {
    const Region& region = graph_.region(RegionId(i));
    if (i == 0 ? region.parent.valid() || region.kind != RegionKind::kRoot
               : region.parent.index >= i || region.kind == RegionKind::kRoot) {
      report(Rule::kRegions, {},
             "r{} is no part of a tree: its parent must be an earlier region, and r0 alone the root", i);
    }
    const auto bad_string = [&](StringId s) { return s.valid() && s.index >= graph_.string_count(); };
    if (bad_string(region.name) || bad_string(region.class_name) ||
        (region.target.valid() && region.target.index >= graph_.target_count()) || !graph_.in_bounds(region)) {
      report(Rule::kReferences, {}, "r{}: its name, class, target or arguments are out of range", i);
      continue;
    }
    // A composite's arguments are checked by their number alone; their values may be gone.
    if (region.arguments.size != 0 &&
        (!region.target.valid() ||
         region.arguments.size != graph_.target(region.target).signature().arguments.size())) {
      report(Rule::kRegions, {}, "r{} has {} arguments, which is not what its operator takes", i,
             region.arguments.size);
    }
  }
}

// Storages are checked here by themselves; whether values lie within them, result() asks.
void Verifier::storages() {
  for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
    const Storage& storage = graph_.storage(StorageId(i));
    if (storage.bytes < 0) report(Rule::kStorage, {}, "storage id {} has {} bytes", i, storage.bytes);
    for (const NodeId n : {storage.born, storage.freed_after}) {
      if (n.valid() && n.index >= graph_.node_capacity()) {
        report(Rule::kReferences, {}, "storage id {} is born or freed at node id {}, which is out of range", i,
               n.index);
      }
    }
  }
}

// ---- 3, 4: uses -----------------------------------------------------------------------------------------------------

// An operand's use must be in the list of its value, and its maker must come before.
void Verifier::inputs(NodeId id, std::span<const Argument> arguments, int depth) {
  for (const Argument& a : arguments) {
    if (a.kind == ArgumentKind::kList && depth < kMaxListDepth) inputs(id, graph_.list(a), depth + 1);
    if (a.kind != ArgumentKind::kValue) continue;
    const ValueId v = a.ref.value;
    ++use_counts_[v.index];
    // A node that uses its own result is refused too: it is not earlier than itself.
    if (!earlier(graph_.value(v).producer, id)) {
      report(Rule::kOrder, id, "uses a value (id {}) that no earlier node makes", v.index);
    } else {
      lifetime(id, v, false);
    }
    if (a.ref.use >= graph_.use_capacity() || graph_.use(a.ref.use).user != id || graph_.use(a.ref.use).value != v) {
      report(Rule::kUses, id, "an argument's use is not entered in the list of value id {}", v.index);
    }
  }
}

// Walks along each value's uses and counts. The list must hold exactly what arguments mention, no more and no less.
void Verifier::uses() {
  for (uint32_t i = 0; i < graph_.value_capacity(); ++i) {
    const Value& value = graph_.value(ValueId(i));
    uint32_t count = 0;
    uint32_t previous = Argument::kNoUse;
    bool consistent = true;
    // One more than there should be is enough to know, and ends a cycle.
    for (uint32_t u = value.first_use; u != Argument::kNoUse && count <= use_counts_[i]; u = graph_.use(u).next) {
      if (u >= graph_.use_capacity() || graph_.use(u).value.index != i || graph_.use(u).previous != previous ||
          !live(graph_.use(u).user)) {
        consistent = false;
        break;
      }
      previous = u;
      ++count;
    }
    if (!consistent || count != use_counts_[i] || value.last_use != previous) {
      report(Rule::kUses, value.producer,
             "the list of uses of value id {} does not hold the {} uses that arguments make", i, use_counts_[i]);
    }
  }
}

}  // namespace shadowgraph
