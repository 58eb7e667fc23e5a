// cse: common subexpression elimination.
//
// In program order, every pure node is looked up by target, arguments and the versions of the storages it reads. If
// there is an earlier equal one, its results replace this node's, which is erased.
//
//     %3 = aten::mm(self=%0, mat2=%1) : ... @s3
//     %4 = aten::add_.Tensor(self=%0, other=%2) ...     writes s0@1
//     %5 = aten::mm(self=%0, mat2=%1) : ... @s4         kept: it reads s0@1, %3 read s0@0
//     %6 = aten::mm(self=%0, mat2=%1) : ... @s5         erased: uses of %6 become uses of %5
//     %7 = aten::t(self=%6)           : ... @s5         becomes a view of %5, in @s4
//
// Views are equal whatever was written in between: they refer to the same elements of the same storage.
//
// Never merged: random numbers, host reads and unknown operators; tensors that are written or whose object changes (t_,
// set_), since the other would change with it; two tensors that are both visible to the caller, who may write one.
//
// Phases. A backward node could reuse a forward result, at the cost of keeping it until then. That would undo
// activation checkpointing. So only views, which cost nothing, are merged across phases (unless phases=merge).
//
// Tensors saved for backward by an erased node are saved by the remaining one, once.
//
// Grad and autocast modes are not compared, since graphs are recorded below both. Inference mode is compared.
//
// One lookup per node, about 0.4 us. torch.fx has CSE for graphs without effects.
#include "ir/analysis/identity.h"
#include "ir/analysis/structural_hash.h"
#include "ir/edit/bulk_edits.h"
#include "shadowgraph/passes/simplify.h"

namespace shadowgraph {
namespace {

class CommonSubexpressions {
 public:
  CommonSubexpressions(Graph& graph, bool across_phases)
      : graph_(graph),
        across_phases_(across_phases),
        effects_(Effects::of(graph)),
        identity_(Identity::of(graph, effects_)),
        same_storage_(graph.storage_count()),
        known_(graph.node_count()),
        to_erase_(graph.node_capacity(), false) {
    for (uint32_t i = 0; i < graph.storage_count(); ++i) same_storage_[i] = StorageId(i);
  }

  int64_t run() {
    int64_t merged = 0;
    for (NodeId n : graph_.nodes()) {
      if (!is_candidate(n)) continue;
      const NodeId earlier(
          known_.find_or_add(hash(n), n.index, [&](uint32_t candidate) { return are_equal(NodeId(candidate), n); }));
      if (earlier == n || !may_merge(earlier, n)) continue;
      merge(earlier, n);
      ++merged;
    }
    replacements_.finish(graph_);
    erase_nodes(graph_, to_erase_);
    return merged;
  }

 private:
  bool is_fresh(NodeId n, ValueId v) const {
    const StorageId s = graph_.value(v).storage;
    return s.valid() && graph_.storage(s).born == n;
  }

  bool is_candidate(NodeId n) {
    const TargetId target = graph_.node(n).target;
    if (is_placeholder(target) || !effects_.is_pure(n) || effects_.random(n) || effects_.collective(n)) return false;
    bool good = !graph_.results(n).empty();
    graph_.for_each_output(n, [&](ValueId v) {
      if (graph_.value(v).kind != ValueKind::kTensor || !graph_.value(v).storage.valid()) good = false;
      if (!good) return;
      if (identity_.object_changes(v)) good = false;
      if (is_fresh(n, v) && effects_.final_version(graph_.value(v).storage) != 0) good = false;
    });
    return good;
  }

  bool all_views(NodeId n) const {
    bool views = true;
    graph_.for_each_output(n, [&](ValueId v) { views = views && !is_fresh(n, v); });
    return views;
  }

  uint64_t hash(NodeId n) const {
    const Node& node = graph_.node(n);
    uint64_t hash = mixed(node.target.index, node.flags.inference_mode);
    hash = hash_of(graph_, graph_.arguments(n), hash, [](ValueId v) { return uint64_t{v.index}; });
    graph_.for_each_output(n, [&](ValueId v) { hash = hash_of_type(graph_, v, hash); });
    if (all_views(n)) return hash;
    if (!across_phases_) hash = mixed(hash, node.phase.index);
    for (const StorageVersion& read : effects_.reads(n)) {
      hash = mixed(mixed(hash, same_storage_[read.storage.index].index), read.version);
    }
    return hash;
  }

