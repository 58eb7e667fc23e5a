// Represents a step by the lives of its storages: from when to when each is alive, with how many bytes, for what.
//
// A what-if question changes this list and no graph: it halves bytes, moves ends, drops lives and adds others. The
// answer is the most that is alive at once. Every step over the list is linear in storages and nodes.
#include "shadowgraph/profile/what_if.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <unordered_set>

#include "core/fake/pretended_devices.h"
#include "ir/analysis/module_tree.h"
#include "profiler/program_costs.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/units.h"

namespace shadowgraph::step_lives {

struct Life {
  uint32_t born = 0;  // first and last step alive, both inclusive
  uint32_t last = 0;
  int64_t bytes = 0;
  StorageKind kind = StorageKind::kTemporary;
  StorageId storage;  // of the graph; invalid: none of it
};

constexpr uint32_t kToTheEnd = 0xFFFFFFFFU;  // Life::last of what outlives the step

// Steps of lives count double. The node at place p of the graph is step 2p. The odd step before it is for a cast, whose
// copy is there before the node runs. The graph has no such node, since its program ran in float32.
constexpr uint32_t at_node(uint32_t place) { return 2 * place; }
constexpr uint32_t before_node(uint32_t place) { return place == 0 ? 0 : 2 * place - 1; }
constexpr uint32_t place_of(uint32_t step) { return step / 2; }

// Has the lives of a step, and where the optimizer begins.
struct Lives {
  std::vector<Life> all;
  uint32_t steps = 0;
  uint32_t optimizer = 0;  // its first step; `steps` without one
};

// The most bytes alive at once, at the first step that has them.
struct Most {
  int64_t bytes = 0;
  uint32_t step = 0;
  BytesByKind by_kind{};
};

Most most_of(const Lives& lives) {
  std::vector<BytesByKind> change(size_t{lives.steps} + 1);
  for (const Life& life : lives.all) {
    change[life.born][static_cast<size_t>(life.kind)] += life.bytes;
    if (life.last < lives.steps) change[life.last + 1][static_cast<size_t>(life.kind)] -= life.bytes;
  }
  Most most;
  BytesByKind now{};
  for (uint32_t step = 0; step < lives.steps; ++step) {
    int64_t total = 0;
    for (size_t kind = 0; kind < now.size(); ++kind) total += now[kind] += change[step][kind];
    if (total > most.bytes) most = {total, step, now};
  }
  return most;
}

// Returns the bytes of what outlives the step.
BytesByKind held_at_end(const Lives& lives) {
  BytesByKind held{};
  for (const Life& life : lives.all) {
    if (life.last >= lives.steps) held[static_cast<size_t>(life.kind)] += life.bytes;
  }
  return held;
}

std::optional<c10::ScalarType> dtype_of(const Graph& graph, StorageId storage) {
  std::optional<c10::ScalarType> dtype;
  graph.for_each_value_in(storage, [&](ValueId value) {
    if (!dtype) dtype = graph.value(value).dtype;
  });
  return dtype;
}

// Knows one recorded step, and how a question changes the lives of its storages. what_if() calls the parts in this
// order: recorded(), convert(), later_micro_batch(), with_optimizer(), spread().
//
// All are linear in the graph. An optimizer costs a capture of its step over fake parameters: so state and temporaries
// are those that libtorch's own code makes, not a formula's.

class Question {
 public:
  // Both must outlive it. Throws Error for a graph that is no training step.
  Question(const Graph& graph, const WhatIf& change)
      : graph_(graph),
        change_(change),
        costs_(graph),
        device_(main_device(graph, change.device)),
        computes_loss_(loss_nodes()) {
    find_phases();
  }

  const ProgramCosts& costs() const { return costs_; }
  bool is_steady() const { return steady_; }
  bool has_float32_parameters() const {
    return std::any_of(costs_.nodes.begin(), costs_.nodes.end(), [&](NodeId node) {
      return graph_.node(node).target == target_of(Builtin::kParameter) && is_float32(node);
    });
  }

  bool clips_or_scales() const {
    return std::any_of(costs_.nodes.begin(), costs_.nodes.end(), [&](NodeId node) {
      const std::string_view name = graph_.target(node).name();
      return name.starts_with("aten::_amp_") || name.starts_with("aten::_foreach_norm") ||
             name.starts_with("aten::_foreach_lerp_");
    });
  }

