// Links backward nodes to forward nodes, and notes what autograd saves.
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include "core/capture/recorder.h"
#include "core/capture/wrapper_parts.h"
#include "core/fake/kernel_depth.h"
#include "core/fake/saved_data.h"
#include "core/fake/wrapper_tensors.h"
#include "ir/records.h"

namespace shadowgraph {
namespace {

class SavedTensorHook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedTensorHook(Recorder& recorder) : recorder_(recorder) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    data_.emplace(tensor);
    recorder_.tensor_saved(tensor);
  }
  at::Tensor call_unpack_hook() override { return data_->unpack(); }

 private:
  Recorder& recorder_;
  std::optional<SavedData> data_;
};

}  // namespace

// Puts a node that runs under the engine into backward, and links it to the forward node that made the engine's current
// grad_fn.
void Recorder::link_backward(NodeId node) {
  const auto grad_fn = torch::autograd::get_current_node();
  if (!grad_fn) {
    // What nodes have queued runs when the last of them is done: FSDP2 and DistributedDataParallel finish there.
    if (torch::autograd::get_current_graph_task_id() >= 0) mutable_node(graph_, node).phase = Graph::kBackward;
    return;
  }
  Node& n = mutable_node(graph_, node);
  n.phase = Graph::kBackward;
  const uint64_t sequence = grad_fn->sequence_nr();
  if (sequence < sequence_base_ || sequence - sequence_base_ >= sequence_owner_.size()) return;
  n.forward = sequence_owner_[sequence - sequence_base_];
  if (!n.forward.valid()) return;
  n.region = graph_.node(n.forward).region;
  n.source = graph_.node(n.forward).source;
}

// Links a node that is run again: it is part of backward, as far as it goes the same way as the run in forward.
void Recorder::link_recomputation(NodeId node) {
  Node& n = mutable_node(graph_, node);
  n.phase = Graph::kBackward;
  n.region = current_region(arguments_);
  Recomputation& run = recomputations_.back();
  const std::vector<NodeId>& first = checkpoints_[run.checkpoint];
  if (run.next == first.size()) return;
  const NodeId repeated = first[run.next++];
  if (graph_.node(repeated).target != n.target) {
    // torch.utils.checkpoint detaches a tensor that it keeps now.
    if (graph_.target(n.target).name() == "aten::detach") {
      --run.next;
      return;
    }
    // The second run went another way: an operator that both take later on is not the same one.
    run.next = static_cast<uint32_t>(first.size());
    return;
  }
  n.forward = repeated;
  n.source = graph_.node(repeated).source;
}

// Claims sequence numbers. Autograd makes an operator's grad_fn just before it calls it, so numbers not yet claimed are
// this node's.
void Recorder::claim_sequence(NodeId node) {
  if (!own_link_) return;  // this link goes on in other scopes and threads, where numbers mean nothing
  const uint64_t now = at::sequence_number::peek();
  if (now == sequence_seen_) return;
  sequence_seen_ = now;
  sequence_owner_.resize(now - sequence_base_, node);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Recorder::hooks_for_saved_tensor() {
  return std::make_unique<SavedTensorHook>(*this);
}

void Recorder::tensor_saved(const at::Tensor& tensor) {
  if (C10_UNLIKELY(is_wrapper(tensor))) {
    const std::vector<at::Tensor> parts = parts_of(tensor);
    for (const at::Tensor& part : parts) tensor_saved(part);
    if (!parts.empty()) return;
  }
  const KernelDepth depth;
  const Argument argument = argument_of_tensor(tensor);
  if (argument.kind != ArgumentKind::kValue) return;
  saved_.push_back({at::sequence_number::peek() - 1, last_, argument.ref.value});
}

void Recorder::attach_saved_tensors() {
  std::vector<std::pair<NodeId, SavedTensor>> attached;
  attached.reserve(saved_.size());
  for (const Saved& saved : saved_) {
    NodeId owner;
    if (saved.sequence >= sequence_base_ && saved.sequence - sequence_base_ < sequence_owner_.size()) {
      owner = sequence_owner_[saved.sequence - sequence_base_];
    }
    if (!owner.valid()) owner = saved.last_node;
    if (!owner.valid()) continue;
    SavedTensor entry;
    entry.value = saved.value;
    uint16_t position = 0;
    for (const Argument& argument : graph_.arguments(owner)) {
      graph_.for_each_value({&argument, 1}, [&](ValueId value) {
        if (entry.role == SavedRole::kInternal && value == saved.value) {
          entry.role = SavedRole::kArgument;
          entry.index = position;
        }
      });
      ++position;
    }
    if (entry.role == SavedRole::kInternal) {
      uint16_t index = 0;
      graph_.for_each_output(owner, [&](ValueId value) {
        if (value == saved.value) {
          entry.role = SavedRole::kResult;
          entry.index = index;
        }
        ++index;
      });
    }
    attached.emplace_back(owner, entry);
  }
  std::stable_sort(attached.begin(), attached.end(),
                   [](const auto& a, const auto& b) { return a.first.index < b.first.index; });
  std::vector<SavedTensor> group;
  for (size_t i = 0; i < attached.size();) {
    const NodeId owner = attached[i].first;
    group.clear();
    for (; i < attached.size() && attached[i].first == owner; ++i) group.push_back(attached[i].second);
    graph_.set_saved(owner, group);
  }
}

}  // namespace shadowgraph
