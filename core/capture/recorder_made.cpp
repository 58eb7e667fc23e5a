// Records what tensors are that the program makes while it is recorded. A parameter that was there before is a
// placeholder. One that a program makes, and moves to a device, is the result of an operator.
#include <algorithm>

#include "core/capture/recorder.h"
#include "shadowgraph/made_tensors.h"

namespace shadowgraph {

// Only what is made of nothing, or comes from another device, is an input: other arguments of a module are computed.
bool Recorder::comes_from_elsewhere(ValueId value) const {
  const NodeId born = graph_.storage(graph_.value(value).storage).born;
  bool elsewhere = true;
  graph_.for_each_input(born, [&](ValueId operand) {
    const StorageId storage = graph_.value(operand).storage;
    if (storage.valid() && graph_.storage(storage).device() == graph_.value(value).device()) elsewhere = false;
  });
  return elsewhere;
}

void Recorder::name_what_was_made(ValueId value, const Name& name) {
  const StorageId storage = graph_.value(value).storage;
  if (!storage.valid()) return;
  const NodeId born = graph_.storage(storage).born;
  if (!born.valid() || graph_.is_placeholder(born)) return;
  if (name.kind == Builtin::kInput) {
    if (comes_from_elsewhere(value)) graph_.set_storage_kind(storage, StorageKind::kInput);
    return;
  }
  const bool parameter = name.kind == Builtin::kParameter;
  graph_.set_storage_kind(storage, parameter ? StorageKind::kParameter : StorageKind::kBuffer);
  const NodeId made = graph_.value(value).producer;
  graph_.set_note(made, parameter ? "parameter" : "buffer", name.name);
  // The program has built the module until here, but for what came after the first call of one.
  const uint32_t last = modules_named_ ? (entered_.valid() ? std::min(entered_.index, made.index) : 0) : made.index;
  NodeId node = built_.valid() ? graph_.node(built_).next : *graph_.nodes().begin();
  for (; node.valid(); node = graph_.node(node).next) {
    if (graph_.is_placeholder(node)) continue;
    if (node.index > last) break;
    if (graph_.node(node).phase == Graph::kForward) graph_.set_phase(node, Graph::kInit);
    built_ = node;
  }
}

void Recorder::mark(const at::Tensor& tensor, StorageKind kind) {
  const StorageId storage = graph_.value(declare(tensor)).storage;
  if (storage.valid() && graph_.storage(storage).kind == StorageKind::kTemporary)
    graph_.set_storage_kind(storage, kind);
}

void mark_gradient(const at::Tensor& gradient) {
  Recorder* const recorder = current_recorder();
  if (recorder != nullptr && is_fake(gradient)) recorder->mark(gradient, StorageKind::kGradient);
}

void mark_optimizer_state(const at::Tensor& state) {
  Recorder* const recorder = current_recorder();
  if (recorder != nullptr && is_fake(state)) recorder->mark(state, StorageKind::kOptimizerState);
}

}  // namespace shadowgraph
