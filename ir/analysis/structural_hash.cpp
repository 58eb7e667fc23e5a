#include "ir/analysis/structural_hash.h"

#include <functional>
#include <optional>

#include "support/text.h"

namespace shadowgraph {

// Equal hashes only suggest that arguments are equal; callers confirm it with this function.
bool same_arguments(const Graph& graph, std::span<const Argument> a, std::span<const Argument> b) {
  constexpr std::equal_to<> kSame{};
  return std::ranges::equal(
      a, b, [&](const Argument& x, const Argument& y) { return same_argument(graph, x, graph, y, kSame, kSame); });
}

uint64_t hash_of_type(const Graph& graph, ValueId id, uint64_t hash) {
  const Value& value = graph.value(id);
  hash = mixed(hash, static_cast<uint64_t>(value.kind));
  if (value.kind != ValueKind::kTensor) return hash;
  hash = mixed(hash, static_cast<uint64_t>(value.dtype) << 32 | static_cast<uint64_t>(value.layout) << 24 |
                         static_cast<uint64_t>(static_cast<uint8_t>(value.device_type)) << 16 |
                         static_cast<uint64_t>(static_cast<uint8_t>(value.device_index)) << 8);
  hash = mixed(hash, value.rank);
  for (const int64_t size : graph.sizes(id)) hash = mixed(hash, static_cast<uint64_t>(size));
  for (const int64_t stride : graph.strides(id)) hash = mixed(hash, static_cast<uint64_t>(stride));
  return hash;
}

namespace {

// Returns the distance between two siblings, by number or by call; nullopt if they are of different kinds.
std::optional<int64_t> distance(const Sibling& a, const Sibling& b) {
  if (a.class_name != b.class_name) return std::nullopt;
  if (a.name == b.name) return static_cast<int64_t>(b.call) - static_cast<int64_t>(a.call);
  const auto from = parse_number<int64_t>(a.name);
  const auto to = parse_number<int64_t>(b.name);
  if (!from || !to || a.call != b.call) return std::nullopt;
  return *to - *from;
}

}  // namespace

BlockHashes::BlockHashes(const Graph& graph)
    : graph_(graph), of_node_(graph.node_capacity()), nodes_(graph.node_capacity()), values_(graph.value_capacity()) {
  for (NodeId n : graph.nodes()) {
    const Node& node = graph.node(n);
    uint64_t hash = mixed(node.target.index, node.phase.index);
    hash = hash_of(graph, graph.arguments(n), hash, [&](ValueId v) { return hash_of_type(graph, v, 1); });
    graph.for_each_output(n, [&](ValueId v) { hash = hash_of_type(graph, v, hash); });
    of_node_[n.index] = hash;
  }
}

// Operands from inside the block are identified by their producer's position and result, those from outside by order of
// first use.
uint64_t BlockHashes::of(std::span<const NodeId> block, c10::function_ref<uint64_t(NodeId)> label,
                         c10::function_ref<ValueId(ValueId)> origin) {
  // A new number invalidates the entries of earlier blocks, so the two tables need not be cleared.
  ++block_;
  uint64_t hash = block.size();
  uint32_t outside = 0;
  for (uint32_t i = 0; i < block.size(); ++i) {
    hash = mixed(mixed(hash, of_node_[block[i].index]), label(block[i]));
    hash = hash_of(graph_, graph_.arguments(block[i]), hash, [&](ValueId operand) -> uint64_t {
      const ValueId v = origin(operand);
      const NodeId producer = graph_.value(v).producer;
      if (nodes_[producer.index].block == block_) {
        uint64_t result = 0;
        uint64_t which = 0;
        graph_.for_each_output(producer, [&](ValueId output) {
          if (output == v) which = result;
          ++result;
        });
        return mixed(1 + which, nodes_[producer.index].number);
      }
      Seen& seen = values_[v.index];
      if (seen.block != block_) seen = {block_, outside++};
      return mixed(0, seen.number);
    });
    nodes_[block[i].index] = {block_, i};
  }
  return hash;
}

size_t end_of_run(std::span<const Sibling> siblings, size_t first, c10::function_ref<uint64_t(size_t)> content) {
  std::optional<int64_t> step;
  std::optional<uint64_t> wanted;
  size_t last = first + 1;
  for (; last < siblings.size(); ++last) {
    const auto between = distance(siblings[last - 1], siblings[last]);
    // Layers count up in forward and down in backward, but never change direction within a run.
    if (!between || (*between != 1 && *between != -1) || (step && *between != *step)) break;
    // Hashing is deferred until the names allow a run.
    if (!wanted) wanted = content(first);
    if (content(last) != *wanted) break;
    step = between;
  }
  return last;
}

}  // namespace shadowgraph