  std::string phase_at(uint32_t step) const {
    const uint32_t place = place_of(step);
    return place < optimizer_ ? graph_.phase_name(graph_.node(costs_.nodes[place]).phase) : "optimizer";
  }

  Lives recorded() const {
    Lives lives{.steps = at_node(static_cast<uint32_t>(costs_.nodes.size())), .optimizer = at_node(optimizer_)};
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const StorageId id(i);
      const Storage& storage = graph_.storage(id);
      if (!is_on(storage.device(), device_)) continue;
      const bool freed = storage.freed_after.valid() && !graph_.is_erased(storage.freed_after);
      Life life{.born = existed_before(graph_, storage) ? 0 : at_node(costs_.order[storage.born]),
                .last = freed ? at_node(costs_.order[storage.freed_after]) : kToTheEnd,
                .bytes = storage.bytes,
                .kind = costs_.kinds[id],
                .storage = id};
      life.last = std::max(life.last, life.born);
      lives.all.push_back(life);
    }
    return lives;
  }

  // Converts a step that ran in float32 to a narrower dtype, as `model.to(dtype)` would have run.
  //
  // Storages of floats shrink. Losses, statistics of norms and attention, and tables of modules without parameters do
  // not: PyTorch computes or keeps them in float32. Where a loss meets the model there is a cast, which the graph does
  // not have; it becomes two lives, one in each type.
  //
  // Gives what follows from float32 parameters the dtype asked for, and adds the casts of a program in that dtype.
  void convert(Lives& lives) const {
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

  // Returns the lives of a micro-batch after the first. Gradients are there already, and each new one is a temporary
  // that lives until it has been added.
  Lives later_micro_batch(const Lives& first) const {
    Lives lives{.steps = first.steps, .optimizer = first.optimizer};
    for (Life life : first.all) {
      if (life.kind == StorageKind::kGradient && life.born > 0 && life.born < first.optimizer) {
        lives.all.push_back({0, life.last, life.bytes, life.kind, life.storage});
        // AccumulateGrad takes a gradient over or copies it. Then there is none to add up but the one that was copied.
        if (graph_.target(costs_.nodes[place_of(life.born)]).name() == "aten::clone") continue;
        life.kind = StorageKind::kTemporary;
        life.last = end_of_call(life.born);
      }
      lives.all.push_back(life);
    }
    return lives;
  }

  // Puts the step of another optimizer in place of the recorded one: a first step, or one that finds its state.
  Lives with_optimizer(const Lives& recorded, const std::string& name, bool steady) const {
    Lives lives{.steps = recorded.optimizer, .optimizer = recorded.optimizer};
    for (Life life : recorded.all) {
      if (life.born >= lives.optimizer || life.kind == StorageKind::kOptimizerState) continue;
      if (life.last >= lives.optimizer) life.last = kToTheEnd;
      lives.all.push_back(life);
    }
    if (name == "none") return lives;
    const Graph step = optimizer_step(name, steady);
    const ProgramCosts costs(step);
    const uint32_t begin = lives.steps;
    lives.steps += at_node(static_cast<uint32_t>(costs.nodes.size()));
    for (uint32_t i = 0; i < step.storage_count(); ++i) {
      const StorageId id(i);
      const Storage& storage = step.storage(id);
      if (!is_on(storage.device(), device_)) continue;
      const bool there = existed_before(step, storage);
      if (there && !placeholder_name(step, storage.born).starts_with("input")) continue;  // parameter, gradient
      const bool freed = storage.freed_after.valid() && !step.is_erased(storage.freed_after);
      const uint32_t born = there ? 0 : begin + at_node(costs.order[storage.born]);
      lives.all.push_back({born,
                           freed ? std::max(born, begin + at_node(costs.order[storage.freed_after])) : kToTheEnd,
                           storage.bytes,
                           there || !freed ? StorageKind::kOptimizerState : StorageKind::kTemporary,
                           {}});
    }
    return lives;
  }

  // Leaves a rank its part under ZeRO.
  void spread(Lives& lives) const {
    const int64_t ranks = change_.ranks;
    const auto share = [&](int64_t bytes) { return (bytes + ranks - 1) / ranks; };
    std::vector<Life> more;
    for (Life& life : lives.all) {
      switch (life.kind) {
        case StorageKind::kOptimizerState:
          life.bytes = share(life.bytes);
          break;
        case StorageKind::kGradient:
          if (change_.zero_stage < 2) break;
          // The gradient is whole until its backward call has ended; then a rank keeps its part.
          if (life.born > 0 && life.born < lives.optimizer) {
            more.push_back(
                {life.born, end_of_call(life.born), life.bytes - share(life.bytes), StorageKind::kTemporary, {}});
          }
          life.bytes = share(life.bytes);
          break;
        case StorageKind::kParameter:
          if (change_.zero_stage == 3) life.bytes = share(life.bytes);
          break;
        default:
          // What the optimizer makes follows from parts of parameters.
          if (life.born >= lives.optimizer) life.bytes = share(life.bytes);
      }
    }
    if (change_.zero_stage == 3) {
      const int64_t whole = largest_module(lives);
      more.push_back(
          {0, lives.optimizer == 0 ? 0 : lives.optimizer - 1, whole - share(whole), StorageKind::kTemporary, {}});
    }
    lives.all.insert(lives.all.end(), more.begin(), more.end());
  }

 private:
  void find_phases() {
    const auto steps = static_cast<uint32_t>(costs_.nodes.size());
    std::optional<uint32_t> backward;
    for (uint32_t at = 0; at < steps; ++at) {
      if (is_backward(at)) backward = at;
    }
    if (!backward) throw Error("this graph is no training step: nothing of it is in phase backward");
    optimizer_ = steps;
    for (uint32_t at = *backward + 1; at < steps && optimizer_ == steps; ++at) {
      const NodeId node = costs_.nodes[at];
      if (graph_.node(node).phase == Graph::kOptimizer && !graph_.is_placeholder(node)) optimizer_ = at;
    }
    for (uint32_t at = 0; at < *backward; ++at) {
      if (!first_backward_ && is_backward(at)) first_backward_ = at;
    }
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const StorageId id(i);
      steady_ =
          steady_ || (costs_.kinds[id] == StorageKind::kOptimizerState && existed_before(graph_, graph_.storage(id)));
    }
    if (graph_.metadata.step) steady_ = graph_.metadata.step == TrainingStep::kSteady;
  }

