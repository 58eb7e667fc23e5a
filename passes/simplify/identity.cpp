// Says which values are one tensor, which storages are seen from outside, and replaces values by earlier ones.
//
// Simplifications need all three. Replacing `%2` by `%1` is right only if nobody can tell the two tensors apart:
//
//     %2 = aten::contiguous(%1)    the same object if %1 is contiguous already: writes to one are writes to the other
//     %2 = aten::view(%1, ...)     another object on the same storage: resizing one leaves the other alone
//
// Linear in the graph.
#include "passes/simplify/identity.h"

#include <algorithm>

#include "ir/records.h"

namespace shadowgraph {
bool outlives(const Graph& graph, StorageId id) {
  const Storage& storage = graph.storage(id);
  if (storage.freed_after.valid() && !graph.is_erased(storage.freed_after)) return false;
  switch (storage.kind) {
    case StorageKind::kParameter:
    case StorageKind::kBuffer:
    case StorageKind::kInput:
    case StorageKind::kConstant:
    case StorageKind::kGradient:
    case StorageKind::kOptimizerState:
      return true;
    default:
      return false;
  }
}

ValueId only_result(const Graph& graph, NodeId node) {
  const auto results = graph.results(node);
  if (results.size() != 1 || results[0].kind != ArgumentKind::kValue) return {};
  const ValueId value = results[0].ref.value;
  return graph.value(value).kind == ValueKind::kTensor ? value : ValueId();
}

Identity Identity::of(const Graph& graph, const Effects& effects, const std::vector<bool>& without) {
  Identity result;
  result.escapes_.resize(graph.storage_count());
  for (uint32_t i = 0; i < graph.storage_count(); ++i) result.escapes_[i] = outlives(graph, StorageId(i));
  // Lazy: some tensor on the storage may be conjugated or negated only by a flag, so bytes alone do not tell its value.
  result.lazy_.assign(graph.storage_count(), false);
  result.objects_.resize(graph.value_capacity());
  for (uint32_t i = 0; i < graph.value_capacity(); ++i) result.objects_[i] = i;
  result.object_changes_.assign(graph.value_capacity(), false);

  const auto mark = [&](std::vector<bool>& marks, ValueId v) {
    if (const StorageId s = graph.value(v).storage; s.valid()) marks[s.index] = true;
  };
  for (NodeId n : graph.nodes()) {
    if (!without.empty() && without[n.index]) continue;
    const TargetId target = graph.node(n).target;
    const auto arguments = graph.arguments(n);
    if (is_placeholder(target)) graph.for_each_output(n, [&](ValueId v) { mark(result.escapes_, v); });
    if (is_end(target)) graph.for_each_input(n, [&](ValueId v) { mark(result.escapes_, v); });
    const OperatorFacts& facts = graph.facts(target);
    if (facts.conjugates || facts.negates) graph.for_each_output(n, [&](ValueId v) { mark(result.lazy_, v); });
    graph.for_each_output(n, [&](ValueId v) {
      if (graph.value(v).kind == ValueKind::kTensor && c10::isComplexType(graph.value(v).dtype)) mark(result.lazy_, v);
    });
    // An unknown call may keep its operands or change them: nothing about them is certain any more.
    if (effects.unknown(n)) {
      graph.for_each_input(n, [&](ValueId v) {
        mark(result.escapes_, v);
        result.object_changes_[result.objects_[v.index]] = true;
      });
    }
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (alias.argument >= arguments.size() || alias.result >= graph.results(n).size()) continue;
      const bool written = std::find(facts.written.begin(), facts.written.end(), alias.argument) != facts.written.end();
      const Argument& from = arguments[alias.argument];
      const Argument& to = graph.results(n)[alias.result];
      if (from.kind != ArgumentKind::kValue || to.kind != ArgumentKind::kValue) continue;
      const bool same = same_place(graph, from.ref.value, to.ref.value);
      // An in-place operator, and one that copies only if it must (contiguous), gives the very tensor it was given.
      if (written || (!alias.always && same)) {
        result.objects_[to.ref.value.index] = result.objects_[from.ref.value.index];
        if (!same) result.object_changes_[result.objects_[from.ref.value.index]] = true;
      }
    }
    // set_ and resize_ change where a tensor object points to, for all values that are this object.
    if (!facts.changes_objects) continue;
    for (const uint16_t position : facts.written) {
      if (position >= arguments.size()) continue;
      graph.for_each_value(arguments.subspan(position, 1),
                           [&](ValueId v) { result.object_changes_[result.objects_[v.index]] = true; });
    }
  }
  return result;
}

