// Carries over what a pass does not touch when it builds a second graph beside the first. Those are regions, phases,
// notes, saved tensors, storages and their lives, guards. Passes that change most nodes (functionalize, reinplace)
// build anew; a small change is an edit.
//
// Everything is carried in one walk with the nodes, but for lives: these need all uses, and take a walk at the end.
#include "passes/rewrite/graph_rebuild.h"

#include <algorithm>
#include <utility>

#include "ir/edit/copied_argument.h"

namespace shadowgraph {
namespace {

bool is_given(StorageKind kind) {
  return kind == StorageKind::kParameter || kind == StorageKind::kBuffer || kind == StorageKind::kInput ||
         kind == StorageKind::kConstant;
}

}  // namespace

GraphRebuild::GraphRebuild(const Graph& read, Graph& made)
    : read_(read), made_(made), targets_(read.target_count()), entered_(read.region_count()) {
  made.metadata = read.metadata;
  // Phases, constants and regions keep their ids, so nodes can be copied without looking them up.
  for (uint32_t i = 0; i < read.phase_count(); ++i) made.intern_phase(read.phase_name(PhaseId(i)));
  for (uint32_t i = 0; i < read.constant_count(); ++i) made.share_constant(read, ConstantId(i));
  for (uint32_t i = 1; i < read.region_count(); ++i) {
    Region region = read.region(RegionId(i));
    if (region.name.valid()) region.name = made.intern(read.text(region.name));
    if (region.class_name.valid()) region.class_name = made.intern(read.text(region.class_name));
    if (region.target.valid()) region.target = target(region.target);
    // The values that a region was called with do not exist yet; see enter_region.
    region.arguments = {};
    made.add_region(region);
  }
}

TargetId GraphRebuild::target(TargetId id) {
  TargetId& made = targets_[id.index];
  if (!made.valid()) made = made_.intern_target(read_.target(id));
  return made;
}

void GraphRebuild::node(NodeId read, NodeId made) {
  nodes_[read] = made;
  read_.for_each_note(read, [&](std::string_view key, std::string_view value) { made_.set_note(made, key, value); });
}

// A tensor that is saved may now be another argument of the call, or none. It is found again among arguments or
// results, and otherwise noted as internal, so that its bytes still count as kept.
void GraphRebuild::saved(NodeId read, NodeId made, const ValueOf& value_of) {
  if (read_.saved(read).empty()) return;
  std::vector<SavedTensor> kept;
  for (const SavedTensor& saved : read_.saved(read)) {
    SavedTensor copy;
    copy.value = value_of(saved.value);
    if (!copy.value.valid()) continue;
    uint16_t position = 0;
    const StorageId storage = made_.value(copy.value).storage;
    // A rebuilt call may hold a view of the tensor that was saved, so the storage decides.
    const auto same = [&](ValueId v) {
      return v == copy.value || (storage.valid() && made_.value(v).storage == storage);
    };
    if (saved.role == SavedRole::kArgument) {
      for (const Argument& argument : made_.arguments(made)) {
        made_.for_each_value({&argument, 1}, [&](ValueId v) {
          if (copy.role == SavedRole::kInternal && same(v)) copy = {copy.value, SavedRole::kArgument, position};
        });
        ++position;
      }
    } else if (saved.role == SavedRole::kResult) {
      made_.for_each_output(made, [&](ValueId v) {
        if (copy.role == SavedRole::kInternal && same(v)) copy = {copy.value, SavedRole::kResult, position};
        ++position;
      });
    }
    kept.push_back(copy);
  }
  made_.set_saved(made, kept);
}

StorageId GraphRebuild::storage(StorageId read, NodeId born) {
  Storage storage = read_.storage(read);
  storage.born = born;
  // The new death is found at the end, when all uses are known.
  storage.freed_after = NodeId();
  return first_[read] = made_.add_storage(storage);
}

void GraphRebuild::enter_region(RegionId id, const ValueOf& latest) {
  // Parents first, as far as they are new.
  for (; id.valid() && !entered_[id.index]; id = read_.region(id).parent) {
    entered_[id.index] = true;
    const auto arguments = read_.region_arguments(id);
    if (arguments.empty()) continue;
    const std::function<Argument(const Argument&)> copied = [&](const Argument& a) {
      if (a.kind != ArgumentKind::kValue) return copied_argument(made_, read_, a, copied);
      const ValueId value = latest(a.ref.value);
      return value.valid() ? Argument::of_value(value) : Argument::none();
    };
    std::vector<Argument> made;
    for (const Argument& argument : arguments) made.push_back(copied(argument));
    made_.set_region_arguments(id, made);
  }
}

// `final` gives the storage in which an old one's contents end, which for a rewritten in-place chain is not where they
// began.
void GraphRebuild::lifetimes(const std::function<StorageId(StorageId)>& final) {
  // Storages that this pass invented die after their last use; the others where the old program let them die.
  std::vector<NodeId> last_use(made_.storage_count());
  for (const NodeId n : made_.nodes()) {
    const auto use = [&](ValueId v) {
      const StorageId storage = made_.value(v).storage;
      if (storage.valid()) last_use[storage.index] = n;
    };
    made_.for_each_input(n, use);
    made_.for_each_output(n, use);
  }
  const auto is_end = [&](NodeId n) {
    const TargetId target = made_.node(n).target;
    return target == target_of(Builtin::kOutput) || target == target_of(Builtin::kGradient);
  };
  // Nodes were only ever appended, so their ids are in program order.
  std::vector<NodeId> death = last_use;
  std::vector<bool> never(death.size());
  for (uint32_t i = 0; i < read_.storage_count(); ++i) {
    const Storage& old = read_.storage(StorageId(i));
    const StorageId first = std::as_const(first_)[StorageId(i)];
    const StorageId last = final(StorageId(i));
    if (first.valid() && is_given(old.kind) && (first != last || !old.freed_after.valid())) never[first.index] = true;
    if (!last.valid()) continue;
    if (last != first && !is_given(old.kind) && !is_given(made_.storage(last).kind)) {
      made_.set_storage_kind(last, old.kind);
    }
    if (!old.freed_after.valid()) {
      if (last == first || !is_given(old.kind)) never[last.index] = true;
      continue;
    }
    const NodeId at = std::as_const(behind_)[old.freed_after];
    NodeId& dies = death[last.index];
    if (!dies.valid() || (at.valid() && dies < at)) dies = at;
  }
  for (uint32_t i = 0; i < death.size(); ++i) {
    if (never[i]) death[i] = NodeId();
  }
  std::vector<std::pair<NodeId, StorageId>> deaths;
  for (uint32_t i = 0; i < death.size(); ++i) {
    if (death[i].valid() && !is_end(death[i])) deaths.emplace_back(death[i], StorageId(i));
  }
  // Stable: storages that die together keep the order of their ids, so that the text is the same in each run.
  std::stable_sort(deaths.begin(), deaths.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<StorageId> together;
  for (size_t i = 0; i < deaths.size();) {
    const NodeId at = deaths[i].first;
    together.clear();
    for (; i < deaths.size() && deaths[i].first == at; ++i) together.push_back(deaths[i].second);
    made_.set_frees(at, together);
  }
}

void GraphRebuild::finish(const ValueOf& latest, const std::function<StorageId(StorageId)>& final) {
  for (Guard guard : read_.guards) {
    guard.value = latest(guard.value);
    if (guard.value.valid()) made_.guards.push_back(std::move(guard));
  }
  lifetimes(final);
}

}  // namespace shadowgraph
