// Builds the graph anew as reinplace.cpp has decided. Nodes are copied, called in place, turned from a scatter into a
// copy_ into a view, or left out. No decision is made here, so that one file has all reasons and the other all edits.
// One walk over the nodes.
#include <algorithm>
#include <utility>

#include "passes/functional/reinplacer.h"
#include "passes/rewrite/graph_rebuild.h"
#include "passes/rewrite/node_emitter.h"

namespace shadowgraph {

// Makes each node as it was decided, into a new graph.
class Reinplacer::Build {
  // Maps values read to values made. Stands first, since its type is deduced.
  auto value_of() const {
    return [this](ValueId v) { return now_[v]; };
  }

 public:
  explicit Build(Reinplacer& decided)
      : decided_(decided), read_(decided.read_), emitter_(read_, made_), carried_(read_, made_) {}

  Graph run() {
    for (const NodeId n : read_.nodes()) {
      const Decision decision = std::as_const(decided_.decisions_)[n];
      carried_.enter_region(read_.node(n).region, value_of());
      emitter_.stand_for(n, carried_.made(read_.node(n).forward));
      std::vector<Argument> arguments;
      for (const Argument& argument : read_.arguments(n)) arguments.push_back(emitter_.mapped(argument, value_of()));
      switch (decision.kind) {
        case Kind::kCopy:
          copy(n, arguments);
          break;
        case Kind::kInPlace:
          call_in_place(n, *decision.target, arguments);
          break;
        case Kind::kView:
          scatter_to_view(n, arguments);
          break;
        case Kind::kGone:
          read_.for_each_output(n, [&](ValueId v) { now_[v] = arguments[0].ref.value; });
          break;
      }
      carried_.done(n);
    }
    carried_.finish(value_of(), [&](StorageId s) { return std::as_const(storages_)[decided_.merged(s)]; });
    return std::move(made_);
  }

 private:
  // Merged storages are one, made where the first of them was born.
  StorageId storage_of(StorageId old, NodeId born) {
    StorageId& storage = storages_[decided_.merged(old)];
    if (!storage.valid()) storage = carried_.storage(decided_.merged(old), born);
    return storage;
  }

  // Defines a result as it was, but for where it lives. `like` is the value whose geometry and storage it takes:
  // itself, or the operand that is now written.
  ValueId define(NodeId node, ValueId old, ValueId like) {
    const Value& value = read_.value(like);
    ValueId result;
    if (value.kind != ValueKind::kTensor) {
      result = made_.new_scalar(node, value.kind);
    } else {
      TensorMeta spec;
      spec.dtype = value.dtype;
      spec.sizes = read_.sizes(like);
      spec.strides = read_.strides(like);
      spec.offset = value.offset;
      spec.device = value.device();
      spec.layout = value.layout;
      spec.requires_grad = read_.value(old).requires_grad;
      if (value.storage.valid()) spec.storage = storage_of(value.storage, node);
      result = made_.new_tensor(node, spec);
    }
    now_[old] = result;
    return result;
  }

  template <class Like>
  std::vector<Argument> results_like(NodeId node, std::span<const Argument> results, Like&& like) {
    std::vector<Argument> copies;
    for (const Argument& argument : results) {
      copies.push_back(emitter_.mapped(argument, [&](ValueId v) { return define(node, v, like(v)); }));
    }
    return copies;
  }
  std::vector<Argument> same_results(NodeId node, std::span<const Argument> results) {
    return results_like(node, results, [](ValueId v) { return v; });
  }

  void copy(NodeId n, const std::vector<Argument>& arguments) {
    const NodeId node = emitter_.append(carried_.target(read_.node(n).target), arguments);
    made_.set_results(node, same_results(node, read_.results(n)));
    carried_.node(n, node);
    carried_.saved(n, node, value_of());
  }

  void call_in_place(NodeId n, const Target& target, const std::vector<Argument>& arguments) {
    const OperatorFacts& facts = target.facts();
    const auto results = read_.results(n);
    const NodeId node = emitter_.append(carried_.target(target), arguments);
    const size_t fresh = results.size() - facts.written.size();
    std::vector<Argument> copies = same_results(node, results.subspan(0, fresh));
    for (size_t w = 0; w < facts.written.size(); ++w) {
      std::vector<ValueId> operands;
      read_.for_each_value(read_.arguments(n).subspan(facts.written[w], 1), [&](ValueId v) { operands.push_back(v); });
      // relu_ returns its operand, a value of its own here; _foreach_add_ returns nothing, and later readers of the
      // result read the operand.
      const bool returned = std::any_of(facts.aliases.begin(), facts.aliases.end(),
                                        [&](const auto& a) { return a.argument == facts.written[w]; });
      size_t next = 0;
      const auto operand = [&](ValueId) { return operands[next++]; };
      if (returned) {
        copies.push_back(results_like(node, results.subspan(fresh + w, 1), operand).front());
      } else {
        read_.for_each_value(results.subspan(fresh + w, 1), [&](ValueId v) { now_[v] = value_of()(operand(v)); });
      }
    }
    made_.set_results(node, copies);
    carried_.node(n, node);
    carried_.saved(n, node, value_of());
  }

  // slice_scatter(base, source) gives a whole new tensor with a part replaced. If nobody needs the old one, the part is
  // written where it is, and later readers of the result read the base.
  void scatter_to_view(NodeId n, std::vector<Argument>& arguments) {
    const Scatter& scatter = *scatter_of(read_.target(n));
    const TensorGeometry place = *decided_.region(n);
    const Argument source = arguments[1];
    const ValueId base = arguments[0].ref.value;
    arguments.erase(arguments.begin() + 1);
    const NodeId node = emitter_.append(emitter_.target(scatter.view), arguments);
    const StorageId storage = made_.value(base).storage;
    const ValueId view = emitter_.add_result(node, place, storage);
    carried_.node(n, emitter_.append(emitter_.target("aten::copy_"),
                                     {Argument::of_value(view), source, Argument::of_bool(false)}));
    emitter_.add_result(made_.last(), place, storage);
    now_[read_.results(n).front().ref.value] = base;
  }

  Reinplacer& decided_;
  const Graph& read_;
  Graph made_;
  NodeEmitter emitter_;
  GraphRebuild carried_;
  IdMap<ValueId, ValueId> now_;
  IdMap<StorageId, StorageId> storages_;
};

Graph Reinplacer::build() { return Build(*this).run(); }

}  // namespace shadowgraph