  bool is_backward(uint32_t step) const { return graph_.node(costs_.nodes[step]).phase == Graph::kBackward; }
  bool is_float32(NodeId node) const {
    bool found = false;
    graph_.for_each_output(node, [&](ValueId value) { found |= graph_.value(value).dtype == c10::ScalarType::Float; });
    return found;
  }

  // Returns the step of the last node of the backward call to which the node at this step belongs.
  uint32_t end_of_call(uint32_t step) const {
    uint32_t place = place_of(step);
    if (place >= costs_.nodes.size()) return step;
    const NodeId forward = graph_.node(costs_.nodes[place]).forward;
    while (forward.valid() && place + 1 < optimizer_ && graph_.node(costs_.nodes[place + 1]).forward == forward) {
      ++place;
    }
    return at_node(place);
  }

  // Says whether the node itself computes a loss, which models do in float32.
  // Either a composite says so by its name (cross_entropy_loss), or the node ran outside all modules, where training
  // loops write their losses.
  bool is_loss(NodeId node) const {
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
  IdMap<NodeId, uint8_t> loss_nodes() const {
    IdMap<NodeId, uint8_t> losses;
    for (const NodeId node : costs_.nodes) {
      const NodeId forward = graph_.node(node).forward;
      losses[node] = is_loss(node) || (forward.valid() && std::as_const(losses)[forward] != 0) ? 1 : 0;
    }
    return losses;
  }

  // Says whether results beside the first are float32 on CUDA, whatever the type of the operands.
  bool gives_float32_statistics(NodeId node) const {
    const std::string_view name = graph_.target(node).name();
    return device_.is_cuda() &&
           (name.starts_with("aten::native_layer_norm") || name.starts_with("aten::native_group_norm") ||
            name.starts_with("aten::native_batch_norm") || name.starts_with("aten::cudnn_batch_norm") ||
            name.starts_with("aten::_fused_rms_norm") || name.starts_with("aten::_scaled_dot_product_") ||
            name.starts_with("aten::_batch_norm_with_update"));
  }

  // Marks storages that stay float32: of losses and statistics, single numbers, and buffers of modules without
  // parameters (tables of positions, counters, scales).
  IdMap<StorageId, uint8_t> kept_in_float32() const {
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

  // Returns what marks a node's results, but only storages that the node made. A view that a loss takes of the model's
  // output stays in the model's type.
  std::function<void(ValueId)> keep_if_born(NodeId node, IdMap<StorageId, uint8_t>& kept) const {
    return [this, node, &kept](ValueId value) {
      const StorageId storage = graph_.value(value).storage;
      if (storage.valid() && graph_.storage(storage).born == node) kept[storage] = 1;
    };
  }

  // Returns the place of the first operator that uses a storage and computes no loss; kToTheEnd without one.
  uint32_t first_use_outside_losses(StorageId storage) const {
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

  uint32_t last_use_in_losses(StorageId storage) const {
    uint32_t last = 0;
    graph_.for_each_value_in(storage, [&](ValueId value) {
      graph_.for_each_use(value, [&](NodeId use) {
        if (computes_loss_[use] != 0) last = std::max(last, costs_.order[use]);
      });
    });
    return last;
  }

  // Returns float32 copies of what a loss is given. They are there until forward ends, or as long as the loss's own
  // backward reads them.
  std::vector<Life> copies_for_losses() const {
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

  // Returns the bytes that the parameters of one module have now, for the module that owns most.
  // Leaves a rank its part under ZeRO (Rajbhandari et al. 2020): stage 1 divides optimizer state by the ranks, 2 also
  // gradients, 3 also parameters. Parts are rounded up to whole bytes; collectives' buffers are not counted.
  // Stage 3 gathers the parameters of a module when it runs. One module is whole at any time, so the largest is counted.
  int64_t largest_module(const Lives& lives) const {
    std::map<std::string, int64_t> owned;
    int64_t most = 0;
    for (const Life& life : lives.all) {
      if (!life.storage.valid() || life.kind != StorageKind::kParameter) continue;
      const std::string name = placeholder_name(graph_, graph_.storage(life.storage).born);
      most = std::max(most, owned[name.substr(0, std::min(name.rfind('.'), name.size()))] += whole_bytes(life));
    }
    return most;
  }

  int64_t whole_bytes(const Life& life) const {
    const int64_t bytes = graph_.storage(life.storage).bytes;
    const bool converted = change_.dtype && dtype_of(graph_, life.storage) == c10::ScalarType::Float;
    return converted ? bytes / 4 * static_cast<int64_t>(c10::elementSize(*change_.dtype)) : bytes;
  }

  // Returns the step of an optimizer over the parameters that have gradients here.
  Graph optimizer_step(const std::string& name, bool steady) const {
    const FakeTensorMode mode(of_any_machine({.device = device_}));
    Tensors parameters;
    std::unordered_set<uint32_t> seen;
    for (const NodeId node : costs_.nodes) {
      if (graph_.node(node).target != target_of(Builtin::kGradient)) continue;
      const auto arguments = graph_.arguments(node);
      const ValueId parameter = arguments[0].ref.value, gradient = arguments[1].ref.value;
      if (!is_on(graph_.value(parameter).device(), device_) || !seen.insert(parameter.index).second) continue;
      const auto made = [&](ValueId value) {
        const bool converts = change_.dtype && graph_.value(value).dtype == c10::ScalarType::Float;
        return at::empty_strided(graph_.sizes(value), graph_.strides(value),
                                 converts ? *change_.dtype : graph_.value(value).dtype);
      };
      parameters.push_back(made(parameter).requires_grad_());
      parameters.back().mutable_grad() = made(gradient);
    }
    const auto optimizer = [&]() -> std::unique_ptr<torch::optim::Optimizer> {
      if (name == "sgd") return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-2));
      if (name == "sgd_momentum") {
        return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-2).momentum(0.9));
      }
      if (name == "adam") return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
    }();
    if (steady) optimizer->step();  // makes the state, which the recorded step then finds
    CaptureSession session;
    for (size_t i = 0; i < parameters.size(); ++i) {
      session.name_parameter(parameters[i], fmt::format("parameter{}", i));
      session.name_buffer(parameters[i].grad(), fmt::format("gradient{}", i));
    }
    const PhaseScope phase("optimizer");
    optimizer->step();
    return session.finish({});
  }

