// The function of a row runs once on fake tensors while an observer records its calls. If the results do not match,
// everything is undone. Costs the fake calls, a few microseconds each, and is linear in the new nodes.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <fstream>
#include <unordered_set>

#include "core/calls/call_record.h"
#include "core/calls/calls_on_fakes.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "ir/records.h"
#include "passes/decompose/decompositions.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/functional.h"

namespace shadowgraph {
namespace {

// Thrown by decline() through the running function, and caught in expand().
struct Declined {
  std::string why;
};

}  // namespace

void decline(const std::string& why) { throw Declined{why}; }

void ExpansionTable::call(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
  const std::string name = toString(op.operator_name());
  // A boxed function handles several operators, so there is no signature to compare.
  if (const auto boxed = boxed_.find(name); boxed != boxed_.end()) {
    boxed->second(op, stack);
    return;
  }
  // A function with another signature would get wrong arguments: schemas are compared at the first call.
  const Row& row = rows_.at(name);
  const auto difference = c10::findSchemaDifferences(row.inferred_schema->cloneWithRealTypes(/*with_symint=*/false),
                                                     op.schema().cloneWithRealTypes(/*with_symint=*/false));
  if (difference) {
    throw Error("the decomposition of " + name + " does not have the operator's signature " + toString(op.schema()) +
                ": " + *difference);
  }
  row.kernel.callBoxed(op, c10::DispatchKeySet(), stack);
}

std::vector<std::string> ExpansionTable::names() const {
  std::vector<std::string> names;
  for (const auto& [name, row] : rows_) names.push_back(name);
  for (const auto& [name, row] : boxed_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Expander::Expander(Graph& graph, const ExpansionTable& table) : graph_(graph), table_(table), calls_(graph) {}

// Runs the function, then checks its results. If they do not match, the new nodes are erased again.
std::optional<std::string> Expander::expand(NodeId node) {
  inserted_.clear();
  adopted_.clear();
  const c10::OperatorHandle op = calls_.operator_of(node);
  bool saved_elsewhere = false;
  graph_.for_each_output(node, [&](ValueId value) {
    saved_elsewhere |= graph_.is_saved_elsewhere(value);
    if (graph_.value(value).kind == ValueKind::kTensor) set_default_device(mode_, graph_.value(value).device());
  });
  // That node would refer to a saved tensor without a producer.
  if (saved_elsewhere) return "its result is saved for backward by another node";

  CallRecording recording(graph_, node, inserted_);
  FakeValues fakes(graph_);
  torch::jit::Stack stack;
  graph_.for_each_input(node, [&](ValueId value) {
    if (graph_.value(value).kind == ValueKind::kTensor) recording.know(value, fakes.of(value));
  });
  calls_.push_arguments(
      node, [&](ValueId value) -> const at::Tensor& { return fakes.of(value); }, stack);
  std::string why;
  bool adopted = false;
  try {
    const CallRecording::Scope recorded(recording, mode_);
    table_.call(op, &stack);
    adopted = adopt_results(node, stack, recording, why);
  } catch (const Declined& declined) {
    why = declined.why;
  } catch (...) {
    undo();
    throw;
  }
  if (!adopted) {
    undo();
    return why;
  }
  move_saved(node);
  const std::string& name = graph_.target(node).name();
  // The note records the original operator, for users and for passes that count.
  for (const NodeId made : inserted_) graph_.set_note(made, "expanded", name);
  graph_.set_saved(node, {});
  // Backward nodes of the node now belong to its last replacement.
  if (!inserted_.empty()) replaced_[node] = inserted_.back();
  graph_.erase(node);
  set_free_points(recording);
  return std::nullopt;
}

void Expander::undo() {
  graph_.erase(inserted_);
  inserted_.clear();
}

// Flattens lists on both sides, so that results pair up one by one. False if a list has a different length.
bool Expander::pair_up(const Argument& result, const c10::IValue& value, std::vector<ResultPair>& pairs) const {
  if (result.kind == ArgumentKind::kNone) return true;
  if (result.kind == ArgumentKind::kList) {
    const auto elements = graph_.list(result);
    const auto values = value.toListRef();
    if (elements.size() != values.size()) return false;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (!pair_up(elements[i], values[i], pairs)) return false;
    }
    return true;
  }
  pairs.push_back({result.ref.value, value.isTensor() ? value.toTensor() : at::Tensor(), ValueId()});
  return true;
}

// Converts result `i` of the function to what was recorded: dtype, strides, and a separate storage.
at::Tensor Expander::as_recorded(NodeId node, std::span<const ResultPair> pairs, size_t i, bool aliases,
                                 CallRecording& recording) {
  const ValueId recorded = pairs[i].recorded;
  at::Tensor tensor = pairs[i].made;
  // Users were recorded for this dtype and these strides.
  if (tensor.scalar_type() != graph_.value(recorded).dtype) tensor = tensor.to(graph_.value(recorded).dtype);
  if (!std::ranges::equal(graph_.sizes(recorded), tensor.sizes())) {
    throw Error("the decomposition of " + graph_.target(node).name() + " returns sizes " + c10::str(tensor.sizes()) +
                " for result " + std::to_string(i) + " of " + to_text(graph_, node));
  }
  if (aliases) return tensor;
  const auto strides = graph_.strides(recorded);
  if (!std::ranges::equal(strides, tensor.strides())) {
    const at::Tensor laid_out =
        at::empty_strided(tensor.sizes(), c10::IntArrayRef(strides.data(), strides.size()), tensor.options());
    return laid_out.copy_(tensor);
  }
  const ValueId value = recording.value_of(tensor);
  // Two results that share a tensor here were distinct in the record, and may be written separately.
  const bool is_another_result =
      std::ranges::any_of(pairs.first(i), [&](const ResultPair& pair) { return pair.adopted == value; });
  if (!recording.is_fresh(graph_.value(value).storage) || is_another_result) return tensor.clone();
  return tensor;
}

// Replaces `from` by `to`: its uses, its storage's kind and free point, and saved tensors.
void Expander::take_over(NodeId node, ValueId from, ValueId to) {
  graph_.set_requires_grad(to, graph_.value(from).requires_grad);
  const StorageId before = graph_.value(from).storage;
  const StorageId after = graph_.value(to).storage;
  // set_free_points must not change these: they are freed where the old storage was.
  adopted_.insert(after);
  if (before != after && graph_.storage(before).born == node) {
    graph_.set_storage_kind(after, graph_.storage(before).kind);
    const NodeId freed = graph_.storage(before).freed_after;
    if (freed.valid()) {
      std::vector<StorageId> frees(graph_.frees(freed).begin(), graph_.frees(freed).end());
      std::ranges::replace(frees, before, after);
      graph_.set_frees(freed, frees);
    }
  }
  // A tensor saved as this node's result is moved below; one saved as another node's argument moves with the use.
  std::vector<SavedTensor> saved(graph_.saved(node).begin(), graph_.saved(node).end());
  for (SavedTensor& entry : saved) {
    if (entry.value == from) entry.value = to;
    entry.role = SavedRole::kInternal;
  }
  graph_.set_saved(node, saved);
  graph_.replace_all_uses_with(from, to);
}

// Replaces the node's results by those of the function, after converting them to what was recorded.
bool Expander::adopt_results(NodeId node, const torch::jit::Stack& stack, CallRecording& recording, std::string& why) {
  const auto results = graph_.results(node);
  if (!results.empty() && results.size() != stack.size()) {
    why = "it returns a different number of results";
    return false;
  }
  std::vector<ResultPair> pairs;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!pair_up(results[i], stack[i], pairs)) {
      why = "it returns a list of a different length";
      return false;
    }
  }
  // A result on an operand's storage is a view or an in-place result, and must remain one.
  std::vector<StorageId> operand_storages;
  graph_.for_each_input(node, [&](ValueId value) { operand_storages.push_back(graph_.value(value).storage); });
  for (size_t i = 0; i < pairs.size(); ++i) {
    ResultPair& pair = pairs[i];
    if (!pair.made.defined()) {
      const bool is_saved = std::ranges::any_of(graph_.saved(node),
                                                [&](const SavedTensor& saved) { return saved.value == pair.recorded; });
      if (graph_.has_uses(pair.recorded) || is_saved) {
        why = "result " + std::to_string(i) + " is used, but is not a function of the operands";
        return false;
      }
      continue;
    }
    const bool aliases =
        std::ranges::find(operand_storages, graph_.value(pair.recorded).storage) != operand_storages.end();
    pair.made = as_recorded(node, pairs, i, aliases, recording);
    pair.adopted = recording.value_of(pair.made);
  }
  for (const ResultPair& pair : pairs) {
    if (pair.adopted.valid()) take_over(node, pair.recorded, pair.adopted);
  }
  return true;
}

