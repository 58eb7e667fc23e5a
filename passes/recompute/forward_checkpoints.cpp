#include "passes/recompute/forward_checkpoints.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "core/calls/functions.h"
#include "ir/records.h"
#include "passes/recompute/recompute_schedule.h"
#include "passes/recompute/regions.h"
#include "shadowgraph/graph/edit.h"

namespace shadowgraph {
namespace {

class RecomputeChecker {
 public:
  RecomputeChecker(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes)
      : graph_(graph), effects_(effects), nodes_(nodes), inside_(nodes.begin(), nodes.end()) {}

  RecomputeCheck run() {
    find_statistics();
    for (const NodeId n : nodes_) {
      check_writes(n);
      check_reads(n);
      check_numbers(n);
      if (!found_.obstacle.empty()) break;
    }
    return std::move(found_);
  }

 private:
  bool is_produced_here(StorageId s) const {
    const NodeId born = graph_.storage(s).born;
    return born.valid() && inside_.contains(born);
  }
  bool is_outside(StorageId s) const { return !effects_.is_generator(s) && !is_produced_here(s); }

  // Storages of a batch norm's arguments that do not affect its results.
  std::unordered_set<StorageId> left_out(NodeId n) const {
    std::unordered_set<StorageId> storages;
    for (const size_t position : statistics_to_leave_out(graph_, n)) {
      storages.insert(graph_.value(graph_.arguments(n)[position].ref.value).storage);
    }
    return storages;
  }

  // A storage that is written here is a statistic as long as all its readers only write it: `count.add_(1)`.
  void find_statistics() {
    for (const NodeId n : nodes_) {
      for (const StorageWrite& write : effects_.writes(n)) {
        if (is_outside(write.storage)) found_.statistics.insert(write.storage);
      }
    }
    if (found_.statistics.empty()) return;
    for (const NodeId n : nodes_) {
      const std::unordered_set<StorageId> unread = left_out(n);
      for (const StorageVersion& read : effects_.reads(n)) {
        if (!found_.statistics.contains(read.storage) || unread.contains(read.storage)) continue;
        const auto writes = effects_.writes(n);
        if (writes.size() != 1 || writes[0].storage != read.storage || has_other_results(n, read.storage)) {
          found_.statistics.erase(read.storage);
        }
      }
    }
  }

  bool has_other_results(NodeId n, StorageId storage) const {
    bool more = false;
    graph_.for_each_output(n, [&](ValueId v) { more = more || graph_.value(v).storage != storage; });
    return more;
  }

  void check_writes(NodeId n) {
    for (const StorageWrite& write : effects_.writes(n)) {
      if (is_outside(write.storage) && !found_.statistics.contains(write.storage)) {
        refuse(n, "writes to a tensor from outside the segment");
      }
    }
  }

  // Operands must still exist unchanged when backward runs.
  void check_reads(NodeId n) {
    if (effects_.geometry_only(n)) return;
    for (const StorageVersion& read : effects_.reads(n)) {
      if (!is_outside(read.storage) || found_.statistics.contains(read.storage)) continue;
      if (left_out(n).contains(read.storage)) continue;
      if (effects_.final_version(read.storage) != read.version) refuse(n, "an operand is written to before backward");
    }
  }

  // A number read by the host leaves the function with its value, which a checkpoint does not return.
  void check_numbers(NodeId n) {
    graph_.for_each_output(n, [&](ValueId v) {
      if (graph_.value(v).kind == ValueKind::kTensor) return;
      graph_.for_each_use(v, [&](NodeId user) {
        if (!inside_.contains(user)) refuse(n, "a number read to the host here is used outside");
      });
    });
  }

  void refuse(NodeId n, const std::string& what) {
    if (!found_.obstacle.empty()) return;
    found_.obstacle = graph_.target(n).name() + ": " + what;
    found_.at = n;
  }

