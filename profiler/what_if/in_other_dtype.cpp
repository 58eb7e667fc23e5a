// Converts a step that ran in float32 to a narrower dtype, as `model.to(dtype)` would have run.
//
// Storages of floats shrink. Losses, statistics of norms and attention, and tables of modules without parameters do
// not: PyTorch computes or keeps them in float32. Where a loss meets the model there is a cast, which the graph does
// not have; it becomes two lives, one in each type.
#include <algorithm>
#include <unordered_set>

#include "ir/analysis/module_tree.h"
#include "profiler/what_if/question.h"

namespace shadowgraph::step_lives {

// Either a composite says so by its name (cross_entropy_loss), or the node ran outside all modules, where training
// loops write their losses.
bool Question::is_loss(NodeId node) const {
  if (graph_.is_placeholder(node) || graph_.node(node).phase != Graph::kForward) return false;
  bool inside = false;
  for (RegionId id = graph_.node(node).region; id.valid(); id = graph_.region(id).parent) {
    const Region& region = graph_.region(id);
    inside |= region.kind == RegionKind::kModule;
    const std::string_view name = graph_.text_or_empty(region.name);
    if (region.kind == RegionKind::kComposite && name.find("_loss") != std::string_view::npos) return true;
  }
  return !inside;
}

// A backward node comes after its forward node, so one walk in program order marks both.
IdMap<NodeId, uint8_t> Question::loss_nodes() const {
  IdMap<NodeId, uint8_t> losses;
  for (const NodeId node : costs_.nodes) {
    const NodeId forward = graph_.node(node).forward;
    losses[node] = is_loss(node) || (forward.valid() && std::as_const(losses)[forward] != 0) ? 1 : 0;
  }
  return losses;
}

bool Question::gives_float32_statistics(NodeId node) const {
  const std::string_view name = graph_.target(node).name();
  return device_.is_cuda() &&
         (name.starts_with("aten::native_layer_norm") || name.starts_with("aten::native_group_norm") ||
          name.starts_with("aten::native_batch_norm") || name.starts_with("aten::cudnn_batch_norm") ||
          name.starts_with("aten::_fused_rms_norm") || name.starts_with("aten::_scaled_dot_product_") ||
          name.starts_with("aten::_batch_norm_with_update"));
}

IdMap<StorageId, uint8_t> Question::kept_in_float32() const {
  IdMap<StorageId, uint8_t> kept;
  std::unordered_set<std::string> with_parameters;
  const auto owner = [](const std::string& name) { return name.substr(0, std::min(name.rfind('.'), name.size())); };
  for (const NodeId node : costs_.nodes) {
    if (graph_.node(node).target == target_of(Builtin::kParameter)) {
      with_parameters.insert(owner(placeholder_name(graph_, node)));
    }
  }
  const auto keep = [&](ValueId value) {
    if (graph_.value(value).storage.valid()) kept[graph_.value(value).storage] = 1;
  };
  for (const NodeId node : costs_.nodes) {
    const std::string name = placeholder_name(graph_, node);
    // The buffers meant here are tables in modules without parameters, counters and scales.
    if (graph_.node(node).target == target_of(Builtin::kBuffer) &&
        (!with_parameters.contains(owner(name.starts_with("ema.") ? name.substr(4) : name)))) {
      graph_.for_each_output(node, keep);
    } else if (graph_.is_placeholder(node)) {
      graph_.for_each_output(node, [&](ValueId value) {
        if (graph_.sizes(value).empty()) keep(value);
      });
    } else if (computes_loss_[node] != 0) {
      graph_.for_each_output(node, keep_if_born(node, kept));
    } else if (gives_float32_statistics(node)) {
      int index = 0;
      graph_.for_each_output(node, [&](ValueId value) {
        if (index++ > 0) keep(value);
      });
    }
  }
  return kept;
}

std::function<void(ValueId)> Question::keep_if_born(NodeId node, IdMap<StorageId, uint8_t>& kept) const {
  return [this, node, &kept](ValueId value) {
    const StorageId storage = graph_.value(value).storage;
    if (storage.valid() && graph_.storage(storage).born == node) kept[storage] = 1;
  };
}

uint32_t Question::first_use_outside_losses(StorageId storage) const {
  uint32_t first = kToTheEnd;
  graph_.for_each_value_in(storage, [&](ValueId value) {
    graph_.for_each_use(value, [&](NodeId use) {
      if (computes_loss_[use] == 0 && graph_.target(use).kind() == TargetKind::kOperator) {
        first = std::min(first, costs_.order[use]);
      }
    });
  });
  return first;
}

uint32_t Question::last_use_in_losses(StorageId storage) const {
  uint32_t last = 0;
  graph_.for_each_value_in(storage, [&](ValueId value) {
    graph_.for_each_use(value, [&](NodeId use) {
      if (computes_loss_[use] != 0) last = std::max(last, costs_.order[use]);
    });
  });
  return last;
}

std::vector<Life> Question::copies_for_losses() const {
  std::vector<Life> copies;
  IdMap<StorageId, uint8_t> seen, saved;
  const uint32_t end = first_backward_.value_or(optimizer_);
  // What a loss saves of its input is the float32 copy: that one lives until the loss's backward has read it.
  for (uint32_t at = 0; at < end; ++at) {
    if (computes_loss_[costs_.nodes[at]] == 0) continue;
    for (const SavedTensor& tensor : graph_.saved(costs_.nodes[at])) {
      const StorageId storage = graph_.value(tensor.value).storage;
      if (storage.valid()) saved[storage] = 1;
    }
  }
  for (uint32_t at = 0; at < end; ++at) {
    const NodeId node = costs_.nodes[at];
    if (computes_loss_[node] == 0) continue;
    graph_.for_each_input(node, [&](ValueId value) {
      const StorageId storage = graph_.value(value).storage;
      if (!storage.valid() || seen[storage] != 0 || graph_.value(value).dtype != c10::ScalarType::Float) return;
      const NodeId born = graph_.storage(storage).born;
      if (!born.valid() || graph_.is_placeholder(born) || computes_loss_[born] != 0) return;
      seen[storage] = 1;
      int64_t elements = 1;
      for (const int64_t size : graph_.sizes(value)) elements *= size;
      const uint32_t last = saved[storage] != 0 ? last_use_in_losses(storage) : std::max(end, 1U) - 1;
      copies.push_back({before_node(at), at_node(std::max(at, last)), elements * 4, StorageKind::kActivation, {}});
    });
  }
  return copies;
}

void Question::convert(Lives& lives) const {
  const int64_t wide = 4, narrow = static_cast<int64_t>(c10::elementSize(*change_.dtype));
  IdMap<StorageId, uint8_t> kept = kept_in_float32();
  std::vector<Life> more;
  for (Life& life : lives.all) {
    if (!life.storage.valid() || dtype_of(graph_, life.storage) != c10::ScalarType::Float) continue;
    const int64_t converted = life.bytes / wide * narrow;
    if (kept[life.storage] == 0) {
      life.bytes = converted;
      continue;
    }
    // The gradient of a loss's input leaves the loss's float32 for the model's type.
    const uint32_t use = first_use_outside_losses(life.storage);
    if (life.kind == StorageKind::kParameter || use == kToTheEnd || at_node(use) <= life.born || !is_backward(use)) {
      continue;
    }
    more.push_back({before_node(use), life.last, converted, life.kind, {}});
    life.last = before_node(use);
  }
  for (const Life& copy : copies_for_losses()) more.push_back(copy);
  lives.all.insert(lives.all.end(), more.begin(), more.end());
}

}  // namespace shadowgraph::step_lives
