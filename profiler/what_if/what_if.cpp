// Represents a step by the lifetimes of its storages: first and last step alive, bytes and kind.
//
// A what-if scenario changes this list instead of the graph: it halves bytes, shortens, removes and adds lifetimes. The
// result is the peak of live bytes. Every operation on the list is linear in storages and nodes.
//
//     recorded    n0 ....... last backward | O ... optimizer
//     dtype       float32 storages halve, except losses and statistics kept in float32
//     accumulate  a second list for later micro-batches: gradients are live from n0 on, and each new one only until
//                 it has been accumulated
//     optimizer   lifetimes that begin at O or later are replaced by those of another optimizer's step
//     ZeRO        bytes of a kind are divided by the ranks
#include "shadowgraph/profile/what_if.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>

#include "core/fake/simulated_devices.h"
#include "ir/analysis/module_tree.h"
#include "profiler/program_costs.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

struct Lifetime {
  uint32_t born = 0;  // first and last step alive, inclusive
  uint32_t last = 0;
  int64_t bytes = 0;
  StorageKind kind = StorageKind::kTemporary;
  StorageId storage;  // of the graph; invalid if added by the scenario
};

constexpr uint32_t kToTheEnd = 0xFFFFFFFFU;  // Lifetime::last of storages that outlive the step

// Steps of lifetimes have half-step resolution: node p of the graph is step 2p. The odd step before it is for a cast,
// which runs before the node and is not in the graph, since the program ran in float32.
constexpr uint32_t at_node(uint32_t place) { return 2 * place; }
constexpr uint32_t before_node(uint32_t place) { return place == 0 ? 0 : 2 * place - 1; }
constexpr uint32_t place_of(uint32_t step) { return step / 2; }

// The lifetimes of a step, and the position of the optimizer.
struct Lifetimes {
  std::vector<Lifetime> all;
  uint32_t steps = 0;
  uint32_t optimizer = 0;  // its first step; `steps` without one
};

// The peak of live bytes, at the first step that reaches it.
struct Peak {
  int64_t bytes = 0;
  uint32_t step = 0;
  BytesByKind by_kind{};
};

Peak peak_of(const Lifetimes& lifetimes) {
  std::vector<BytesByKind> change(size_t{lifetimes.steps} + 1);
  for (const Lifetime& lifetime : lifetimes.all) {
    change[lifetime.born][static_cast<size_t>(lifetime.kind)] += lifetime.bytes;
    if (lifetime.last < lifetimes.steps)
      change[lifetime.last + 1][static_cast<size_t>(lifetime.kind)] -= lifetime.bytes;
  }
  Peak most;
  BytesByKind now{};
  for (uint32_t step = 0; step < lifetimes.steps; ++step) {
    int64_t total = 0;
    for (size_t kind = 0; kind < now.size(); ++kind) total += now[kind] += change[step][kind];
    if (total > most.bytes) most = {total, step, now};
  }
  return most;
}

