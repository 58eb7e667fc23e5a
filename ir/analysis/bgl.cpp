// Runs algorithms of the Boost Graph Library over a graph: dominators, components, minimum cuts.
//
// Boost's headers are slow to compile and stay in this file. Dominators cost about O(E log V), components about O(E).
#include "shadowgraph/graph/bgl.h"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>
#include <boost/graph/dominator_tree.hpp>
#include <boost/pending/disjoint_sets.hpp>

#include <exception>
#include <functional>
#include <pthread.h>

namespace shadowgraph {
namespace {

// Boost's dominator tree follows chains of ancestors by recursion, which may be as deep as the graph: some 100 bytes a
// node.
constexpr size_t kStackBytesPerNode = 256;
constexpr size_t kLeastStack = size_t{8} << 20;

void on_large_stack(size_t nodes, std::function<void()> work) {
  struct Call {
    std::function<void()> work;
    std::exception_ptr error;
  } call{std::move(work), nullptr};
  // std::thread cannot choose its stack, and the caller's is 8 MiB as a rule.
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kLeastStack + nodes * kStackBytesPerNode);
  pthread_t thread{};
  const int failed = pthread_create(
      &thread, &attributes,
      [](void* raw) -> void* {
        auto& c = *static_cast<Call*>(raw);
        try {
          c.work();
        } catch (...) {
          // An exception that leaves a thread ends the process, so it is carried over.
          c.error = std::current_exception();
        }
        return nullptr;
      },
      &call);
  pthread_attr_destroy(&attributes);
  if (failed != 0) throw Error("no memory for the stack that dominators of so large a graph need");
  pthread_join(thread, nullptr);
  if (call.error) std::rethrow_exception(call.error);
}

using Network = boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS>;
using Edges = std::vector<std::pair<uint32_t, uint32_t>>;

// Dominators from an added vertex, the last, which leads to all vertices without edges in.
IdMap<NodeId, NodeId> dominators(const DefUseGraph& def_use, Edges edges) {
  const auto count = static_cast<uint32_t>(num_vertices(def_use));
  // Dominators need one entry, but a graph has many: every placeholder and constant is one.
  std::vector<char> entered(count);
  for (const auto& [from, to] : edges) entered[to] = 1;
  for (uint32_t i = 0; i < count; ++i) {
    if (entered[i] == 0) edges.emplace_back(count, i);
  }
  const Network graph(edges.begin(), edges.end(), count + 1);
  std::vector<Network::vertex_descriptor> found(count + 1, count);
  on_large_stack(count, [&] {
    const auto index = get(boost::vertex_index, graph);
    boost::lengauer_tarjan_dominator_tree(graph, Network::vertex_descriptor{count},
                                          boost::make_iterator_property_map(found.begin(), index));
  });
  IdMap<NodeId, NodeId> result;
  for (uint32_t i = 0; i < count; ++i) {
    // A node whose dominator is the added vertex has none in the graph.
    if (found[i] < count) result[def_use.nodes()[i]] = def_use.nodes()[found[i]];
  }
  return result;
}

// Post-dominators are dominators of the reversed graph, so only the edges differ.
Edges value_edges(const DefUseGraph& def_use, bool reversed) {
  Edges edges;
  for (NodeId n : def_use.nodes()) {
    for (auto [e, end] = in_edges(n, def_use); e != end; ++e) {
      const uint32_t from = def_use.position((*e).from);
      const uint32_t to = def_use.position(n);
      edges.emplace_back(reversed ? to : from, reversed ? from : to);
    }
  }
  return edges;
}

}  // namespace

IdMap<NodeId, NodeId> immediate_dominators(const Graph& graph) {
  const DefUseGraph def_use(graph);
  return dominators(def_use, value_edges(def_use, false));
}

IdMap<NodeId, NodeId> immediate_post_dominators(const Graph& graph) {
  const DefUseGraph def_use(graph);
  return dominators(def_use, value_edges(def_use, true));
}

// Union-find instead of a search, which would need the edges in both directions.
Components components(const Graph& graph) {
  const DefUseGraph def_use(graph);
  const size_t count = num_vertices(def_use);
  boost::disjoint_sets_with_storage<> sets(count);
  for (NodeId n : def_use.nodes()) {
    for (auto [e, end] = in_edges(n, def_use); e != end; ++e) {
      sets.union_set(def_use.position((*e).from), def_use.position(n));
    }
  }
  Components result;
  std::vector<uint32_t> numbers(count, UINT32_MAX);
  for (size_t i = 0; i < count; ++i) {
    uint32_t& number = numbers[sets.find_set(i)];
    // Numbers follow the program order of the first node of each, so they are the same in each run.
    if (number == UINT32_MAX) number = result.count++;
    result.of[def_use.nodes()[i]] = number;
  }
  return result;
}

// Capacities are whole numbers, so the cut is exact.
MinCut min_cut(uint32_t vertices, std::span<const FlowEdge> edges, uint32_t source, uint32_t sink) {
  using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  struct Arc {
    int64_t capacity = 0;
    int64_t residual = 0;
    Traits::edge_descriptor reverse;
  };
  using Flow = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Arc>;
  if (source >= vertices || sink >= vertices || source == sink) throw Error("min_cut: no source and sink");
  Flow network(vertices);
  for (const FlowEdge& edge : edges) {
    if (edge.from >= vertices || edge.to >= vertices) throw Error("min_cut: an edge of a vertex that is out of range");
    if (edge.capacity < 0) throw Error("min_cut: a negative capacity");
    const auto there = boost::add_edge(edge.from, edge.to, Arc{.capacity = edge.capacity}, network).first;
    // The algorithm sends flow back along reverse edges, which have no capacity of their own.
    const auto back = boost::add_edge(edge.to, edge.from, Arc{}, network).first;
    network[there].reverse = back;
    network[back].reverse = there;
  }
  std::vector<boost::default_color_type> colors(vertices);
  std::vector<Traits::edge_descriptor> predecessors(vertices);
  std::vector<int64_t> distances(vertices);
  const auto index = get(boost::vertex_index, network);
  MinCut result;
  result.capacity = boost::boykov_kolmogorov_max_flow(
      network, get(&Arc::capacity, network), get(&Arc::residual, network), get(&Arc::reverse, network),
      boost::make_iterator_property_map(predecessors.begin(), index),
      boost::make_iterator_property_map(colors.begin(), index),
      boost::make_iterator_property_map(distances.begin(), index), index, source, sink);
  // Black vertices are the tree that grew from the source, which is its side of the cut.
  result.on_source_side.resize(vertices);
  for (uint32_t v = 0; v < vertices; ++v) result.on_source_side[v] = colors[v] == boost::black_color;
  return result;
}

}  // namespace shadowgraph