  const Graph& graph_;
  const WhatIf& change_;
  const ProgramCosts costs_;
  const c10::Device device_;
  const IdMap<NodeId, uint8_t> computes_loss_;
  uint32_t optimizer_ = 0;  // place of its first node; the number of nodes without one
  std::optional<uint32_t> first_backward_;
  bool steady_ = false;
};

}  // namespace shadowgraph::step_lives

// Answers what-if questions, each one about intervals: a storage is alive from one node to another, with so many bytes,
// for some purpose. The answer is the most bytes alive at once.
//
//     recorded    n0 ....... last backward | O ... optimizer
//     dtype       bytes of float32 storages halve; what losses and statistics keep in float32 does not
//     accumulate  a second list, for later micro-batches: gradients are there from n0 on, and each new one only until
//                 it has been added
//     optimizer   what is born from O on goes; the intervals of another optimizer's step follow instead
//     ZeRO        bytes of a kind are divided by the ranks

namespace shadowgraph {
namespace {

using namespace step_lives;

void check(const WhatIf& change) {
  const auto refuse = [](const std::string& message) { throw Error("what_if: " + message); };
  if (change.dtype && *change.dtype != c10::ScalarType::BFloat16 && *change.dtype != c10::ScalarType::Half) {
    refuse(std::string("dtype is bfloat16 or float16, in place of float32; not ") + c10::toString(*change.dtype));
  }
  static constexpr std::string_view kOptimizers[] = {"", "none", "sgd", "sgd_momentum", "adam", "adamw"};
  if (std::find(std::begin(kOptimizers), std::end(kOptimizers), change.optimizer) == std::end(kOptimizers)) {
    refuse("there is no optimizer '" + change.optimizer + "'; none, sgd, sgd_momentum, adam and adamw are known");
  }
  if (change.accumulate < 1) refuse(fmt::format("accumulate is at least 1, not {}", change.accumulate));
  if (change.zero_stage < 0 || change.zero_stage > 3) {
    refuse(fmt::format("a ZeRO stage is 0, 1, 2 or 3, not {}", change.zero_stage));
  }
  if (change.ranks < 1) refuse(fmt::format("ranks are at least 1, not {}", change.ranks));
  if (change.zero_stage > 0 && change.ranks < 2) refuse("ZeRO spreads over at least 2 ranks: give ranks");
  if (change.zero_stage == 0 && change.ranks > 1) refuse("ranks without a ZeRO stage change nothing: give zero_stage");
}

// Returns the most bytes of a step as asked, and what it ends with; `steady` where another optimizer is asked for.
std::pair<Most, BytesByKind> as_asked(const Question& question, const WhatIf& change, std::optional<bool> steady) {
  Lives first = question.recorded();
  if (change.dtype) question.convert(first);
  std::vector<Lives> lists;
  if (change.accumulate > 1) lists.push_back(question.later_micro_batch(first));
  lists.push_back(std::move(first));
  for (Lives& lives : lists) {
    if (steady) lives = question.with_optimizer(lives, change.optimizer, *steady);
    if (change.zero_stage > 0) question.spread(lives);
  }
  Most most;
  for (const Lives& lives : lists) {
    const Most here = most_of(lives);
    if (here.bytes > most.bytes) most = here;
  }
  return std::pair(most, held_at_end(lists.back()));
}

std::vector<std::string> left_out(const Question& question, const WhatIf& change) {
  std::vector<std::string> ignored;
  ignored.push_back("the caching allocator, scratch inside kernels and times: live bytes alone");
  if (change.dtype) {
    ignored.push_back(
        "casts that do nothing in float32 are not in the step: losses are taken to be computed in float32 from a copy "
        "of "
        "what they are given, everything else in the new type; a model that computes norms in float32 holds more");
    ignored.push_back("attention may take another kernel in the new type");
  }
  if (!change.optimizer.empty() && change.optimizer != "none") {
    ignored.push_back(
        "the optimizer steps a parameter at a time, as libtorch's do; Python's foreach ones hold temporaries of all");
  }
  if (!change.optimizer.empty() && question.clips_or_scales()) {
    ignored.push_back("clipping, a GradScaler and averages that the recorded step has before and after its optimizer");
  }
  if (change.accumulate > 1) ignored.push_back("4 bytes a micro-batch of the loss that is divided");
  if (change.zero_stage > 0) {
    ignored.push_back("buckets and buffers of collectives, and padding of the parts to equal size");
    if (change.zero_stage == 3) {
      ignored.push_back("prefetching: the parameters of the largest module alone are whole at any time");
    }
  }
  return ignored;
}

}  // namespace

WhatIfAnswer what_if(const Graph& graph, const WhatIf& change) {
  check(change);
  WhatIfAnswer answer;
  const Question before(graph, change);
  answer.peak_before = most_of(before.recorded()).bytes;
  answer.held_before = held_at_end(before.recorded());
  answer.flops_before = before.costs().flops().total().matmul;
  if (change.dtype && !before.has_float32_parameters()) {
    throw Error("what_if: no parameter of this step is float32, so there is nothing to convert");
  }

  std::optional<Graph> rewritten;
  if (!change.checkpoint.empty()) {
    rewritten = clone(graph);
    const CheckpointResult done = checkpoint_modules(*rewritten, {.modules = change.checkpoint});
    answer.changes.push_back(
        fmt::format("{} segments are computed again in backward, {} nodes more", done.segments, done.recomputed));
  }
  std::optional<Question> after;
  if (rewritten) after.emplace(*rewritten, change);
  const Question& question = after ? *after : before;
  answer.flops = question.costs().flops().total().matmul;

  std::optional<bool> steady;
  if (!change.optimizer.empty()) steady = question.is_steady();
  const auto [most, held] = as_asked(question, change, steady);
  answer.peak = most.bytes;
  answer.by_kind = most.by_kind;
  answer.phase = question.phase_at(most.step);
  answer.held = held;
  if (steady) {
    answer.first_step_peak = as_asked(question, change, false).first.bytes;
    answer.steady_peak = as_asked(question, change, true).first.bytes;
  }

  for (const StorageKind kind : {StorageKind::kParameter, StorageKind::kGradient, StorageKind::kOptimizerState}) {
    const int64_t was = answer.held_before[static_cast<size_t>(kind)], is = held[static_cast<size_t>(kind)];
    if (was != is) {
      answer.changes.push_back(fmt::format("{}: {} instead of {}", to_string(kind), human_bytes(is), human_bytes(was)));
    }
  }
  answer.ignored = left_out(question, change);
  return answer;
}

nlohmann::json to_json(const WhatIfAnswer& answer) {
  nlohmann::json object{{"peak_bytes_before", answer.peak_before},
                        {"peak_bytes", answer.peak},
                        {"phase", answer.phase},
                        {"by_kind", kinds_json(answer.by_kind)},
                        {"held_before", kinds_json(answer.held_before)},
                        {"held", kinds_json(answer.held)},
                        {"flops_before", answer.flops_before},
                        {"flops", answer.flops},
                        {"changes", answer.changes},
                        {"ignored", answer.ignored}};
  if (answer.first_step_peak) object["first_step_peak_bytes"] = *answer.first_step_peak;
  if (answer.steady_peak) object["steady_peak_bytes"] = *answer.steady_peak;
  return object;
}

std::string to_text(const WhatIfAnswer& answer) {
  std::string text = fmt::format("{:<15}{:>12}  as recorded\n{:<15}{:>12}  as asked, in {}\n", "peak",
                                 human_bytes(answer.peak_before), "", human_bytes(answer.peak), answer.phase);
  for (size_t kind = 0; kind < answer.by_kind.size(); ++kind) {
    if (answer.by_kind[kind] == 0) continue;
    text +=
        fmt::format("  {:<17}{:>12}\n", to_string(static_cast<StorageKind>(kind)), human_bytes(answer.by_kind[kind]));
  }
  if (answer.steady_peak) {
    text += fmt::format("  {:<17}{:>12}\n  {:<17}{:>12}\n", "first step", human_bytes(*answer.first_step_peak),
                        "later steps", human_bytes(*answer.steady_peak));
  }
  text += fmt::format("{:<15}{:>12}  as recorded\n{:<15}{:>12}  as asked\n", "FLOPs", human_count(answer.flops_before),
                      "", human_count(answer.flops));
  for (const std::string& line : answer.changes) text += "changes: " + line + "\n";
  for (const std::string& line : answer.ignored) text += "not in it: " + line + "\n";
  return text;
}

}  // namespace shadowgraph
