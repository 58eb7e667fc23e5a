#include "parallel/stages/forward_line.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ir/analysis/module_tree.h"
#include "profiler/communication/stream_tasks.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {
namespace {

// Origin of the data in a storage.
enum class Source : char { kNowhere, kParameters, kElsewhere };

Source sum(Source a, Source b) {
  return a == Source::kNowhere ? b : b == Source::kNowhere || a == b ? a : Source::kElsewhere;
}

void add_stage(std::vector<int32_t>& stages, int32_t stage) {
  const auto at = std::ranges::lower_bound(stages, stage);
  if (at == stages.end() || *at != stage) stages.insert(at, stage);
}

// Calls `each` with the storages of the node's inputs, or of the values it writes.
template <class Each>
void for_each_read(const Graph& graph, NodeId node, Each&& each) {
  graph.for_each_input(node, [&](ValueId v) {
    if (const StorageId s = graph.value(v).storage; s.valid()) each(s);
  });
}
template <class Each>
void for_each_written(const Graph& graph, NodeId node, Each&& each) {
  for_each_written_value(graph, node, [&](ValueId v) {
    if (const StorageId s = graph.value(v).storage; s.valid()) each(s);
  });
}

// Forward nodes that depend only on parameters: weight.t(), weight.to(bf16).
IdMap<NodeId, char> nodes_of_weights(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  IdMap<NodeId, char> of_weights(0);
  for (const NodeId n : costs.nodes) {
    if (graph.is_placeholder(n)) {
      graph.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph.value(v).storage;
        of_weights[n] |= s.valid() && costs.kinds[s] == StorageKind::kParameter ? 1 : 0;
      });
      continue;
    }
    bool all = graph.node(n).phase == Graph::kForward, any = false;
    graph.for_each_input(n, [&](ValueId v) {
      any = true;
      const NodeId producer = graph.value(v).producer;
      all &= producer.valid() && std::as_const(of_weights)[producer] != 0;
    });
    if (all && any) of_weights[n] = 1;
  }
  return of_weights;
}

// Returns whether the node has no outputs and writes nothing, such as fsdp::record_grad_output_stream.
bool has_no_effect(const Graph& graph, NodeId node) {
  const Target& target = graph.target(node);
  return target.signature().returns.empty() && target.facts().written.empty();
}

}  // namespace

ParameterSources::ParameterSources(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  IdMap<StorageId, Source> sources(Source::kNowhere);
  for (const NodeId n : costs.nodes) {
    if (is_end(graph.node(n).target)) continue;
    Source read = Source::kNowhere;
    for_each_read(graph, n, [&](StorageId s) { read = sum(read, sources[s]); });
    for_each_written(graph, n, [&](StorageId s) {
      sources[s] = !graph.is_placeholder(n)                    ? sum(sources[s], read)
                   : costs.kinds[s] == StorageKind::kParameter ? Source::kParameters
                                                               : Source::kElsewhere;
    });
    alone_[n] = read == Source::kParameters ? 1 : 0;
  }
}

ForwardLine::ForwardLine(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  if (std::ranges::none_of(costs.nodes, [&](NodeId n) { return graph.node(n).phase == Graph::kBackward; })) {
    throw Error("a pipeline needs a training step, but this graph has no backward: capture it with --mode train");
  }
  find_free(costs);
  place_backward(costs);
  place_gathers(costs);
  count_crossing(costs);
}

void ForwardLine::find_free(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  IdMap<StorageId, char> bound(0);  // storages whose contents depend on parameters or on random numbers
  for (const NodeId n : costs.nodes) {
    const Node& node = graph.node(n);
    if (graph.is_placeholder(n)) {
      graph.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph.value(v).storage;
        if (s.valid() && costs.kinds[s] == StorageKind::kParameter) bound[s] = 1;
      });
      continue;
    }
    if (node.phase != Graph::kForward || is_end(node.target)) continue;
    bool is_bound = graph.facts(n).random || graph.facts(n).collective;
    for_each_read(graph, n, [&](StorageId s) { is_bound |= bound[s] != 0; });
    if (!is_bound) {
      free_[n] = 1;
      continue;
    }
    for_each_written(graph, n, [&](StorageId s) { bound[s] = 1; });
    position_[n] = length();
    nodes_.push_back(n);
  }
  if (nodes_.empty()) throw Error("the forward of this step uses no parameters, so it cannot be split into stages");
}

