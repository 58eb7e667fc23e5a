// checkpoint, in a forward graph: what lies in a segment becomes a region that autograd does not look into.
//
//     r5 = module "block" in r1                            r6 = checkpoint "block" in r1, with the module in it
//     %2 = aten::mm(%x, %w) saved(%x, %w)     @s2 | r5     %2 = ...  saved(%x, %w)
//     %3 = aten::gelu(%2) saved(%2)           @s3 | r5     %3 = ...                             free(s2)
//
// Emitted code and torch.fx call checkpoint() there, which runs the whole segment again in backward. In a graph
// that has its backward, only what is needed runs again. So a segment is refused as soon as one of its nodes stands in the
// way (second_run.h), and the report says which. What a segment reads from outside is kept, and listed as saved by the
// first node that reads it.
//
// Linear, times the depth of nesting.
#include "passes/checkpoint/forward_checkpoints.h"

#include <algorithm>
#include <array>

#include "core/calls/random_state.h"
#include "ir/records.h"
#include "passes/checkpoint/checkpoint_plan.h"
#include "passes/checkpoint/checkpoint_regions.h"
#include "passes/checkpoint/second_run.h"
#include "passes/structure/region_order.h"

namespace shadowgraph {
namespace {

class ForwardMarks {
 public:
  ForwardMarks(Graph& graph, std::span<const CheckpointSegment> segments)
      : graph_(graph), plan_(graph, segments), regions_(graph) {
    for (const CheckpointSegment& segment : segments) {
      if (segment.keep.empty() && segment.offload.empty()) continue;
      throw GraphEditError(
          "cannot checkpoint segment '" + segment.name +
          "': a forward graph's checkpoints run whole functions again, so nothing in them is kept or waits "
          "on the host");
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

  // ---- May it be one

  std::string obstacle_of(const CheckpointLevel& level) const {
    if (level.nodes.empty()) return "nothing runs in " + level.segment->name;
    const Effects& effects = plan_.effects();
    const std::unordered_set<NodeId> inside(level.nodes.begin(), level.nodes.end());
    for (NodeId n = level.nodes.front(); n != level.nodes.back(); n = graph_.node(n).next) {
      if (!inside.contains(n)) return graph_.target(n).name() + ": runs in the midst of " + level.segment->name;
    }
    for (const NodeId n : level.nodes) {
      const std::string& name = graph_.target(n).name();
      if (effects.unknown(n)) return name + ": nothing is known of it";
      if (effects.collective(n)) return name + ": a collective";
    }
    for (const c10::Device device : generators_of(level)) {
      if (!device.is_cpu() && !device.is_cuda()) return "the state of a generator on " + device.str() + " is not known";
    }
    if (const SecondRun again = second_run(graph_, effects, level.nodes); !again.obstacle.empty())
      return again.obstacle;
    bool saves = false;
    for (const NodeId n : level.nodes) {
      for (const SavedTensor& saved : graph_.saved(n))
        saves = saves || is_made_in(graph_.value(saved.value).storage, inside);
    }
    return saves ? "" : "autograd keeps nothing that is made in " + level.segment->name;
  }

  bool is_made_in(StorageId s, const std::unordered_set<NodeId>& nodes) const {
    return s.valid() && graph_.storage(s).born.valid() && nodes.contains(graph_.storage(s).born);
  }

  // ---- The region

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

  // checkpoint() keeps the state of each generator that it draws from, as long as there may be a backward.
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

  // ---- What autograd keeps

  // Autograd keeps what an outermost segment is given, and nothing that it makes.
  void forget(const CheckpointLevel& level) {
    const std::unordered_set<NodeId> inside(level.nodes.begin(), level.nodes.end());
    std::unordered_set<StorageId> dropped, listed, given;
    for (const NodeId n : level.nodes) {
      std::vector<SavedTensor> left;
      for (const SavedTensor& saved : graph_.saved(n)) {
        const StorageId s = graph_.value(saved.value).storage;
        (is_made_in(s, inside) ? dropped : listed).insert(s);
        if (!is_made_in(s, inside)) left.push_back(saved);
      }
      const auto arguments = graph_.arguments(n);
      for (size_t i = 0; i < arguments.size(); ++i) {
        graph_.for_each_value(arguments.subspan(i, 1), [&](ValueId v) {
          const Value& value = graph_.value(v);
          if (value.kind != ValueKind::kTensor || !value.storage.valid() || is_made_in(value.storage, inside)) return;
          given.insert(value.storage);
          // One that gives gradients or takes part in them; parameters and the like are there anyway.
          if (graph_.is_placeholder(value.producer) || !listed.insert(value.storage).second) return;
          left.push_back({.value = v, .role = SavedRole::kArgument, .index = static_cast<uint16_t>(i)});
        });
      }
      graph_.set_saved(n, left);
    }
    for (const StorageId s : given) {
      if (graph_.storage(s).freed_after.valid()) graph_.extend_life(s, graph_.last());
    }
    end_lives_of(dropped);
  }

  // What autograd alone kept dies at its last use.
  void end_lives_of(const std::unordered_set<StorageId>& dropped) {
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

  // Whether the node, which makes or reads the value, says that autograd keeps its storage.
  bool is_saved(ValueId v, NodeId node) const {
    const auto saved = graph_.saved(node);
    return graph_.is_saved_elsewhere(v) || std::any_of(saved.begin(), saved.end(), [&](const SavedTensor& s) {
             return graph_.value(s.value).storage == graph_.value(v).storage;
           });
  }

  Graph& graph_;
  const CheckpointPlan plan_;
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

}  // namespace shadowgraph