  const Graph& graph_;
  const Effects& effects_;
  const std::span<const NodeId> nodes_;
  const std::unordered_set<NodeId> inside_;
  RecomputeCheck found_;
};

}  // namespace

RecomputeCheck check_recompute(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes) {
  return RecomputeChecker(graph, effects, nodes).run();
}

// Checkpoints in a forward graph: a segment becomes a region whose internals autograd does not save.
//
//     r5 = module "block" in r1                            r6 = checkpoint "block" in r1, with the module in it
//     %2 = aten::mm(%x, %w) saved(%x, %w)     @s2 | r5     %2 = ...  saved(%x, %w)
//     %3 = aten::gelu(%2) saved(%2)           @s3 | r5     %3 = ...                             free(s2)
//
// Emitted code and torch.fx call checkpoint() there, which recomputes the whole segment in backward, whereas in a graph
// with its backward only the needed nodes are recomputed. So a segment is rejected if one of its nodes cannot be
// recomputed (check_recompute()), and the report says why. Inputs are listed as saved by their first reader.
//
// Linear in the graph times the depth of nesting.

namespace {

class ForwardMarks {
 public:
  ForwardMarks(Graph& graph, std::span<const CheckpointSegment> segments)
      : graph_(graph), plan_(graph, segments), regions_(graph) {
    for (const CheckpointSegment& segment : segments) {
      if (segment.keep.empty() && segment.offload.empty()) continue;
      throw GraphError("cannot checkpoint segment '" + segment.name +
                       "': checkpoints of a forward graph recompute whole functions, so none of their tensors can be "
                       "kept or offloaded");
    }
  }

  MarkedSegments run() {
    const auto& levels = plan_.levels();
    std::vector<size_t> outer_first;
    for (size_t i = 0; i < levels.size(); ++i) outer_first.push_back(i);
    std::stable_sort(outer_first.begin(), outer_first.end(),
                     [&](size_t a, size_t b) { return levels[a].depth < levels[b].depth; });
    marked_.assign(levels.size(), false);
    for (const size_t level : outer_first) {
      const std::string obstacle = obstacle_of(levels[level]);
      marked_[level] = obstacle.empty();
      if (!obstacle.empty()) ++result_.obstacles[obstacle];
    }
    for (const size_t level : outer_first) {
      if (marked_[level]) mark(levels[level]);
    }
    for (size_t i = 0; i < levels.size(); ++i) {
      if (marked_[i] && !has_mark_around(i)) forget(levels[i]);
    }
    if (result_.segments != 0) put_parents_first(graph_);
    MarkedSegments done{.result = std::move(result_), .segments = {}};
    for (size_t i = 0; i < levels.size(); ++i) {
      if (marked_[i]) done.segments.push_back(*levels[i].segment);
    }
    return done;
  }

 private:
  bool has_mark_around(size_t level) const {
    for (int32_t outer = plan_.levels()[level].outer; outer >= 0; outer = plan_.levels()[size_t(outer)].outer) {
      if (marked_[size_t(outer)]) return true;
    }
    return false;
  }

  std::string obstacle_of(const CheckpointLevel& level) const {
    if (level.nodes.empty()) return "no nodes in " + level.segment->name;
    const Effects& effects = plan_.effects();
    const std::unordered_set<NodeId> inside(level.nodes.begin(), level.nodes.end());
    for (NodeId n = level.nodes.front(); n != level.nodes.back(); n = graph_.node(n).next) {
      if (!inside.contains(n)) return graph_.target(n).name() + ": runs between nodes of " + level.segment->name;
    }
    for (const NodeId n : level.nodes) {
      const std::string& name = graph_.target(n).name();
      if (effects.unknown(n)) return name + ": its effects are unknown";
      if (effects.collective(n)) return name + ": a collective";
    }
    for (const c10::Device device : generators_of(level)) {
      if (!device.is_cpu() && !device.is_cuda()) return "the generator state on " + device.str() + " cannot be saved";
    }
    if (const RecomputeCheck again = check_recompute(graph_, effects, level.nodes); !again.obstacle.empty())
      return again.obstacle;
    bool saves = false;
    for (const NodeId n : level.nodes) {
      for (const SavedTensor& saved : graph_.saved(n))
        saves = saves || is_produced_in(graph_.value(saved.value).storage, inside);
    }
    return saves ? "" : "autograd saves nothing that is produced in " + level.segment->name;
  }

  bool is_produced_in(StorageId s, const std::unordered_set<NodeId>& nodes) const {
    return s.valid() && graph_.storage(s).born.valid() && nodes.contains(graph_.storage(s).born);
  }

  void mark(const CheckpointLevel& level) {
    const CheckpointSegment& segment = *level.segment;
    RegionId region;
    if (segment.regions.empty()) {
      region = regions_.wrap_nodes(level);
    } else {
      region = needs_region(graph_, segment) ? regions_.wrap_regions(level) : segment.regions[0];
    }
    keep_random_states(level, region);
    ++result_.segments;
    result_.recomputed += static_cast<int64_t>(level.nodes.size());
    result_.repeated.insert(result_.repeated.end(), level.nodes.begin(), level.nodes.end());
  }