// Moves saved tensors to the node that reads or produces them, otherwise to the last node.
void Expander::move_saved(NodeId node) {
  if (graph_.saved(node).empty() || inserted_.empty()) return;
  // Ordered, so that the resulting graph is deterministic.
  std::map<NodeId, std::vector<SavedTensor>> by_owner;
  for (const SavedTensor& saved : graph_.saved(node)) {
    SavedTensor entry{.value = saved.value};
    NodeId owner = inserted_.back();
    for (const NodeId candidate : inserted_) {
      const auto arguments = graph_.arguments(candidate);
      for (uint16_t i = 0; i < arguments.size() && entry.role == SavedRole::kInternal; ++i) {
        graph_.for_each_value(arguments.subspan(i, 1), [&](ValueId value) {
          if (value != saved.value || entry.role != SavedRole::kInternal) return;
          entry.role = SavedRole::kArgument;
          entry.index = i;
          owner = candidate;
        });
      }
      uint16_t index = 0;
      graph_.for_each_output(candidate, [&](ValueId value) {
        if (value == saved.value && entry.role == SavedRole::kInternal) {
          entry.role = SavedRole::kResult;
          entry.index = index;
          owner = candidate;
        }
        ++index;
      });
      if (entry.role != SavedRole::kInternal) break;
    }
    by_owner[owner].push_back(entry);
  }
  for (const auto& [owner, saved] : by_owner) graph_.set_saved(owner, saved);
}

