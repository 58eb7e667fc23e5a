// dce: erases nodes that nobody can notice.
//
// What. Program order backwards, with one bit a storage: whether what it contains at this point is looked at later. A
// node stays if a result of it is used or if it is there for its effect. It also stays if it writes, or gives birth to,
// a storage that is looked at later. Everything else goes.
//
//     %1 = aten::empty(...)                    @s1
//     %2 = aten::add_.Tensor(self=%1, ...)     @s1    goes: nobody reads s1 after it
//     %3 = aten::add_.Tensor(self=%0, ...)     @s0    stays: s0 is an input, and the caller still has it
//     %4 = aten::bernoulli(self=%0)            @s2    stays: later random numbers depend on it (random=drop gives it up)
//
// Why not "a pure node without uses", as torch.fx has it: an in-place operator on a dead buffer would stay for ever.
// And a write through a view, whose result nobody names, would go though the base is read.
//
// How it is decided that a storage is looked at later. It is an operand of a node that stays, of sg::output or
// sg::gradient, or it is still the user's when the graph ends. Those are parameters, buffers, inputs, constants, and
// gradients and optimizer state that were not freed.
//
// Always kept: parameters, buffers and inputs, host reads, collectives, what nothing is known of, operators without
// results, and random numbers unless told otherwise. A graph that draws numbers again from a saved state
// (docs/checkpoints.md) keeps random numbers in any case. Tensors saved for a backward that is gone keep nothing
// alive; nodes that stay no longer list them.
//
// Cost. One walk each way; about 0.1 us a node.
#include "core/calls/random_state.h"
#include "ir/analysis/identity.h"
#include "ir/edit/replacements.h"
#include "shadowgraph/passes/simplify.h"

namespace shadowgraph {
namespace {

class DeadCode {
 public:
  DeadCode(const Graph& graph, bool drop_random)
      : graph_(graph),
        effects_(Effects::of(graph)),
        drop_random_(drop_random),
        is_effect_(graph.target_count(), kUnknown),
        needed_values_(graph.value_capacity(), false),
        needed_storages_(graph.storage_count(), false) {
    for (uint32_t i = 0; i < graph.storage_count(); ++i) needed_storages_[i] = outlives(graph, StorageId(i));
  }

  // By node index.
  std::vector<bool> run() {
    std::vector<bool> dead(graph_.node_capacity(), false);
    for (NodeId n : graph_.nodes_reversed()) {
      if (is_needed(n)) {
        graph_.for_each_input(n, [&](ValueId v) {
          needed_values_[v.index] = true;
          if (const StorageId s = graph_.value(v).storage; s.valid()) needed_storages_[s.index] = true;
        });
      } else {
        dead[n.index] = true;
      }
    }
    return dead;
  }

 private:
  static constexpr int8_t kUnknown = -1;

  // What the target alone tells.
  bool is_effect(TargetId target) {
    int8_t& known = is_effect_[target.index];
    if (known == kUnknown) {
      const Target& t = graph_.target(target);
      const bool gives_nothing = t.signature().returns.empty() && t.facts().written.empty();
      known = is_end(target) || (is_placeholder(target) && target != target_of(Builtin::kConstant)) || gives_nothing ||
              t.facts().collective;
    }
    return known != 0;
  }

  bool is_needed(NodeId n) {
    if (is_effect(graph_.node(n).target) || effects_.host_read(n) || effects_.unknown(n)) return true;
    if (effects_.random(n) && !drop_random_) return true;
    for (const StorageWrite& write : effects_.writes(n)) {
      if (write.storage.index < needed_storages_.size() && needed_storages_[write.storage.index]) return true;
    }
    bool needed = false;
    graph_.for_each_output(n, [&](ValueId v) {
      needed = needed || needed_values_[v.index];
      const StorageId s = graph_.value(v).storage;
      // A constant is there for its readers; who writes to it is kept, and reads it.
      const bool birth = s.valid() && graph_.storage(s).born == n && !is_placeholder(graph_.node(n).target);
      needed = needed || (birth && needed_storages_[s.index]);
    });
    return needed;
  }

  const Graph& graph_;
  const Effects effects_;
  const bool drop_random_;
  std::vector<int8_t> is_effect_;  // by target
  std::vector<bool> needed_values_;
  std::vector<bool> needed_storages_;
};

// Says whether numbers are drawn twice from one state. A draw that is dropped in one place would then shift those after
// it there, and not in the other.
bool replays_random_state(const Graph& graph) {
  for (uint32_t i = 0; i < graph.target_count(); ++i) {
    if (graph.target(TargetId(i)).name() == exchange_random_state().name()) return true;
  }
  return false;
}

}  // namespace

DceResult dce(Graph& graph, const DceOptions& options) {
  const bool drop_random = options.random == DceOptions::Random::kDrop && !replays_random_state(graph);
  const std::vector<bool> dead = DeadCode(graph, drop_random).run();
  return {.erased = erase_nodes(graph, dead)};
}

PassResult DceResult::summary() const { return {.changed = erased != 0, .counters = {{"erased", erased}}}; }

}  // namespace shadowgraph
