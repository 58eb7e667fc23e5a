#include "core/deferred/piece.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {
namespace {

const c10::OperatorHandle& empty_strided() {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_strided", "");
  return op;
}

TensorMeta spec_of(const Graph& graph, ValueId id, StorageId storage) {
  const Value& value = graph.value(id);
  return {.dtype = value.dtype,
          .sizes = graph.sizes(id),
          .strides = graph.strides(id),
          .storage = storage,
          .offset = value.offset,
          .device = value.device(),
          .layout = value.layout};
}

}  // namespace

Piece::Piece(const Graph& record, const Recipe& recipe, const Recipe::Group& group)
    : record_(record), copier_(record, graph_) {
  copier_.reserve(group.steps.size());
  nodes_.reserve(group.steps.size());
  for (const Recipe::Step& step : group.steps) {
    switch (step.role) {
      case Recipe::Role::kRun:
        copy(step.node);
        break;
      case Recipe::Role::kIdentity: {
        const ValueId result = record.results(step.node)[0].ref.value;
        copier_.bind(result, copier_.value(recipe.origin_of(result)));
        break;
      }
      case Recipe::Role::kAllocate:
        allocate(step.node);
        break;
      case Recipe::Role::kSnapshot:
        take_from_snapshot(step.node, group);
        break;
    }
  }
}

NodeId Piece::node(NodeId of_record) const {
  const auto allocation = allocations_.find(of_record);
  return allocation != allocations_.end() ? allocation->second : copier_.node(of_record);
}

void Piece::note(NodeId here, NodeId of_record, bool copied) {
  if (here.index >= made_from_.size()) made_from_.resize(std::max<size_t>(here.index + 1, 2 * made_from_.size()));
  made_from_[here.index] = {of_record, copied};
  nodes_.push_back(here);
}

void Piece::copy(NodeId node) {
  copier_.bind(record_.node(node).region, Graph::kRootRegion);
  note(copier_.copy(node, NodeId()), node, true);
}

void Piece::allocate(NodeId node) {
  const ValueId result = record_.results(node)[0].ref.value;
  const Value& value = record_.value(result);
  const NodeId here = graph_.append(intern_operator(graph_, empty_strided()),
                                    {graph_.int_list(record_.sizes(result)), graph_.int_list(record_.strides(result)),
                                     Argument::of_int(static_cast<int64_t>(value.dtype)), Argument::none(),
                                     Argument::of_device(value.device()), Argument::none()});
  Storage storage = record_.storage(value.storage);
  storage.born = here;
  storage.freed_after = NodeId();
  copier_.bind(result, graph_.add_tensor_result(here, spec_of(record_, result, graph_.add_storage(storage))));
  allocations_[node] = here;
  note(here, node, false);
}

NodeId Piece::append(Builtin target, const Argument& argument) { return graph_.append(target_of(target), {argument}); }

void Piece::take_from_snapshot(NodeId node, const Recipe::Group& group) {
  record_.for_each_output(node, [&](ValueId value) {
    const StorageId storage = record_.value(value).storage;
    auto [bytes, added] = snapshot_here_.try_emplace(storage);
    if (added) {
      const at::Tensor& contents = group.snapshots.at(storage).bytes;
      const NodeId here = append(Builtin::kConstant, Argument::of_constant(graph_.add_constant(contents)));
      const StorageId own = graph_.add_storage(
          {.bytes = static_cast<int64_t>(contents.nbytes()), .kind = StorageKind::kConstant, .born = here});
      const int64_t one = 1;
      bytes->second = graph_.add_tensor_result(
          here, {.dtype = at::kByte, .sizes = contents.sizes(), .strides = {&one, 1}, .storage = own});
      note(here, node, false);
    }
    const NodeId here = append(Builtin::kAlias, Argument::of_value(bytes->second));
    copier_.bind(value, graph_.add_tensor_result(here, spec_of(record_, value, graph_.value(bytes->second).storage)));
    note(here, node, false);
  });
}

}  // namespace shadowgraph
