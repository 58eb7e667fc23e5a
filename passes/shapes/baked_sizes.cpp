// Finds numbers in arguments that are sizes of the recorded inputs. Nothing in a graph says where a number came from,
// so this is a guess by value and by argument name. It is used for messages and reports, never to change a number.
#include "passes/shapes/baked_sizes.h"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_set>

namespace shadowgraph {
namespace {

// Sorted. Windows, strides and paddings are not among them: those stay when a batch grows.
constexpr std::array<std::string_view, 24> kSizeNames = {
    "HxW",         "N",           "batch_sizes", "end",         "input_size", "input_sizes",
    "length",      "m",           "max_k",       "max_q",       "n",          "normalized_shape",
    "num_weights", "output_size", "repeats",     "self_size",   "self_sizes", "shape",
    "size",        "sizes",       "split_size",  "split_sizes", "start",      "sym_size",
};
static_assert(std::ranges::is_sorted(kSizeNames));

constexpr size_t kMostNodesAbove = 4096;  // a message names the nearest, it need not search a whole model

}  // namespace

// Products of neighbouring sizes count, too: view(size=[1024, 768]) of [8, 128, 768] bakes in 8 * 128.
void BakedSizes::add_input(const std::string& name, std::span<const int64_t> recorded, std::span<const int64_t> now) {
  if (recorded.size() != now.size()) return;  // nothing says which size became which
  for (size_t first = 0; first < recorded.size(); ++first) {
    int64_t before = 1;
    int64_t after = 1;
    bool changed = false;
    for (size_t last = first; last < recorded.size(); ++last) {
      if (__builtin_mul_overflow(before, recorded[last], &before)) break;
      if (__builtin_mul_overflow(after, now[last], &after)) break;
      changed |= recorded[last] != now[last];
      if (!changed || before <= 1) continue;  // 0 and 1 stand for too much else
      const std::string dimension =
          first == last ? "size " + std::to_string(first) + " of '" + name + "'"
                        : "sizes " + std::to_string(first) + " to " + std::to_string(last) + " of '" + name + "'";
      changed_.try_emplace(before, Changed{dimension, after});
    }
  }
}

void BakedSizes::look_at(NodeId node, const std::string& argument, int64_t number,
                         std::vector<BakedSize>& found) const {
  const auto changed = changed_.find(number);
  if (changed == changed_.end()) return;
  found.push_back({node, argument, number, changed->second.dimension, changed->second.now});
}

void BakedSizes::find(NodeId node, std::vector<BakedSize>& found) const {
  if (changed_.empty() || graph_.target(node).kind() == TargetKind::kBuiltin) return;
  const auto arguments = graph_.arguments(node);
  const auto& formals = graph_.target(node).signature().arguments;
  for (size_t i = 0; i < arguments.size() && i < formals.size(); ++i) {
    const Argument& argument = arguments[i];
    if (argument.kind != ArgumentKind::kInt && argument.kind != ArgumentKind::kIntList) continue;
    const std::string& name = formals[i].name;
    if (!std::binary_search(kSizeNames.begin(), kSizeNames.end(), name)) continue;
    if (argument.kind == ArgumentKind::kInt) {
      look_at(node, name, argument.i, found);
      continue;
    }
    const auto ints = graph_.ints(argument);
    for (size_t j = 0; j < ints.size(); ++j) look_at(node, name + "[" + std::to_string(j) + "]", ints[j], found);
  }
}

std::vector<BakedSize> BakedSizes::find_at_or_above(NodeId node) const {
  std::vector<BakedSize> found;
  if (changed_.empty()) return found;
  std::unordered_set<NodeId> seen;
  // Goes by breadth, so that the sizes nearest to the failure are found first.
  std::deque<NodeId> waiting{node};
  for (size_t looked = 0; !waiting.empty() && found.empty() && looked < kMostNodesAbove; ++looked) {
    const NodeId next = waiting.front();
    waiting.pop_front();
    find(next, found);
    graph_.for_each_input(next, [&](ValueId value) {
      const NodeId producer = graph_.value(value).producer;
      if (producer.valid() && seen.insert(producer).second) waiting.push_back(producer);
    });
  }
  return found;
}

std::string to_text(const Graph& graph, const BakedSize& baked, const Numbering& numbering) {
  return c10::str("n", numbering.of(baked.node), " ", graph.target(baked.node).name(), ": ", baked.argument, " = ",
                  baked.number, " is ", baked.dimension, " as recorded, now ", baked.now);
}

}  // namespace shadowgraph
