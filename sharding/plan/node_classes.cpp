#include "sharding/plan/node_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "ir/analysis/blocks.h"
#include "ir/analysis/module_tree.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

std::string without_numbers(std::string_view path) {
  std::string result;
  for (bool first = true;;) {
    const size_t end = std::min(path.find('.'), path.size());
    const std::string_view word = path.substr(0, end);
    const size_t begin = word.find_last_not_of("0123456789") + 1;
    const bool number = begin < word.size() && (begin == 0 || (first && word[begin - 1] == '_'));
    result += word.substr(0, number ? begin : end);
    if (number) result += '#';
    first &= !number;
    if (end == path.size()) return result;
    result += '.';
    path.remove_prefix(end + 1);
  }
}

namespace {

class Classifier {
 public:
  explicit Classifier(const Graph& graph) : graph_(graph), hashes_(graph), modules_(ModuleTree::of(graph)) {
    for (const Module& module : modules_.modules) path_of_.push_back(number_of(without_numbers(module.path)));
  }

  NodeClasses classes() {
    NodeClasses found;
    for (const NodeId node : graph_.nodes()) {
      found.class_of[node] = number_of(key_of(found, node));
    }
    // These are numbers of their own; numbers of paths are among them.
    std::unordered_map<uint32_t, uint32_t> dense;
    for (const NodeId node : graph_.nodes()) {
      uint32_t& number = found.class_of[node];
      number = dense.try_emplace(number, static_cast<uint32_t>(dense.size())).first->second;
    }
    found.count = static_cast<uint32_t>(dense.size());
    return found;
  }

 private:
  uint32_t number_of(const std::string& key) {
    return numbers_.try_emplace(key, static_cast<uint32_t>(numbers_.size())).first->second;
  }

  std::string key_of(const NodeClasses& found, NodeId node) {
    if (graph_.is_placeholder(node)) {
      // A placeholder's name is one of its constants, and what it stands for is in its type.
      return fmt::format("placeholder {} {} {}", graph_.node(node).target.index,
                         type_text(graph_, graph_.results(node)[0].ref.value),
                         without_numbers(placeholder_name(graph_, node)));
    }
    const uint64_t call = hashes_.of_node(node);
    const uint32_t module = modules_.of_node(graph_, node);
    const uint32_t phase = graph_.node(node).phase.index;
    if (module != 0) {
      const uint32_t ordinal = ordinals_[fmt::format("{} {} {}", module, phase, call)]++;
      return fmt::format("module {} {} {} {}", path_of_[module], phase, call, ordinal);
    }
    // A node outside modules is known by its operands. Nodes with the very same operands are told apart by their order.
    std::string key = fmt::format("free {} {}", phase, call);
    std::string same = key;
    graph_.for_each_input(node, [&](ValueId v) {
      key += fmt::format(" {}:{}", found.class_of[graph_.value(v).producer], position_of(v));
      same += fmt::format(" {}", v.index);
    });
    return fmt::format("{} {}", key, ordinals_[same]++);
  }

  // Returns which of its producer's results a value is.
  uint32_t position_of(ValueId value) const {
    uint32_t position = 0;
    uint32_t found = 0;
    graph_.for_each_output(graph_.value(value).producer, [&](ValueId v) {
      if (v == value) found = position;
      ++position;
    });
    return found;
  }

  const Graph& graph_;
  const BlockHashes hashes_;
  const ModuleTree modules_;
  std::vector<uint32_t> path_of_;  // by module: number of its path without numbers
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unordered_map<std::string, uint32_t> ordinals_;
};

}  // namespace

NodeClasses NodeClasses::of(const Graph& graph, bool fold) {
  if (fold) return Classifier(graph).classes();
  NodeClasses each;
  for (const NodeId node : graph.nodes()) each.class_of[node] = each.count++;
  return each;
}

}  // namespace shadowgraph