  bool are_equal(NodeId a, NodeId b) const {
    const Node& x = graph_.node(a);
    const Node& y = graph_.node(b);
    if (x.target != y.target || x.flags.inference_mode != y.flags.inference_mode) return false;
    if (!same_arguments(graph_, graph_.arguments(a), graph_.arguments(b))) return false;
    if (!all_views(a) || !all_views(b)) {
      if (!across_phases_ && x.phase != y.phase) return false;
      const auto reads = effects_.reads(a);
      const auto others = effects_.reads(b);
      if (!std::equal(reads.begin(), reads.end(), others.begin(), others.end(), [&](const auto& r, const auto& o) {
            return r.version == o.version && same_storage_[r.storage.index] == same_storage_[o.storage.index];
          })) {
        return false;
      }
    }
    return have_equal_results(a, b, graph_.results(a), graph_.results(b));
  }

  bool have_equal_results(NodeId a, NodeId b, std::span<const Argument> results,
                          std::span<const Argument> others) const {
    return std::equal(
        results.begin(), results.end(), others.begin(), others.end(), [&](const Argument& r, const Argument& o) {
          if (r.kind != o.kind) return false;
          if (r.kind == ArgumentKind::kList) return have_equal_results(a, b, graph_.list(r), graph_.list(o));
          if (r.kind != ArgumentKind::kValue) return true;
          const ValueId x = r.ref.value;
          const ValueId y = o.ref.value;
          return same_type_and_offset(graph_, x, y) && graph_.value(x).requires_grad == graph_.value(y).requires_grad &&
                 is_fresh(a, x) == is_fresh(b, y) &&
                 (is_fresh(a, x) || graph_.value(x).storage == graph_.value(y).storage);
        });
  }

  std::vector<std::pair<ValueId, ValueId>> result_pairs(NodeId a, NodeId b) const {
    std::vector<std::pair<ValueId, ValueId>> pairs;
    graph_.for_each_output(a, [&](ValueId v) { pairs.emplace_back(v, ValueId()); });
    size_t i = 0;
    graph_.for_each_output(b, [&](ValueId v) { pairs[i++].second = v; });
    return pairs;
  }

  bool may_merge(NodeId earlier, NodeId n) const {
    for (const auto& [x, y] : result_pairs(earlier, n)) {
      const StorageId s = graph_.value(x).storage;
      const StorageId t = graph_.value(y).storage;
      if (is_fresh(n, y) && identity_.escapes(s) && identity_.escapes(t)) return false;
    }
    return true;
  }

  // Arguments and results correspond, so an entry has the same meaning for both.
  void merge_saved(NodeId earlier, NodeId n) {
    if (graph_.saved(n).empty()) return;
    std::vector<SavedTensor> saved(graph_.saved(earlier).begin(), graph_.saved(earlier).end());
    const size_t before = saved.size();
    for (SavedTensor entry : graph_.saved(n)) {
      for (const auto& [x, y] : result_pairs(earlier, n)) {
        if (entry.value == y) entry.value = x;
      }
      const bool known = std::any_of(saved.begin(), saved.end(), [&](const SavedTensor& s) {
        return s.value == entry.value && s.role == entry.role && s.index == entry.index;
      });
      if (!known) saved.push_back(entry);
    }
    if (saved.size() != before) graph_.set_saved(earlier, saved);
  }

  void merge(NodeId earlier, NodeId n) {
    merge_saved(earlier, n);
    for (const auto& [x, y] : result_pairs(earlier, n)) {
      const StorageId s = graph_.value(x).storage;
      const StorageId t = graph_.value(y).storage;
      if (s != t) {
        same_storage_[t.index] = same_storage_[s.index];
        if (identity_.escapes(t)) identity_.set_escapes(s);
      }
      graph_.replace_all_uses_with(y, x);
      replacements_.add(y, x);
    }
    replacements_.add(n, earlier);
    to_erase_[n.index] = true;
  }

  Graph& graph_;
  const bool across_phases_;
  const Effects effects_;
  Identity identity_;
  // The storage that stands in for merged ones in versions of reads, whose versions are all 0.
  std::vector<StorageId> same_storage_;
  HashIndex known_;  // the first node of each kind
  std::vector<bool> to_erase_;
  Replacements replacements_;
};

}  // namespace

CseResult cse(Graph& graph, const CseOptions& options) {
  return {.merged = CommonSubexpressions(graph, options.phases == CseOptions::Phases::kMerge).run()};
}

PassResult CseResult::summary() const { return {.changed = merged != 0, .counters = {{"merged", merged}}}; }

}  // namespace shadowgraph