// Frees temporaries of the expansion after their last use within it.
void Expander::set_free_points(const CallRecording& recording) {
  std::unordered_map<StorageId, NodeId> last;
  const std::unordered_set<NodeId> inside(inserted_.begin(), inserted_.end());
  for (const NodeId node : inserted_) {
    const auto touch = [&](ValueId value) { last[graph_.value(value).storage] = node; };
    graph_.for_each_input(node, touch);
    graph_.for_each_output(node, touch);
  }
  std::map<uint32_t, std::vector<StorageId>> freed;
  for (const StorageId storage : recording.fresh()) {
    // It inherited the free point of the result that it replaces.
    if (graph_.storage(storage).freed_after.valid()) continue;
    bool used_later = false;
    graph_.for_each_value_in(storage, [&](ValueId value) {
      used_later |= graph_.is_saved_elsewhere(value);
      graph_.for_each_use(value, [&](NodeId user) { used_later |= !inside.contains(user); });
    });
    const auto found = last.find(storage);
    if (used_later || found == last.end() || adopted_.contains(storage)) continue;
    freed[found->second.index].push_back(storage);
  }
  for (auto& [index, storages] : freed) {
    const NodeId node(index);
    storages.insert(storages.begin(), graph_.frees(node).begin(), graph_.frees(node).end());
    graph_.set_frees(node, storages);
  }
}

void Expander::relink() {
  if (replaced_.empty()) return;
  for (const NodeId node : graph_.nodes()) {
    NodeId& forward = mutable_node(graph_, node).forward;
    // A replacement may have been expanded itself, so follow the links to the end.
    for (auto next = replaced_.find(forward); next != replaced_.end(); next = replaced_.find(forward)) {
      forward = next->second;
    }
  }
}

// Visits nodes from last to first, so that a backward node is gone before its forward node is visited, and then the
// nodes of each expansion, also from the last. Ends when all remaining nodes are in the set or have no decomposition.

namespace {

bool is_core(const std::string& name) {
  const auto op = find_operator(name);
  return op && op->hasTag(at::Tag::core);
}

// Listed by name, since no PyTorch tag marks operators that do two steps in one kernel.
bool is_fused(const std::string& name) {
  return name.starts_with("aten::_foreach_") || name.starts_with("aten::_fused_") ||
         name.starts_with("aten::_scaled_dot_product_") || (operator_row(name).is & OperatorFact::kFused);
}

// One name per line; lines starting with # are comments.
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
      throw Error("'" + text + "' is not an operator set; use core-aten, no-fused, basic, names such as " +
                  "aten::mm+aten::add.Tensor, or @file");
    }
  }
  return of(std::move(names));
}

DecomposeResult decompose(Graph& graph, const DecomposeOptions& options) {
  const OperatorSet& keep = options.to;
  DecomposeResult result;
  const ExpansionTable& table = decompositions::all();
  enum class Verdict : uint8_t { kUnknown, kStays, kExpand };
  std::vector<Verdict> verdicts;  // by TargetId
  // Decides once per target: a model calls about a hundred operators from ten thousand nodes.
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

  std::optional<Expander> expander;  // created on first use: a graph without anything to expand only costs a walk
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
                      (reason == why.end() ? "\n" : ": " + reason->second + "\n");
  }
  summary.counters = {{"expanded", gone}, {"outside_the_set", left}};
  return summary;
}

namespace {

const ExpansionTable& table() {
  static const ExpansionTable* table = [] {
    auto* made = new ExpansionTable;
    decompositions::add_matrix_products(*made);
    decompositions::add_convolution_bias(*made);
    return made;
  }();
  return *table;
}

}  // namespace

SplitBiasResult split_bias(Graph& graph) { return split_bias_of(graph, nullptr); }

SplitBiasResult split_bias_of(Graph& graph, const std::function<bool(NodeId)>& wanted) {
  std::vector<NodeId> candidates;
  for (const NodeId node : graph.nodes()) {
    const Target& target = graph.target(node);
    if (target.kind() != TargetKind::kOperator || !table().has(target.name())) continue;
    if (wanted && !wanted(node)) continue;
    const Argument* bias = graph.find_argument(node, "bias");
    // A convolution without bias has nothing to split; addmm's bias has another name.
    if (bias == nullptr || bias->kind == ArgumentKind::kValue) candidates.push_back(node);
  }
  SplitBiasResult result;
  if (candidates.empty()) return result;
  Expander expander(graph, table());
  for (const NodeId node : candidates) {
    if (!expander.expand(node)) ++result.split;
  }
  expander.relink();
  return result;
}

PassResult SplitBiasResult::summary() const { return {.changed = split > 0, .counters = {{"split", split}}}; }

}  // namespace shadowgraph