  // checkpoint() saves the state of each generator that it uses, if there may be a backward.
  void keep_random_states(const CheckpointLevel& level, RegionId region) {
    for (const c10::Device device : generators_of(level)) {
      const std::array<int64_t, 1> sizes{random_state_bytes(device)};
      const std::array<int64_t, 1> strides{1};
      const std::array<Argument, 1> arguments{Argument::of_device(device)};
      const NodeId n = graph_.insert_before(level.nodes.front(), graph_.intern_target(get_random_state()), arguments);
      mutable_node(graph_, n).region = region;
      const StorageId storage = graph_.add_storage({.bytes = sizes[0], .born = n});
      graph_.add_tensor_result(
          n, {.dtype = c10::ScalarType::Byte, .sizes = sizes, .strides = strides, .storage = storage});
      ++result_.random_states;
    }
  }

  std::vector<c10::Device> generators_of(const CheckpointLevel& level) const {
    std::vector<c10::Device> devices;
    for (const NodeId n : level.nodes) {
      if (!plan_.effects().random(n) || !plan_.draws(n)) continue;
      for (const Effects::Generator& generator : plan_.effects().generators()) {
        const auto writes = plan_.effects().writes(n);
        const bool draws = std::any_of(writes.begin(), writes.end(),
                                       [&](const StorageWrite& write) { return write.storage == generator.storage; });
        const bool is_new = std::find(devices.begin(), devices.end(), generator.device) == devices.end();
        if (draws && is_new) devices.push_back(generator.device);
      }
    }
    return devices;
  }

  // Autograd saves the inputs of an outermost segment, and nothing that it produces.
  void forget(const CheckpointLevel& level) {
    const std::unordered_set<NodeId> inside(level.nodes.begin(), level.nodes.end());
    std::unordered_set<StorageId> dropped, listed, given;
    for (const NodeId n : level.nodes) {
      std::vector<SavedTensor> left;
      for (const SavedTensor& saved : graph_.saved(n)) {
        const StorageId s = graph_.value(saved.value).storage;
        (is_produced_in(s, inside) ? dropped : listed).insert(s);
        if (!is_produced_in(s, inside)) left.push_back(saved);
      }
      const auto arguments = graph_.arguments(n);
      for (size_t i = 0; i < arguments.size(); ++i) {
        graph_.for_each_value(arguments.subspan(i, 1), [&](ValueId v) {
          const Value& value = graph_.value(v);
          if (value.kind != ValueKind::kTensor || !value.storage.valid() || is_produced_in(value.storage, inside))
            return;
          given.insert(value.storage);
          // A tensor that participates in gradients; parameters and similar exist anyway.
          if (graph_.is_placeholder(value.producer) || !listed.insert(value.storage).second) return;
          left.push_back({.value = v, .role = SavedRole::kArgument, .index = static_cast<uint16_t>(i)});
        });
      }
      graph_.set_saved(n, left);
    }
    for (const StorageId s : given) {
      if (graph_.storage(s).freed_after.valid()) graph_.extend_lifetime(s, graph_.last());
    }
    free_dropped(dropped);
  }

  // Storages that only autograd kept are freed after their last use.
  void free_dropped(const std::unordered_set<StorageId>& dropped) {
    for (const StorageId s : dropped) {
      if (graph_.storage(s).freed_after.valid()) continue;
      NodeId last_use = graph_.storage(s).born;
      bool stays = false;
      graph_.for_each_value_in(s, [&](ValueId v) {
        const NodeId maker = graph_.value(v).producer;
        if (!maker.valid() || graph_.is_erased(maker)) return;
        if (graph_.is_before(last_use, maker)) last_use = maker;
        stays = stays || is_saved(v, maker);
        graph_.for_each_use(v, [&](NodeId user) {
          stays = stays || is_end(graph_.node(user).target) || is_saved(v, user);
          if (graph_.is_before(last_use, user)) last_use = user;
        });
      });
      if (stays) continue;
      const auto frees = graph_.frees(last_use);
      std::vector<StorageId> more(frees.begin(), frees.end());
      more.push_back(s);
      graph_.set_frees(last_use, more);
    }
  }

  // Returns whether a node that produces or reads the value lists its storage as saved.
  bool is_saved(ValueId v, NodeId node) const {
    const auto saved = graph_.saved(node);
    return graph_.is_saved_elsewhere(v) || std::any_of(saved.begin(), saved.end(), [&](const SavedTensor& s) {
             return graph_.value(s.value).storage == graph_.value(v).storage;
           });
  }