// A sum of gradients belongs to its earliest summand, a recomputed node to its latest operand.
int32_t ForwardLine::by_neighbors(const Graph& graph, NodeId node) const {
  int32_t summed = length(), recomputed = kNowhere;
  graph.for_each_input(node, [&](ValueId v) {
    const NodeId producer = graph.value(v).producer;
    const int32_t at = producer.valid() ? position_[producer] : kNowhere;
    if (at == kNowhere) return;
    if (graph.node(producer).phase == Graph::kBackward) {
      summed = std::min(summed, at);
    } else {
      recomputed = std::max(recomputed, at);
    }
  });
  return summed < length() ? summed : recomputed;
}

void ForwardLine::place_backward(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  // First position of each module, for recomputed nodes inside it.
  std::unordered_map<std::string, int32_t> begins;
  for (int32_t i = 0; i < length(); ++i) begins.try_emplace(module_path(graph, nodes_[static_cast<size_t>(i)]), i);
  std::vector<NodeId> lost;
  for (const NodeId n : costs.nodes) {
    const Node& node = graph.node(n);
    if (node.phase != Graph::kBackward || is_end(node.target) || graph.is_placeholder(n)) continue;
    int32_t at = node.forward.valid() ? position_[node.forward] : kNowhere;
    if (at == kNowhere && !node.forward.valid()) {
      const std::string path = module_path(graph, n);
      const auto found = path.empty() ? begins.end() : begins.find(path);
      at = found != begins.end() ? found->second : by_neighbors(graph, n);
    }
    if (at == kNowhere) lost.push_back(n);
    position_[n] = at;
  }
  // The initial gradient of the loss has no predecessor: it belongs to its last user position, or to the end.
  for (auto n = lost.rbegin(); n != lost.rend(); ++n) {
    int32_t at = kNowhere;
    graph.for_each_output(
        *n, [&](ValueId v) { graph.for_each_use(v, [&](NodeId user) { at = std::max(at, position_[user]); }); });
    position_[*n] = at == kNowhere ? length() - 1 : at;
  }
}

// Allocations belong to their first user.
int32_t ForwardLine::at_first_user(const ProgramCosts& costs, NodeId node) const {
  NodeId first;
  costs.graph().for_each_output(node, [&](ValueId v) {
    costs.graph().for_each_use(v, [&](NodeId user) {
      if (position_[user] != kNowhere && (!first.valid() || costs.order[user] < costs.order[first])) first = user;
    });
  });
  return first.valid() ? position_[first] : kNowhere;
}

// In backward, FSDP prefetches a layer's parameters while the next layer computes. The all_gather, and nodes used only
// by it, belong to the position where forward reads these parameters.
void ForwardLine::place_gathers(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  const ParameterSources sources(costs);
  // By storage of parameters and of data derived from them: the first position at which forward reads the parameter.
  IdMap<StorageId, int32_t> home(kNowhere), gathered(kNowhere);
  const auto latest = [&](NodeId n, const IdMap<StorageId, int32_t>& of) {
    int32_t at = kNowhere;
    const auto look = [&](StorageId s) { at = std::max(at, of[s]); };
    for_each_read(graph, n, look);
    for_each_written(graph, n, look);
    return at;
  };
  for (const NodeId n : costs.nodes) {
    if (!sources.reads_only_parameters(n)) continue;
    if (position_[n] != kNowhere && graph.node(n).phase == Graph::kForward) {
      graph.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph.value(v).storage;
        if (costs.kinds[s] == StorageKind::kParameter && home[s] == kNowhere) home[s] = position_[n];
      });
    }
    const int32_t at = latest(n, home);
    for_each_written(graph, n, [&](StorageId s) {
      if (home[s] == kNowhere) home[s] = at;
    });
  }
  for (auto n = costs.nodes.rbegin(); n != costs.nodes.rend(); ++n) {
    if (graph.node(*n).phase != Graph::kBackward || graph.is_placeholder(*n)) continue;
    bool reads = false;
    for_each_read(graph, *n, [&](StorageId) { reads = true; });
    if (reads && !sources.reads_only_parameters(*n)) continue;
    int32_t at = graph.facts(*n).collective && reads ? latest(*n, home) : latest(*n, gathered);
    if (!reads && at == kNowhere) at = at_first_user(costs, *n);
    if (at == kNowhere) continue;
    position_[*n] = at;
    const auto claim = [&](StorageId s) {
      if (costs.kinds[s] != StorageKind::kParameter) gathered[s] = at;
    };
    for_each_read(graph, *n, claim);
    for_each_written(graph, *n, claim);
  }
}

