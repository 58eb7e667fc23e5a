// decompose: replaces operators by more basic ones (decompositions.h has the formulas).
//
// Nodes are visited from the last to the first, so that a backward node is gone before its forward is looked at. Nodes
// that an expansion put in are visited next, from the last on. This ends when all of them are in the set or have no
// row.
//
// Exporters use it for a fixed set of operators (core-aten), and passes that know products and sums but not every fused
// form (no-fused). An operator that cannot be expanded stays, and is listed with the reason: the graph is still right.
//
// Cost: a walk, a look at the set once a target, and what expansions put in.
#include "shadowgraph/passes/decompose.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <fstream>

#include "ir/operators/operator_name.h"
#include "passes/decompose/decompositions.h"
#include "passes/decompose/expansion.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {
namespace {

bool is_core(const std::string& name) {
  const auto op = find_operator(name);
  return op && op->hasTag(at::Tag::core);
}

// Names are listed, since no tag of PyTorch says that an operator does two steps in one kernel.
bool is_fused(const std::string& name) {
  static const std::set<std::string> kWithAddend = {"aten::addmm",    "aten::addmv",    "aten::addr",
                                                    "aten::addbmm",   "aten::baddbmm",  "aten::addmm_",
                                                    "aten::addmv_",   "aten::addr_",    "aten::addbmm_",
                                                    "aten::baddbmm_", "aten::addcmul",  "aten::addcdiv",
                                                    "aten::addcmul_", "aten::addcdiv_", "aten::lerp",
                                                    "aten::lerp_",    "aten::rsub",     "aten::_addmm_activation"};
  return name.starts_with("aten::_foreach_") || name.starts_with("aten::_fused_") ||
         name.starts_with("aten::_scaled_dot_product_") || kWithAddend.contains(std::string(without_overload(name)));
}

// One name a line; lines that begin with # are left out.
std::set<std::string> names_in_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw FileError("cannot read the list of operators '" + path + "'");
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (!line.empty() && line[0] != '#') names.insert(line);
  }
  return names;
}

}  // namespace

OperatorSet OperatorSet::of(std::set<std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return OperatorSet(std::move(text), [names = std::move(names)](const std::string& name) {
    return find_by_operator(names, name) != names.end();
  });
}

OperatorSet OperatorSet::named(const std::string& text) {
  if (text == "core-aten") return OperatorSet(text, &is_core);
  if (text == "no-fused") return OperatorSet(text, [](const std::string& name) { return !is_fused(name); });
  if (text == "basic")
    return OperatorSet(text, [](const std::string& name) { return !decompositions::all().has(name); });
  if (text.starts_with('@')) {
    OperatorSet set = of(names_in_file(text.substr(1)));
    set.text_ = text;
    return set;
  }
  std::set<std::string> names;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('+', at), text.size());
    names.insert(text.substr(at, end - at));
    at = end + 1;
  }
  for (const std::string& name : names) {
    if (name.find("::") == std::string::npos) {
      throw Error("'" + text + "' is no set of operators: core-aten, no-fused, basic, names such as " +
                  "aten::mm+aten::add.Tensor, or @file");
    }
  }
  return of(std::move(names));
}

std::vector<std::string> decomposable_operators() { return decompositions::all().names(); }

DecomposeResult decompose(Graph& graph, const DecomposeOptions& options) {
  const OperatorSet& keep = options.to;
  DecomposeResult result;
  const ExpansionTable& table = decompositions::all();
  enum class Verdict : uint8_t { kUnknown, kStays, kExpand };
  std::vector<Verdict> verdicts;  // by TargetId
  // A target is judged once: a model calls some hundred operators from ten thousand nodes.
  const auto verdict_of = [&](NodeId node) {
    const TargetId target = graph.node(node).target;
    if (target.index >= verdicts.size()) verdicts.resize(graph.target_count(), Verdict::kUnknown);
    Verdict& verdict = verdicts[target.index];
    if (verdict == Verdict::kUnknown) {
      const std::string& name = graph.target(target).name();
      const bool expand = graph.target(target).kind() == TargetKind::kOperator && !keep.has(name) && table.has(name);
      verdict = expand ? Verdict::kExpand : Verdict::kStays;
    }
    return verdict;
  };

  std::optional<Expander> expander;  // made when first needed: a graph that has nothing to expand costs a walk
  for (NodeId node = graph.last(); node.valid();) {
    const NodeId previous = graph.node(node).previous;
    if (verdict_of(node) == Verdict::kStays) {
      node = previous;
      continue;
    }
    if (!expander) expander.emplace(graph, table);
    const std::string name = graph.target(node).name();
    if (const auto why = expander->expand(node)) {
      result.why.try_emplace(name, *why);
      node = previous;
      continue;
    }
    ++result.expanded[name];
    node = expander->inserted().empty() ? previous : expander->inserted().back();
  }
  if (expander) expander->relink();
  for (const NodeId node : graph.nodes()) {
    const Target& target = graph.target(node);
    if (target.kind() != TargetKind::kBuiltin && !keep.has(target.name())) ++result.remaining[target.name()];
  }
  return result;
}

PassResult DecomposeResult::summary() const {
  PassResult summary{.changed = !expanded.empty()};
  int64_t gone = 0;
  int64_t left = 0;
  for (const auto& [name, count] : expanded) gone += count;
  for (const auto& [name, count] : remaining) {
    left += count;
    const auto reason = why.find(name);
    summary.report += "remains: " + name + " x " + std::to_string(count) +
                      (reason == why.end() ? "\n" : ", because " + reason->second + "\n");
  }
  summary.counters = {{"expanded", gone}, {"outside_the_set", left}};
  return summary;
}

}  // namespace shadowgraph