  Graph& graph_;
  const RecomputeSchedule plan_;
  CheckpointRegions regions_;
  std::vector<bool> marked_;  // by level
  CheckpointResult result_;
};

}  // namespace

bool is_forward_alone(const Graph& graph) {
  for (const NodeId n : graph.nodes()) {
    const Node& node = graph.node(n);
    const bool later = node.phase == Graph::kBackward || node.phase == Graph::kOptimizer;
    if (later || node.target == target_of(Builtin::kGradient)) return false;
  }
  return true;
}

bool has_gradients(const Graph& graph) {
  bool found = false;
  for (const NodeId n : graph.nodes_reversed()) {
    if (!is_end(graph.node(n).target)) break;
    graph.for_each_input(n, [&](ValueId v) { found = found || graph.value(v).requires_grad; });
  }
  return found;
}

MarkedSegments mark_segments(Graph& graph, std::span<const CheckpointSegment> segments) {
  return ForwardMarks(graph, segments).run();
}

int64_t bytes_kept_for_backward(const Graph& graph) {
  std::unordered_set<StorageId> counted;
  int64_t bytes = 0;
  for (const NodeId n : graph.nodes()) {
    for (const SavedTensor& saved : graph.saved(n)) {
      const StorageId s = graph.value(saved.value).storage;
      if (!s.valid() || graph.is_placeholder(graph.value(saved.value).producer) || !counted.insert(s).second) continue;
      const NodeId born = graph.storage(s).born;
      if (born.valid() && !graph.is_erased(born) && !graph.is_placeholder(born)) bytes += graph.storage(s).bytes;
    }
  }
  return bytes;
}

// Appends to a forward graph the backward that autograd would run, for measuring memory.
//
//     %3 = aten::mm(%x, %w) saved(%x, %w)         %9 = sg_autograd::backward(saved=[%x, %w], gradients=[%8]) | backward of n3
//
// A backward node reads what its forward node saved and the gradients of its results, and produces a gradient for each
// operand that requires one. As in libtorch, gradients of views and sums share memory. A second gradient of a tensor is
// added in place if the first is not used elsewhere. Storages are freed after their last use.
//
// Temporary memory of kernels is not included. Linear in the graph.
namespace {

class AssumedStep {
 public:
  explicit AssumedStep(const Graph& forward)
      : step_(clone(forward)),
        seed_(function("::seed() -> Tensor[]")),
        backward_(function("::backward(Tensor[] saved, Tensor[] gradients) -> Tensor[]")),
        pass_through_(function("::hand_on(Tensor(a) gradient) -> Tensor(a)")),
        add_(function("::add(Tensor gradient, Tensor more) -> Tensor")),
        add_in_place_(function("::add_(Tensor(a!) gradient, Tensor more) -> Tensor(a!)")) {}

  Graph run() {
    std::vector<NodeId> forward;
    for (const NodeId n : step_.nodes()) {
      if (is_end(step_.node(n).target)) {
        if (!end_.valid()) end_ = n;
        step_.for_each_input(n, [&](ValueId v) {
          if (requires_gradient(v) && std::ranges::find(outputs_, v) == outputs_.end()) outputs_.push_back(v);
        });
      } else if (!step_.is_placeholder(n)) {
        forward.push_back(n);
      }
    }
    if (outputs_.empty()) {
      throw Error(
          "no output of this forward graph requires a gradient, so checkpoints cannot save memory; capture it with "
          "gradients enabled, in training mode");
    }
    const NodeId seed = add_node(seed_, {}, NodeId());
    add_gradients(seed, outputs_);
    for (auto n = forward.rbegin(); n != forward.rend(); ++n) differentiate(*n);
    keep_gradients_of_parameters();
    free_at_last_use(step_);
    return std::move(step_);
  }

 private:
  TargetId function(const char* schema) {
    return step_.intern_target(Target(TargetKind::kFunction, std::string("sg_autograd") + schema));
  }

  bool requires_gradient(ValueId v) const {
    return step_.value(v).kind == ValueKind::kTensor && step_.value(v).requires_grad;
  }

  NodeId add_node(TargetId target, std::span<const Argument> arguments, NodeId of) {
    const NodeId n = step_.insert_before(end_, target, arguments);
    mutable_node(step_, n).phase = Graph::kBackward;
    mutable_node(step_, n).forward = of;
    return n;
  }

  // Creates a gradient for `of`, in new memory or in that of another gradient.
  ValueId new_gradient(NodeId node, ValueId of, StorageId storage = {}) {
    const Value value = step_.value(of);
    const auto given = step_.sizes(of);
    const std::vector<int64_t> sizes(given.begin(), given.end());
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
    const c10::Device device = value.device();
    if (!storage.valid()) {
      storage = step_.add_storage({.bytes = step_.logical_bytes(of),
                                   .device_type = device.type(),
                                   .device_index = device.index(),
                                   .born = node});
    }
    return step_.new_tensor(
        node, {.dtype = value.dtype, .sizes = sizes, .strides = strides, .storage = storage, .device = device});
  }