// ---- Replacements ---------------------------------------------------------------------------------------------------

ValueId Replacements::now(ValueId value) const {
  // A chain of replacements ends: each names an earlier value.
  for (ValueId next = values_[value]; next.valid(); next = values_[value]) value = next;
  return value;
}

bool Replacements::renamed(const Graph& graph, std::span<const Argument> arguments) const {
  bool found = false;
  graph.for_each_value(arguments, [&](ValueId v) { found = found || values_[v].valid(); });
  return found;
}

std::vector<Argument> Replacements::rename(Graph& graph, std::span<const Argument> arguments) const {
  std::vector<Argument> renamed(arguments.begin(), arguments.end());
  for (Argument& argument : renamed) {
    if (argument.kind == ArgumentKind::kValue) argument = Argument::of_value(now(argument.ref.value));
    if (argument.kind == ArgumentKind::kList) argument = graph.make_list(rename(graph, graph.list(argument)));
  }
  return renamed;
}

void Replacements::finish(Graph& graph) const {
  // Guards, regions and forward links name values and nodes too, but are no arguments of a node.
  for (Guard& guard : graph.guards) guard.value = now(guard.value);
  if (values_.size() != 0) {
    for (uint32_t i = 0; i < graph.region_count(); ++i) {
      const RegionId region(i);
      if (!renamed(graph, graph.region_arguments(region))) continue;
      graph.set_region_arguments(region, rename(graph, graph.region_arguments(region)));
    }
  }
  if (nodes_.size() == 0) return;
  for (NodeId n : graph.nodes()) {
    NodeId& forward = mutable_node(graph, n).forward;
    while (forward.valid() && nodes_[forward].valid()) forward = nodes_[forward];
  }
}

// ---- Erasing --------------------------------------------------------------------------------------------------------

namespace {

// Nodes made since the marks were made stay.
bool is_marked(const std::vector<bool>& marks, NodeId n) { return n.index < marks.size() && marks[n.index]; }

// What a node saves instead of a value that goes: the argument or result that it is.
std::vector<SavedTensor> without_doomed(const Graph& graph, NodeId n, const std::vector<bool>& doomed) {
  std::vector<SavedTensor> kept;
  for (SavedTensor saved : graph.saved(n)) {
    // The value goes, but its replacement stands where it stood, so the position still finds it.
    if (is_marked(doomed, graph.value(saved.value).producer)) {
      if (saved.role == SavedRole::kInternal) continue;
      ValueId own;
      const auto take = [&](ValueId v) {
        if (!own.valid() && graph.value(v).kind == ValueKind::kTensor) own = v;
      };
      if (saved.role == SavedRole::kArgument) {
        if (saved.index < graph.arguments(n).size()) {
          graph.for_each_value(graph.arguments(n).subspan(saved.index, 1), take);
        }
      } else {
        uint32_t flat = 0;
        graph.for_each_output(n, [&](ValueId v) {
          if (flat++ == saved.index) take(v);
        });
      }
      if (!own.valid()) continue;
      saved.value = own;
    }
    kept.push_back(saved);
  }
  return kept;
}

}  // namespace

uint32_t erase_nodes(Graph& graph, const std::vector<bool>& doomed) {
  // Collected first, since the list of nodes must not change while it is walked.
  std::vector<NodeId> ids;
  for (NodeId n : graph.nodes()) {
    if (is_marked(doomed, n)) {
      ids.push_back(n);
      continue;
    }
    const auto saved = graph.saved(n);
    if (std::any_of(saved.begin(), saved.end(),
                    [&](const SavedTensor& s) { return is_marked(doomed, graph.value(s.value).producer); })) {
      graph.set_saved(n, without_doomed(graph, n, doomed));
    }
  }
  graph.erase(ids);
  return static_cast<uint32_t>(ids.size());
}

}  // namespace shadowgraph
