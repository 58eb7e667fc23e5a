#include "sharding/overlap/gather_again.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ir/edit/deaths.h"
#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/edit/insertion_point.h"

namespace shadowgraph {
namespace {

class GatherAgain {
 public:
  explicit GatherAgain(Graph& graph) : graph_(graph), effects_(Effects::of(graph)) {}

  int64_t run(std::span<const InputGradientSum> sums) {
    int64_t count = 0;
    for (const InputGradientSum& sum : sums) count += again(sum);
    if (count > 0) {
      keep_parts();
      die_at_last_use(graph_, changed_);
    }
    return count;
  }

 private:
  int64_t again(const InputGradientSum& sum) {
    NodeId first = sum.products.front();
    for (const auto* of : {&sum.products, &sum.weight_gradients}) {
      for (const NodeId product : *of) first = graph_.is_before(product, first) ? product : first;
    }
    std::map<NodeId, std::vector<NodeId>> readers;  // by what gathered
    for (const NodeId weights : sum.weight_gradients) {
      graph_.for_each_input(weights, [&](ValueId v) {
        const NodeId gather = gather_behind(graph_, v);
        // What backward itself gathered is the gradient, or an input that is computed again just before.
        if (gather.valid() && graph_.node(gather).phase == Graph::kForward && is_unchanged(gather)) {
          readers[gather].push_back(weights);
        }
      });
    }
    const auto before = std::ssize(made_);
    for (const auto& [gather, users] : readers) gather_for(gather, first, users);
    return std::ssize(made_) - before;
  }

  // Nobody wrote to the part since.
  bool is_unchanged(NodeId gather) const {
    return std::ranges::all_of(effects_.reads(gather), [&](const StorageVersion& read) {
      return effects_.is_generator(read.storage) || effects_.final_version(read.storage) == read.version;
    });
  }

  // A call once more: in new memory, or as a view of `source`.
  ValueId repeat(InsertionPoint& at, NodeId node, ValueId source, bool is_view) {
    const auto old = graph_.arguments(node);
    std::vector<Argument> arguments(old.begin(), old.end());
    arguments[0] = Argument::of_value(source);
    const ValueId like = graph_.results(node)[0].ref.value;
    const NodeId made = at.insert(graph_.node(node).target, arguments);
    StorageId storage = graph_.value(source).storage;
    if (!is_view) {
      const Storage before = graph_.storage(graph_.value(like).storage);
      storage = graph_.add_storage({.bytes = before.bytes,
                                    .device_type = before.device_type,
                                    .device_index = before.device_index,
                                    .born = made});
      changed_.insert(storage);
    }
    const std::vector<int64_t> sizes(graph_.sizes(like).begin(), graph_.sizes(like).end());
    const std::vector<int64_t> strides(graph_.strides(like).begin(), graph_.strides(like).end());
    const Value value = graph_.value(like);
    return graph_.add_tensor_result(made, {.dtype = value.dtype,
                                           .sizes = sizes,
                                           .strides = strides,
                                           .storage = storage,
                                           .offset = value.offset,
                                           .device = value.device()});
  }

  void gather_for(NodeId gather, NodeId first, const std::vector<NodeId>& users) {
    InsertionPoint at(graph_, first);
    const ValueId part = graph_.arguments(gather)[0].ref.value;
    const ValueId whole = graph_.results(gather)[0].ref.value;
    changed_.insert(graph_.value(whole).storage);
    // Sums that follow one another, as of queries and keys, have one gather.
    std::map<ValueId, ValueId>& made = made_[gather];
    if (made.empty()) made[whole] = repeat(at, gather, part, /*is_view=*/false);
    for (const NodeId user : users) {
      std::vector<ValueId> operands;
      graph_.for_each_input(user, [&](ValueId v) { operands.push_back(v); });
      for (const ValueId operand : operands) {
        if (gather_behind(graph_, operand) != gather) continue;
        std::vector<ValueId> chain;  // from the operand back to what was gathered
        for (ValueId v = operand; !made.contains(v); v = graph_.arguments(graph_.value(v).producer)[0].ref.value) {
          chain.push_back(v);
        }
        for (auto v = chain.rbegin(); v != chain.rend(); ++v) {
          const NodeId producer = graph_.value(*v).producer;
          made[*v] = repeat(at, producer, made.at(graph_.arguments(producer)[0].ref.value), /*is_view=*/true);
        }
        graph_.replace_uses_if(operand, made.at(operand), [&](NodeId n, const Argument&) { return n == user; });
      }
    }
  }

  // Autograd keeps the part in place of the whole.
  void keep_parts() {
    std::set<StorageId> wholes;
    for (const auto& [gather, made] : made_) {
      const ValueId part = graph_.arguments(gather)[0].ref.value;
      wholes.insert(graph_.value(graph_.results(gather)[0].ref.value).storage);
      const SavedTensor saved{.value = part, .role = SavedRole::kArgument, .index = 0};
      graph_.set_saved(gather, {&saved, 1});
    }
    std::set<StorageId> still_read;
    for (const NodeId node : graph_.nodes()) {
      if (graph_.node(node).phase == Graph::kForward) continue;
      graph_.for_each_input(node, [&](ValueId v) { still_read.insert(graph_.value(v).storage); });
    }
    for (const NodeId node : graph_.nodes()) {
      std::vector<SavedTensor> kept;
      for (const SavedTensor& saved : graph_.saved(node)) {
        const StorageId storage = graph_.value(saved.value).storage;
        if (!wholes.contains(storage) || still_read.contains(storage)) kept.push_back(saved);
      }
      if (kept.size() != graph_.saved(node).size()) graph_.set_saved(node, kept);
    }
  }

  Graph& graph_;
  const Effects effects_;
  std::set<StorageId> changed_;                        // gathered in forward, and again
  std::map<NodeId, std::map<ValueId, ValueId>> made_;  // by what gathered: what it made, and views of it, once more
};

}  // namespace

int64_t gather_again(Graph& graph, std::span<const InputGradientSum> sums) { return GatherAgain(graph).run(sums); }

}  // namespace shadowgraph