  // Adds the gradients that one node produces, as a list.
  void add_gradients(NodeId node, std::span<const ValueId> of) {
    std::vector<Argument> made;
    for (const ValueId v : of) made.push_back(Argument::of_value(new_gradient(node, v)));
    const std::array<Argument, 1> results{step_.make_list(made)};
    step_.set_results(node, results);
    for (size_t i = 0; i < of.size(); ++i) accumulate(of[i], made[i].ref.value);
  }

  void differentiate(NodeId n) {
    std::vector<Argument> gradients;
    step_.for_each_output(n, [&](ValueId v) {
      const auto found = gradient_of_.find(v);
      if (found == gradient_of_.end()) return;
      gradients.push_back(Argument::of_value(found->second));
      --holders_[step_.value(found->second).storage];
      gradient_of_.erase(found);
    });
    if (gradients.empty()) return;
    std::vector<ValueId> operands;
    step_.for_each_input(n, [&](ValueId v) {
      if (requires_gradient(v) && std::ranges::find(operands, v) == operands.end()) operands.push_back(v);
    });
    std::vector<Argument> saved;
    for (const SavedTensor& tensor : step_.saved(n)) saved.push_back(Argument::of_value(tensor.value));
    std::vector<ValueId> computed;
    for (const ValueId operand : operands) {
      const ValueId gradient = gradients[0].ref.value;
      const bool same = step_.logical_bytes(operand) == step_.logical_bytes(gradient);
      if (saved.empty() && gradients.size() == 1 && same && passes_through(n)) {
        const NodeId node = add_node(pass_through_, gradients, n);
        const ValueId handed = new_gradient(node, operand, step_.value(gradient).storage);
        const std::array<Argument, 1> results{Argument::of_value(handed)};
        step_.set_results(node, results);
        accumulate(operand, handed);
      } else {
        computed.push_back(operand);
      }
    }
    if (computed.empty() && saved.empty()) return;
    const std::array<Argument, 2> arguments{step_.make_list(saved), step_.make_list(gradients)};
    add_gradients(add_node(backward_, arguments, n), computed);
  }

  // Returns whether a gradient passes through unchanged.
  bool passes_through(NodeId n) const {
    const std::string& name = step_.target(n).name();
    return step_.facts(n).is_view || name == "aten::add.Tensor" || name == "aten::add_.Tensor" || name == "aten::clone";
  }

  void accumulate(ValueId v, ValueId gradient) {
    const StorageId fresh = step_.value(gradient).storage;
    const auto [entry, is_first] = gradient_of_.try_emplace(v, gradient);
    if (is_first) {
      ++holders_[fresh];
      return;
    }
    const StorageId before = step_.value(entry->second).storage;
    const bool alone = holders_[before] == 1;
    const std::array<Argument, 2> arguments{Argument::of_value(entry->second), Argument::of_value(gradient)};
    const NodeId node = add_node(alone ? add_in_place_ : add_, arguments, NodeId());
    --holders_[before];
    entry->second = new_gradient(node, v, alone ? before : StorageId());
    ++holders_[step_.value(entry->second).storage];
    const std::array<Argument, 1> results{Argument::of_value(entry->second)};
    step_.set_results(node, results);
  }

  void keep_gradients_of_parameters() {
    std::vector<std::pair<ValueId, ValueId>> leaves(gradient_of_.begin(), gradient_of_.end());
    std::ranges::sort(leaves);
    for (const auto& [leaf, gradient] : leaves) {
      if (!step_.is_placeholder(step_.value(leaf).producer)) continue;
      const std::array<Argument, 2> arguments{Argument::of_value(leaf), Argument::of_value(gradient)};
      step_.insert_before(end_, target_of(Builtin::kGradient), arguments);
    }
  }

  Graph step_;
  const TargetId seed_, backward_, pass_through_, add_, add_in_place_;
  NodeId end_;  // backward is inserted before this node; invalid: at the end
  std::vector<ValueId> outputs_;
  std::unordered_map<ValueId, ValueId> gradient_of_;  // of gradients that are not consumed yet
  std::unordered_map<StorageId, int> holders_;        // the number of gradients in it
};

}  // namespace

Graph assumed_step(const Graph& forward) { return AssumedStep(forward).run(); }

}  // namespace shadowgraph