BytesByKind held_at_end(const Lifetimes& lifetimes) {
  BytesByKind held{};
  for (const Lifetime& lifetime : lifetimes.all) {
    if (lifetime.last >= lifetimes.steps) held[static_cast<size_t>(lifetime.kind)] += lifetime.bytes;
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

// A recorded step and the changes of a scenario to the lifetimes of its storages. what_if() calls the parts in this
// order: recorded(), convert(), later_micro_batch(), with_optimizer(), apply_zero(). Another optimizer's step is
// captured over fake parameters, so its state and temporaries are those of libtorch's implementation.
class Scenario {
 public:
  // Both must outlive it. Throws Error if the graph is not a training step.
  Scenario(const Graph& graph, const WhatIf& change)
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
    const auto calls = [&](std::string_view prefix) {
      return std::any_of(costs_.nodes.begin(), costs_.nodes.end(),
                         [&](NodeId node) { return graph_.target(node).name().starts_with(prefix); });
    };
    // Adam with foreach=True calls _foreach_lerp_, too.
    return calls("aten::_amp_") || calls("aten::_foreach_norm") || graph_.metadata.other.contains("ema") ||
           (calls("aten::_foreach_lerp_") && !calls("aten::_foreach_addcdiv_"));
  }

  std::string phase_at(uint32_t step) const {
    const uint32_t place = place_of(step);
    return place < optimizer_ ? graph_.phase_name(graph_.node(costs_.nodes[place]).phase) : "optimizer";
  }

  Lifetimes recorded() const {
    Lifetimes lifetimes{.steps = at_node(static_cast<uint32_t>(costs_.nodes.size())), .optimizer = at_node(optimizer_)};
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const StorageId id(i);
      const Storage& storage = graph_.storage(id);
      if (!is_on(storage.device(), device_)) continue;
      const bool freed = storage.freed_after.valid() && !graph_.is_erased(storage.freed_after);
      Lifetime lifetime{.born = existed_before(graph_, storage) ? 0 : at_node(costs_.order[storage.born]),
                        .last = freed ? at_node(costs_.order[storage.freed_after]) : kToTheEnd,
                        .bytes = storage.bytes,
                        .kind = costs_.kinds[id],
                        .storage = id};
      lifetime.last = std::max(lifetime.last, lifetime.born);
      lifetimes.all.push_back(lifetime);
    }
    return lifetimes;
  }

  // Converts a step that ran in float32 to a narrower dtype, as `model.to(dtype)` would have run.
  //
  // Floating-point storages shrink. Losses, statistics of norms and attention, and tables of modules without parameters
  // do not: PyTorch computes or keeps them in float32. Losses get a cast of their inputs, which is not in the graph;
  // it splits a lifetime in two, one per dtype.
  void convert(Lifetimes& lifetimes) const {
    const int64_t wide = 4, narrow = static_cast<int64_t>(c10::elementSize(*change_.dtype));
    IdMap<StorageId, uint8_t> kept = kept_in_float32();
    std::vector<Lifetime> more;
    for (Lifetime& lifetime : lifetimes.all) {
      if (!lifetime.storage.valid() || dtype_of(graph_, lifetime.storage) != c10::ScalarType::Float) continue;
      const int64_t converted = lifetime.bytes / wide * narrow;
      if (kept[lifetime.storage] == 0) {
        lifetime.bytes = converted;
        continue;
      }
      // The gradient of a loss's input is cast from float32 to the model's dtype.
      const uint32_t use = first_use_outside_losses(lifetime.storage);
      if (lifetime.kind == StorageKind::kParameter || use == kToTheEnd || at_node(use) <= lifetime.born ||
          !is_backward(use)) {
        continue;
      }
      more.push_back({before_node(use), lifetime.last, converted, lifetime.kind, {}});
      lifetime.last = before_node(use);
    }
    for (const Lifetime& copy : float32_copies_for_losses()) more.push_back(copy);
    lifetimes.all.insert(lifetimes.all.end(), more.begin(), more.end());
  }

  // Returns the lifetimes of a micro-batch after the first. Gradients exist already, and each new one is a temporary
  // until it has been accumulated.
  Lifetimes later_micro_batch(const Lifetimes& first) const {
    Lifetimes lifetimes{.steps = first.steps, .optimizer = first.optimizer};
    for (Lifetime lifetime : first.all) {
      if (lifetime.kind == StorageKind::kGradient && lifetime.born > 0 && lifetime.born < first.optimizer) {
        lifetimes.all.push_back({0, lifetime.last, lifetime.bytes, lifetime.kind, lifetime.storage});
        // AccumulateGrad either takes over a gradient or copies it. A copy is no additional temporary.
        if (graph_.target(costs_.nodes[place_of(lifetime.born)]).name() == "aten::clone") continue;
        lifetime.kind = StorageKind::kTemporary;
        lifetime.last = end_of_call(lifetime.born);
      }
      lifetimes.all.push_back(lifetime);
    }
    return lifetimes;
  }

  // Replaces the recorded optimizer step by one of another optimizer: a first step, or a later one with existing state.
  Lifetimes with_optimizer(const Lifetimes& recorded, const std::string& name, bool steady) const {
    Lifetimes lifetimes{.steps = recorded.optimizer, .optimizer = recorded.optimizer};
    for (Lifetime lifetime : recorded.all) {
      if (lifetime.born >= lifetimes.optimizer || lifetime.kind == StorageKind::kOptimizerState) continue;
      if (lifetime.last >= lifetimes.optimizer) lifetime.last = kToTheEnd;
      lifetimes.all.push_back(lifetime);
    }
    if (name == "none") return lifetimes;
    const Graph step = optimizer_step(name, steady);
    const ProgramCosts costs(step);
    const uint32_t begin = lifetimes.steps;
    lifetimes.steps += at_node(static_cast<uint32_t>(costs.nodes.size()));
    for (uint32_t i = 0; i < step.storage_count(); ++i) {
      const StorageId id(i);
      const Storage& storage = step.storage(id);
      if (!is_on(storage.device(), device_)) continue;
      const bool there = existed_before(step, storage);
      if (there && !placeholder_name(step, storage.born).starts_with("input")) continue;  // parameter, gradient
      const bool freed = storage.freed_after.valid() && !step.is_erased(storage.freed_after);
      const uint32_t born = there ? 0 : begin + at_node(costs.order[storage.born]);
      const uint32_t last = freed ? std::max(born, begin + at_node(costs.order[storage.freed_after])) : kToTheEnd;
      lifetimes.all.push_back(
          {born, last, storage.bytes, there || !freed ? StorageKind::kOptimizerState : StorageKind::kTemporary});
    }
    return lifetimes;
  }

  void apply_zero(Lifetimes& lifetimes) const {
    const int64_t ranks = change_.ranks;
    const auto share = [&](int64_t bytes) { return (bytes + ranks - 1) / ranks; };
    std::vector<Lifetime> more;
    for (Lifetime& lifetime : lifetimes.all) {
      switch (lifetime.kind) {
        case StorageKind::kOptimizerState:
          lifetime.bytes = share(lifetime.bytes);
          break;
        case StorageKind::kGradient:
          if (change_.zero_stage < 2) break;
          // The gradient is full size until its backward call has ended; then a rank keeps its shard.
          if (lifetime.born > 0 && lifetime.born < lifetimes.optimizer) {
            more.push_back({lifetime.born, end_of_call(lifetime.born), lifetime.bytes - share(lifetime.bytes)});
          }
          lifetime.bytes = share(lifetime.bytes);
          break;
        case StorageKind::kParameter:
          if (change_.zero_stage == 3) lifetime.bytes = share(lifetime.bytes);
          break;
        default:
          // Results of the optimizer have the size of the parameter shards.
          if (lifetime.born >= lifetimes.optimizer) lifetime.bytes = share(lifetime.bytes);
      }
    }
    if (change_.zero_stage == 3) {
      const int64_t whole = largest_module(lifetimes);
      more.push_back({0, lifetimes.optimizer == 0 ? 0 : lifetimes.optimizer - 1, whole - share(whole)});
    }
    lifetimes.all.insert(lifetimes.all.end(), more.begin(), more.end());
  }

 private:
  void find_phases() {
    const auto steps = static_cast<uint32_t>(costs_.nodes.size());
    std::optional<uint32_t> backward;
    for (uint32_t at = 0; at < steps; ++at) {
      if (is_backward(at)) backward = at;
    }
    if (!backward) throw Error("what_if needs a training step: the graph has no nodes in phase backward");
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

  // Returns the step of the last node of the same backward call.
  uint32_t end_of_call(uint32_t step) const {
    uint32_t place = place_of(step);
    if (place >= costs_.nodes.size()) return step;
    const NodeId forward = graph_.node(costs_.nodes[place]).forward;
    while (forward.valid() && place + 1 < optimizer_ && graph_.node(costs_.nodes[place + 1]).forward == forward) {
      ++place;
    }
    return at_node(place);
  }

  // Returns true if the node computes a loss, which models do in float32: it is in a composite with "_loss" in its name
  // (cross_entropy_loss), or outside all modules, where training loops compute their losses.
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

  // Backward nodes follow their forward nodes, so one pass in program order marks both.
  IdMap<NodeId, uint8_t> loss_nodes() const {
    IdMap<NodeId, uint8_t> losses;
    for (const NodeId node : costs_.nodes) {
      const NodeId forward = graph_.node(node).forward;
      losses[node] = is_loss(node) || (forward.valid() && std::as_const(losses)[forward] != 0) ? 1 : 0;
    }
    return losses;
  }

  // Returns true if results after the first are float32 on CUDA for operands of any dtype.
  bool has_float32_statistics(NodeId node) const {
    const std::string_view name = graph_.target(node).name();
    return device_.is_cuda() &&
           (name.starts_with("aten::native_layer_norm") || name.starts_with("aten::native_group_norm") ||
            name.starts_with("aten::native_batch_norm") || name.starts_with("aten::cudnn_batch_norm") ||
            name.starts_with("aten::_fused_rms_norm") || name.starts_with("aten::_scaled_dot_product_") ||
            name.starts_with("aten::_batch_norm_with_update"));
  }

  // Marks storages that stay float32: losses and statistics, scalars, and buffers of modules without parameters
  // (position tables, counters, scales).
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
      if (graph_.node(node).target == target_of(Builtin::kBuffer) &&
          !with_parameters.contains(owner(name.starts_with("ema.") ? name.substr(4) : name))) {
        graph_.for_each_output(node, keep);
      } else if (graph_.is_placeholder(node)) {
        graph_.for_each_output(node, [&](ValueId value) {
          if (graph_.sizes(value).empty()) keep(value);
        });
      } else if (computes_loss_[node] != 0) {
        // A view that a loss takes of the model's output stays in the model's dtype.
        graph_.for_each_output(node, [&](ValueId value) {
          const StorageId storage = graph_.value(value).storage;
          if (storage.valid() && graph_.storage(storage).born == node) kept[storage] = 1;
        });
      } else if (has_float32_statistics(node)) {
        int index = 0;
        graph_.for_each_output(node, [&](ValueId value) {
          if (index++ > 0) keep(value);
        });
      }
    }
    return kept;
  }

  // Returns the position of the first operator outside losses that uses the storage; kToTheEnd without one.
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

  // Returns float32 copies of the losses' inputs. They live until forward ends, or until the loss's backward has read
  // them if they are saved.
  std::vector<Lifetime> float32_copies_for_losses() const {
    std::vector<Lifetime> copies;
    IdMap<StorageId, uint8_t> seen, saved;
    const uint32_t end = first_backward_.value_or(optimizer_);
    // Inputs that a loss saves for backward are the float32 copies.
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

  // Returns the bytes of parameters of the module that owns most. ZeRO (Rajbhandari et al. 2020) stage 1 shards
  // optimizer state, 2 also gradients, 3 also parameters. Shards are rounded up to whole bytes; buffers of collectives
  // are not counted. Stage 3 gathers one module's parameters at a time, so the largest counts.
  int64_t largest_module(const Lifetimes& lifetimes) const {
    std::map<std::string, int64_t> owned;
    int64_t most = 0;
    for (const Lifetime& lifetime : lifetimes.all) {
      if (!lifetime.storage.valid() || lifetime.kind != StorageKind::kParameter) continue;
      const std::string name = placeholder_name(graph_, graph_.storage(lifetime.storage).born);
      most = std::max(most, owned[name.substr(0, std::min(name.rfind('.'), name.size()))] += whole_bytes(lifetime));
    }
    return most;
  }

  int64_t whole_bytes(const Lifetime& lifetime) const {
    const int64_t bytes = graph_.storage(lifetime.storage).bytes;
    const bool converted = change_.dtype && dtype_of(graph_, lifetime.storage) == c10::ScalarType::Float;
    return converted ? bytes / 4 * static_cast<int64_t>(c10::elementSize(*change_.dtype)) : bytes;
  }

  // Captures a step of an optimizer over the parameters that have gradients in this graph.
  Graph optimizer_step(const std::string& name, bool steady) const {
    const FakeTensorMode mode(with_all_devices({.device = device_}));
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
    if (steady) optimizer->step();  // creates the state that the captured step then finds
    Capture session;
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
  uint32_t optimizer_ = 0;  // position of its first node; the number of nodes without one
  std::optional<uint32_t> first_backward_;
  bool steady_ = false;
};

void check(const WhatIf& change) {
  const auto refuse = [](const std::string& message) { throw Error("what_if: " + message); };
  if (change.dtype && *change.dtype != c10::ScalarType::BFloat16 && *change.dtype != c10::ScalarType::Half) {
    refuse(std::string("dtype must be bfloat16 or float16, not ") + c10::toString(*change.dtype));
  }
  static constexpr std::string_view kOptimizers[] = {"", "none", "sgd", "sgd_momentum", "adam", "adamw"};
  if (std::find(std::begin(kOptimizers), std::end(kOptimizers), change.optimizer) == std::end(kOptimizers)) {
    refuse("unknown optimizer '" + change.optimizer + "'; choose one of none, sgd, sgd_momentum, adam, adamw");
  }
  if (change.accumulate < 1) refuse(fmt::format("accumulate must be at least 1, not {}", change.accumulate));
  if (change.zero_stage < 0 || change.zero_stage > 3) {
    refuse(fmt::format("the ZeRO stage must be 0, 1, 2 or 3, not {}", change.zero_stage));
  }
  if (change.ranks < 1) refuse(fmt::format("ranks must be at least 1, not {}", change.ranks));
  if (change.zero_stage > 0 && change.ranks < 2) refuse("ZeRO requires ranks of at least 2");
  if (change.zero_stage == 0 && change.ranks > 1) refuse("ranks requires a ZeRO stage of 1, 2 or 3");
}

// Returns the peak and the bytes held at the end; `steady` is set if the optimizer is replaced.
std::pair<Peak, BytesByKind> peak_after(const Scenario& scenario, const WhatIf& change, std::optional<bool> steady) {
  Lifetimes first = scenario.recorded();
  if (change.dtype) scenario.convert(first);
  std::vector<Lifetimes> lists;
  if (change.accumulate > 1) lists.push_back(scenario.later_micro_batch(first));
  lists.push_back(std::move(first));
  for (Lifetimes& lifetimes : lists) {
    if (steady) lifetimes = scenario.with_optimizer(lifetimes, change.optimizer, *steady);
    if (change.zero_stage > 0) scenario.apply_zero(lifetimes);
  }
  Peak most;
  for (const Lifetimes& lifetimes : lists) {
    const Peak here = peak_of(lifetimes);
    if (here.bytes > most.bytes) most = here;
  }
  return std::pair(most, held_at_end(lists.back()));
}

std::vector<std::string> simplifications(const Scenario& scenario, const WhatIf& change) {
  std::vector<std::string> ignored{"caching allocator, scratch inside kernels, time: only live bytes are estimated"};
  if (change.dtype) {
    ignored.push_back(
        "dtype: a float32 step does not record casts to float32: losses are assumed to run in float32 on a copy of "
        "their inputs, everything else in the new dtype; a model that computes norms in float32 needs more");
    ignored.push_back("dtype: attention may use another kernel");
  }
  if (!change.optimizer.empty() && change.optimizer != "none") {
    ignored.push_back(
        "optimizer: steps one parameter at a time, as libtorch's do; Python's foreach ones hold temporaries of all");
  }
  if (!change.optimizer.empty() && scenario.clips_or_scales()) {
    ignored.push_back("optimizer: clipping, GradScaler and weight averaging of the recorded step are dropped");
  }
  if (change.accumulate > 1) ignored.push_back("accumulate: 4 bytes per micro-batch for the scaled loss");
  if (change.zero_stage > 0) {
    ignored.push_back("ZeRO: buckets and buffers of collectives, padding of shards to equal size");
    if (change.zero_stage == 3) {
      ignored.push_back("ZeRO: no prefetch; the parameters of one module are gathered at a time");
    }
  }
  return ignored;
}

}  // namespace