void ForwardLine::count_crossing(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  // By storage: position of the first write, and of the last use in forward.
  IdMap<StorageId, int32_t> born(kNowhere), last(kNowhere);
  std::vector<StorageId> allocated;
  for (int32_t i = 0; i < length(); ++i) {
    const NodeId n = node(i);
    for_each_read(graph, n, [&](StorageId s) {
      if (born[s] != kNowhere) last[s] = i;
    });
    // Memory allocated by a free node belongs to the node that writes it first.
    for_each_written(graph, n, [&](StorageId s) {
      if (born[s] != kNowhere || existed_before(graph, graph.storage(s))) return;
      born[s] = last[s] = i;
      allocated.push_back(s);
    });
  }
  crossing_.assign(static_cast<size_t>(length()) + 1, 0);
  for (const StorageId s : allocated) {
    const int64_t bytes = graph.storage(s).bytes;
    crossing_[static_cast<size_t>(born[s]) + 1] += bytes;
    if (last[s] + 1 <= length()) crossing_[static_cast<size_t>(last[s]) + 1] -= bytes;
  }
  for (size_t p = 1; p < crossing_.size(); ++p) crossing_[p] += crossing_[p - 1];
}

StageAssignment::StageAssignment(const ProgramCosts& costs, const ForwardLine& line, std::vector<int32_t> cuts)
    : cuts_(std::move(cuts)) {
  const Graph& graph = costs.graph();
  for (const NodeId n : costs.nodes) {
    const Node& node = graph.node(n);
    if (graph.is_placeholder(n) || is_end(node.target)) continue;
    const int32_t position = line.position(n);
    if (position != ForwardLine::kNowhere) stages_of_[n] = {stage_at(position)};
    piece_[n] = node.phase == Graph::kForward    ? Piece::kForward
                : node.phase == Graph::kBackward ? Piece::kInputGradient
                                                 : Piece::kOptimizer;
  }
  split_backward(costs);
  assign_free_nodes(costs, line);
}

// Walks backward from the end. A node computes weight gradients (W) if all its users are ends, optimizer nodes, or W
// nodes of the same forward node. Gradients of views and casts of a weight, and sums of gradients of one weight, are
// always W.
void StageAssignment::split_backward(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  const IdMap<NodeId, char> of_weights = nodes_of_weights(costs);
  for (auto n = costs.nodes.rbegin(); n != costs.nodes.rend(); ++n) {
    if (piece_[*n] != Piece::kInputGradient) continue;
    const NodeId forward = graph.node(*n).forward;
    bool only_weight_gradients = true, is_used = false;
    graph.for_each_output(*n, [&](ValueId v) {
      graph.for_each_use(v, [&](NodeId user) {
        if (user == *n) return;
        is_used = true;
        const Node& by = graph.node(user);
        if (is_end(by.target) || by.phase == Graph::kOptimizer || has_no_effect(graph, user)) return;
        const bool together = !by.forward.valid() || by.forward == forward || of_weights[by.forward] != 0 ||
                              (forward.valid() && of_weights[forward] != 0);
        only_weight_gradients &= together && piece_[user] == Piece::kWeightGradient;
      });
    });
    if (only_weight_gradients && is_used) piece_[*n] = Piece::kWeightGradient;
  }
}

void StageAssignment::assign_free_nodes(const ProgramCosts& costs, const ForwardLine& line) {
  const Graph& graph = costs.graph();
  for (auto n = costs.nodes.rbegin(); n != costs.nodes.rend(); ++n) {
    if (!line.is_free(*n)) continue;
    std::vector<int32_t> stages;
    graph.for_each_output(*n, [&](ValueId v) {
      graph.for_each_use(v, [&](NodeId user) {
        for (const int32_t s : std::as_const(stages_of_)[user]) add_stage(stages, s);
      });
    });
    if (stages.empty()) stages.push_back(0);  // unused, but computed by the program
    stages_of_[*n] = std::move(stages);
  }
}

}  // namespace shadowgraph