WhatIfResult what_if(const Graph& graph, const WhatIf& change) {
  check(change);
  WhatIfResult answer;
  const Scenario before(graph, change);
  answer.peak_before = peak_of(before.recorded()).bytes;
  answer.held_before = held_at_end(before.recorded());
  answer.flops_before = before.costs().flops().total().matmul;
  if (change.dtype && !before.has_float32_parameters()) {
    throw Error("what_if: the step has no float32 parameters to convert; omit dtype");
  }

  std::optional<Graph> rewritten;
  if (!change.checkpoint.empty()) {
    rewritten = clone(graph);
    const CheckpointResult done = checkpoint_modules(*rewritten, {.modules = change.checkpoint});
    answer.changes.push_back(
        fmt::format("{} segments are recomputed in backward ({} nodes added)", done.segments, done.recomputed));
  }
  std::optional<Scenario> after;
  if (rewritten) after.emplace(*rewritten, change);
  const Scenario& scenario = after ? *after : before;
  answer.flops = scenario.costs().flops().total().matmul;

  std::optional<bool> steady;
  if (!change.optimizer.empty()) steady = scenario.is_steady();
  const auto [most, held] = peak_after(scenario, change, steady);
  answer.peak = most.bytes;
  answer.by_kind = most.by_kind;
  answer.phase = scenario.phase_at(most.step);
  answer.held = held;
  if (steady) {
    answer.first_step_peak = peak_after(scenario, change, false).first.bytes;
    answer.steady_peak = peak_after(scenario, change, true).first.bytes;
  }

  for (const StorageKind kind : {StorageKind::kParameter, StorageKind::kGradient, StorageKind::kOptimizerState}) {
    const int64_t was = answer.held_before[static_cast<size_t>(kind)], is = held[static_cast<size_t>(kind)];
    if (was != is) {
      answer.changes.push_back(fmt::format("{}: {} instead of {}", to_string(kind), human_bytes(is), human_bytes(was)));
    }
  }
  answer.ignored = simplifications(scenario, change);
  return answer;
}

nlohmann::json to_json(const WhatIfResult& answer) {
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

std::string to_text(const WhatIfResult& answer) {
  std::string text = fmt::format("{:<15}{:>12}  recorded\n{:<15}{:>12}  what-if, in {}\n", "peak",
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
  text += fmt::format("{:<15}{:>12}  recorded\n{:<15}{:>12}  what-if\n", "FLOPs", human_count(answer.flops_before), "",
                      human_count(answer.flops));
  for (const std::string& line : answer.changes) text += "changed: " + line + "\n";
  for (const std::string& line : answer.ignored) text += "not modeled: " + line + "\n";
  return text;
}

}  // namespace shadowgraph
