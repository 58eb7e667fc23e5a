// rewrite: replaces matches of patterns.
//
// Finds all matches of a rule first; they do not overlap. Then, match by match, inserts the replacement's calls at the
// position found for them: after the match's last node, or elsewhere (shadowgraph/graph/edit.h). Each call runs on fake
// tensors of its operands, which determines its results' geometry. If everything fits, the uses of the returned values
// move to the new ones and the matched nodes are erased; otherwise the new nodes are.
//
// Replacements after the last node of their matches do not conflict with others. Those elsewhere are only made if their
// neighbors are unchanged since the position was found; otherwise they are matched again in the next round.
//
// Costs one search and a few microseconds per replacement, mostly the fake calls.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/calls/call_record.h"
#include "core/calls/calls_on_fakes.h"
#include "core/calls/node_calls.h"
#include "core/fake/simulated_devices.h"
#include "ir/edit/bulk_edits.h"
#include "ir/records.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/simplify.h"

namespace shadowgraph {
namespace {

// Checks a rule first. A replacement may only read values that exist and are not erased, by complete calls.
void check_rule(const RewriteRule& rule) {
  const auto fail = [&](const std::string& what) { throw ParseError("rule " + rule.name + ": " + what, 0, 0); };
  if (rule.pattern.calls.empty()) fail("the pattern has no call");
  if (rule.pattern.returns.size() != rule.replacement.returns.size()) {
    fail(fmt::format("the pattern returns {} values, but the replacement returns {}", rule.pattern.returns.size(),
                     rule.replacement.returns.size()));
  }
  for (const uint32_t v : rule.pattern.returns) {
    if (rule.pattern.maker[v] < 0)
      fail("the pattern returns " + rule.pattern.value_names[v] + ", which it does not define");
  }
  for (size_t i = 0; i < rule.replacement.value_names.size(); ++i) {
    const std::string& name = rule.replacement.value_names[i];
    const auto found = std::find(rule.pattern.value_names.begin(), rule.pattern.value_names.end(), name);
    if (rule.replacement.maker[i] >= 0) continue;
    if (found == rule.pattern.value_names.end())
      fail("the replacement reads " + name + ", which is not in the pattern");
    // Nodes of the match are erased, so their results cannot be operands of the replacement.
    if (rule.pattern.maker[static_cast<size_t>(found - rule.pattern.value_names.begin())] >= 0) {
      fail("the replacement reads " + name + ", which is erased with the match");
    }
  }
  for (const std::string& name : rule.replacement.argument_names) {
    if (std::ranges::find(rule.pattern.argument_names, name) == rule.pattern.argument_names.end()) {
      fail("the replacement has " + name + ", which is not in the pattern");
    }
  }
  const auto concrete = [](const auto& self, const PatternArgument& a) -> bool {
    return a.kind != PatternArgument::Kind::kAnything &&
           std::all_of(a.elements.begin(), a.elements.end(), [&](const auto& e) { return self(self, e); });
  };
  for (const PatternCall& call : rule.replacement.calls) {
    if (!std::all_of(call.arguments.begin(), call.arguments.end(),
                     [&](const PatternArgument& a) { return concrete(concrete, a); })) {
      fail("'_' and '...' are not allowed in a replacement");
    }
  }
}

}  // namespace

std::vector<RewriteRule> parse_rules(std::string_view text, const Graph* targets, std::string_view name) {
  struct Source {
    std::string name, pattern, replacement;
    bool after_arrow = false;
  };
  std::vector<Source> sources;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const size_t begin = std::min(line.find_first_not_of(" \t\r"), line.size());
    line = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    const auto fail = [&](const std::string& what) {
      throw ParseError(fmt::format("{}:{}:1: {}", name, number, what), number, 1);
    };
    if (line.starts_with("rule ")) {
      if (!sources.empty() && !sources.back().after_arrow) fail("the rule before this line has no '=>'");
      sources.push_back({.name = std::string(line.substr(5))});
      // Preceding empty lines preserve line numbers in messages.
      sources.back().pattern.assign(static_cast<size_t>(number), '\n');
      continue;
    }
    if (sources.empty()) {
      if (!line.empty() && line[0] != '#') fail("expected 'rule NAME'");
      continue;
    }
    Source& source = sources.back();
    if (line == "=>") {
      if (source.after_arrow) fail("the rule has a second '=>'");
      source.after_arrow = true;
      source.replacement.assign(static_cast<size_t>(number), '\n');
      continue;
    }
    (source.after_arrow ? source.replacement : source.pattern).append(line).push_back('\n');
  }
  if (!sources.empty() && !sources.back().after_arrow) {
    throw ParseError(fmt::format("{}: rule {} has no '=>'", name, sources.back().name), number, 1);
  }
  std::vector<RewriteRule> rules;
  for (const Source& source : sources) {
    rules.push_back({.name = source.name,
                     .pattern = Pattern::parse(source.pattern, targets, name),
                     .replacement = Pattern::parse(source.replacement, targets, name)});
    check_rule(rules.back());
  }
  return rules;
}

class Rewriter {
 public:
  Rewriter(Graph& graph, const RewriteRule& rule) : graph_(graph), rule_(rule), calls_(graph) {}

  void run(RewriteResult& result) {
    // Conflicts between matches rarely cascade, so a few rounds suffice.
    constexpr int kMaxRounds = 16;
    // Otherwise a rule whose replacement matches its pattern would grow the graph in every round.
    const uint32_t old_nodes = graph_.node_capacity();  // nodes of replacements are not matched again
    std::vector<std::string> refused;
    std::unordered_set<NodeId> waiting;  // one node of each match for the next round
    for (int round = 0; round < kMaxRounds; ++round) {
      moved_.clear();
      refused.clear();
      const Dependences dependences = Dependences::of(graph_);
      std::vector<Match> matches = find_matches(graph_, rule_.pattern, dependences, &refused);
      std::erase_if(matches, [&](const Match& match) {
        return std::ranges::any_of(match.nodes, [&](NodeId n) { return n.index >= old_nodes; }) ||
               (round > 0 && !waiting.contains(match.nodes.front())) || (rule_.filter && !rule_.filter(graph_, match));
      });
      waiting.clear();
      int64_t replaced = 0;
      for (const Match& match : matches) {
        // These go first, since they do not conflict; the others are checked against the result.
        if (match.place.at_last) replaced += replace(match, result) ? 1 : 0;
      }
      for (const Match& match : matches) {
        if (match.place.at_last) continue;
        if (is_still_valid(dependences, match)) {
          replaced += replace(match, result) ? 1 : 0;
        } else {
          waiting.insert(match.nodes.front());
        }
      }
      result.replaced += replaced;
      if (waiting.empty()) break;
      if (replaced == 0 || round + 1 == kMaxRounds) {
        result.refused += static_cast<int64_t>(waiting.size());
        result.reasons.push_back(rule_.name + ": its neighbors were replaced as well; run the rule again");
        break;
      }
    }
    result.refused += static_cast<int64_t>(refused.size());
    for (const std::string& why : refused) {
      if (std::ranges::find(result.reasons, rule_.name + ": " + why) == result.reasons.end()) {
        result.reasons.push_back(rule_.name + ": " + why);
      }
    }
    if (replaced_.empty()) return;
    for (NodeId n : graph_.nodes()) {
      const auto found = replaced_.find(graph_.node(n).forward);
      if (found != replaced_.end() && graph_.is_before(found->second, n))
        mutable_node(graph_, n).forward = found->second;
    }
  }

 private:
  bool replace(const Match& match, RewriteResult& result) {
    bind(match);
    save_frees(match);
    std::string why;
    try {
      exchange(match, result);
      return true;
    } catch (const c10::Error& error) {
      why = error.what_without_backtrace();
    } catch (const Error& error) {
      why = error.what();
    }
    undo(match);
    ++result.refused;
    why = fmt::format("{}: {}", rule_.name, why.substr(0, why.find('\n')));
    if (std::find(result.reasons.begin(), result.reasons.end(), why) == result.reasons.end())
      result.reasons.push_back(why);
    return false;
  }

  ValueId current(ValueId value) const {
    for (auto found = replacement_of_.find(value); found != replacement_of_.end();
         found = replacement_of_.find(value)) {
      value = found->second;
    }
    return value;
  }

  // Wildcards get the values bound by the match; the others are produced by the calls.
  void bind(const Match& match) {
    values_.assign(rule_.replacement.value_names.size(), ValueId());
    arguments_.assign(rule_.replacement.argument_names.size(), Argument());
    for (size_t i = 0; i < values_.size(); ++i) {
      if (rule_.replacement.maker[i] < 0) values_[i] = current(match.value(rule_.replacement.value_names[i]));
    }
    for (size_t i = 0; i < arguments_.size(); ++i) arguments_[i] = match.argument(rule_.replacement.argument_names[i]);
    for (Argument& a : arguments_) {
      if (a.kind == ArgumentKind::kValue) a = Argument::of_value(current(a.ref.value));
    }
    inserted_.clear();
    pairs_.clear();
    fakes_of_results_.clear();
    storages_.clear();
    held_.clear();
    // Fake tensors are recreated for each replacement, since the graph has changed.
    fakes_.emplace(graph_);
  }

  // New nodes extend lifetimes; if they are removed again, the free points are restored.
  void save_frees(const Match& match) {
    frees_.clear();
    const auto remember = [&](NodeId n) {
      if (n.valid() && !graph_.is_erased(n)) frees_.try_emplace(n, graph_.frees(n).begin(), graph_.frees(n).end());
    };
    remember(match.last);
    const auto save_frees_of = [&](const Argument& a) {
      if (a.kind != ArgumentKind::kValue || !a.ref.value.valid()) return;
      const StorageId s = graph_.value(a.ref.value).storage;
      if (s.valid()) remember(graph_.storage(s).freed_after);
    };
    for (ValueId v : values_) save_frees_of(Argument::of_value(v));
    for (const Argument& a : arguments_) {
      save_frees_of(a);
      if (a.kind == ArgumentKind::kList) std::ranges::for_each(graph_.list(a), save_frees_of);
    }
  }

  // The calls get the region and phase of the match's last node, wherever they are inserted.
  void insert_calls(const Match& match) {
    {
      InsertionPoint at = match.place.at_last ? InsertionPoint::after(graph_, match.last)
                                              : InsertionPoint(graph_, match.place.position);
      for (const PatternCall& c : rule_.replacement.calls) call(c, at);
    }
    for (NodeId n : inserted_) {
      const Node& last = graph_.node(match.last);
      Node& made = mutable_node(graph_, n);
      made.region = last.region;
      made.phase = last.phase;
      made.flags = last.flags;
      // The verifier rejects a forward link to an erased or later node.
      const bool known = last.forward.valid() && !graph_.is_erased(last.forward);
      made.forward = known && graph_.is_before(last.forward, n) ? last.forward : NodeId();
      made.source = last.source;
    }
  }

  // Frees unused results of the replacement right after they are produced.
  void free_unused_results() {
    for (NodeId n : inserted_) {
      graph_.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        const bool returned = std::any_of(pairs_.begin(), pairs_.end(),
                                          [&](const auto& p) { return graph_.value(p.second).storage == s; });
        if (!s.valid() || returned || graph_.storage(s).born != n || graph_.storage(s).freed_after.valid()) return;
        NodeId last = n;
        graph_.for_each_value_in(s, [&](ValueId alias) {
          graph_.for_each_use(alias, [&](NodeId user) { last = graph_.is_before(last, user) ? user : last; });
        });
        free_storages_after(graph_, {{s, last}});
      });
    }
  }

  // Throws if something does not fit; undo() then reverts everything.
  void exchange(const Match& match, RewriteResult& result) {
    insert_calls(match);
    for (size_t i = 0; i < rule_.pattern.returns.size(); ++i) {
      pairs_.emplace_back(match.values[rule_.pattern.returns[i]], values_[rule_.replacement.returns[i]]);
      // Checked before any use is moved, so that most rejections need not revert uses.
      check(pairs_.back().first, pairs_.back().second);
    }
    for (NodeId n : match.place.delayed) {
      graph_.move_before(n, match.place.position);
      moved_.insert(n);
      ++result.moved;
    }
    for (const auto& [old_value, new_value] : pairs_) graph_.replace_all_uses_with(old_value, new_value);
    for (const auto& [old_value, new_value] : pairs_) adopt(old_value, new_value);
    free_unused_results();
    graph_.erase(match.nodes);
    for (const auto& [old_value, new_value] : pairs_) replacement_of_[old_value] = new_value;
    for (NodeId n : match.nodes) {
      if (!inserted_.empty()) replaced_[n] = inserted_.back();
    }
  }

  // Restores uses that were moved, after which the inserted nodes are unused.
  void undo(const Match& match) {
    for (const auto& [old_value, new_value] : pairs_) {
      if (graph_.is_erased(graph_.value(new_value).producer)) continue;
      graph_.replace_uses_if(new_value, old_value, [&](NodeId user, const Argument&) {
        return std::find(inserted_.begin(), inserted_.end(), graph_.value(new_value).producer) != inserted_.end() &&
               std::find(inserted_.begin(), inserted_.end(), user) == inserted_.end();
      });
    }
    graph_.erase(inserted_);
    // Clear all first, or a storage that moved would temporarily be freed twice.
    for (const auto& [n, frees] : frees_) graph_.set_frees(n, {});
    for (const auto& [n, frees] : frees_) graph_.set_frees(n, frees);
    for (NodeId n : match.place.delayed) {  // they may be after a free that they should precede
      const auto touch = [&](ValueId v) {
        if (graph_.value(v).storage.valid()) graph_.extend_lifetime(graph_.value(v).storage, n);
      };
      graph_.for_each_input(n, touch);
      graph_.for_each_output(n, touch);
    }
  }

  // Returns whether the match, the nodes that must move down and all of their dependences and users have not moved.
  bool is_still_valid(const Dependences& dependences, const Match& match) const {
    const auto good = [&](NodeId n) { return !graph_.is_erased(n) && !moved_.contains(n); };
    const auto all_good = [&](NodeId n) {
      return good(n) && std::ranges::all_of(dependences.before(n), good) &&
             std::ranges::all_of(dependences.after(n), good);
    };
    const NodeId position = match.place.position;
    return (!position.valid() || good(position)) && std::ranges::all_of(match.nodes, all_good) &&
           std::ranges::all_of(match.place.delayed, all_good);
  }

  Argument instantiate(const PatternArgument& argument) {
    switch (argument.kind) {
      case PatternArgument::Kind::kLiteral:
        return import(argument.literal);
      case PatternArgument::Kind::kValue:
        return Argument::of_value(values_[argument.index]);
      case PatternArgument::Kind::kArgument:
        return arguments_[argument.index];
      case PatternArgument::Kind::kList: {
        std::vector<Argument> elements;
        for (const PatternArgument& e : argument.elements) elements.push_back(instantiate(e));
        return graph_.make_list(elements);
      }
      default:
        return {};  // parse_rules rejects others
    }
  }

  Argument import(const Argument& literal) {
    return copied_argument(graph_, *rule_.replacement.literals, literal,
                           [this](const Argument& e) { return import(e); });
  }

  void call(const PatternCall& call, InsertionPoint& at) {
    std::vector<Argument> arguments;
    for (const PatternArgument& a : call.arguments) arguments.push_back(instantiate(a));
    const Graph& literals = *rule_.replacement.literals;
    TargetId target;
    for (uint32_t i = 0; i < literals.target_count() && !target.valid(); ++i) {
      // Rules have their targets in a separate graph; they are interned here on first use.
      if (literals.target(TargetId(i)).name() == call.target)
        target = graph_.intern_target(literals.target(TargetId(i)));
    }
    const NodeId node = at.insert(target, arguments);
    inserted_.push_back(node);
    torch::jit::Stack stack;
    calls_.push_arguments(
        node, [this](ValueId v) -> const at::Tensor& { return fake(v); }, stack);
    calls_.call(node, stack);
    std::vector<Argument> results;
    for (const c10::IValue& value : stack) results.push_back(result_of(value, node));
    graph_.set_results(node, results);
    size_t flat = 0;
    graph_.for_each_output(node, [&](ValueId v) {
      if (flat < call.results.size() && call.results[flat] >= 0) values_[static_cast<size_t>(call.results[flat])] = v;
      ++flat;
    });
    if (flat < call.results.size()) throw Error(call.target + " returns fewer results than the replacement names");
  }

  Argument result_of(const c10::IValue& value, NodeId node) {
    return shadowgraph::result_of(graph_, node, value, [&](const at::Tensor& tensor) {
      if (!is_fake(tensor)) throw Error("the replacement creates a real tensor");
      const auto [storage, added] = storages_.try_emplace(tensor.storage().unsafeGetStorageImpl(), StorageId());
      if (added) {
        storage->second = graph_.add_storage(storage_of(tensor, node));
        held_.push_back(tensor.storage());
      }
      const ValueId made = graph_.new_tensor(node, spec_of(tensor, storage->second));
      fakes_of_results_.insert_or_assign(made, tensor);
      return Argument::of_value(made);
    });
  }

  const at::Tensor& fake(ValueId value) {
    if (const auto found = fakes_of_results_.find(value); found != fakes_of_results_.end()) return found->second;
    const at::Tensor& tensor = fakes_->of(value);
    // So that the replacement's view of an operand is in the operand's storage.
    storages_.try_emplace(tensor.storage().unsafeGetStorageImpl(), graph_.value(value).storage);
    return tensor;
  }

  void check(ValueId old_value, ValueId new_value) const {
    const Value& a = graph_.value(old_value);
    const Value& b = graph_.value(new_value);
    if (a.kind != b.kind || a.dtype != b.dtype || a.device() != b.device() ||
        (a.kind == ValueKind::kTensor && !(std::ranges::equal(graph_.sizes(old_value), graph_.sizes(new_value)) &&
                                           std::ranges::equal(graph_.strides(old_value), graph_.strides(new_value))))) {
      throw Error(fmt::format("the replacement returns {} where {} is expected (or strides or device differ)",
                              type_text(graph_, new_value), type_text(graph_, old_value)));
    }
  }

  // The storage of a new result takes over kind and free point of the one that it replaces.
  void adopt(ValueId old_value, ValueId new_value) {
    graph_.set_requires_grad(new_value, graph_.value(old_value).requires_grad);
    const StorageId from = graph_.value(old_value).storage;
    const StorageId to = graph_.value(new_value).storage;
    if (!from.valid() || !to.valid() || from == to) return;
    const NodeId born = graph_.storage(to).born;
    // A replacement may return an operand, whose storage is unchanged.
    if (std::find(inserted_.begin(), inserted_.end(), born) == inserted_.end()) return;
    graph_.set_storage_kind(to, graph_.storage(from).kind);
    const NodeId free_point = graph_.storage(from).freed_after;
    if (!free_point.valid() || graph_.is_erased(free_point) || graph_.storage(to).freed_after.valid()) return;
    // The old storage may be freed inside the match; the new one cannot be freed before it is allocated.
    const NodeId after = graph_.is_before(free_point, inserted_.back()) ? inserted_.back() : free_point;
    free_storages_after(graph_, {{to, after}});
  }

  Graph& graph_;
  const RewriteRule& rule_;
  FakeTensorMode mode_{with_all_devices()};
  BelowAutograd below_;
  NodeCalls calls_;
  std::unordered_map<ValueId, ValueId> replacement_of_;  // of replaced values
  std::unordered_map<NodeId, NodeId> replaced_;          // erased node -> its last replacement
  std::unordered_set<NodeId> moved_;                     // in this round

  // State of the current replacement.
  std::vector<ValueId> values_;      // by value of the replacement
  std::vector<Argument> arguments_;  // by its argument names
  std::vector<NodeId> inserted_;
  std::vector<std::pair<ValueId, ValueId>> pairs_;  // old and new returned values
  std::map<NodeId, std::vector<StorageId>> frees_;  // original frees by node
  std::unordered_map<ValueId, at::Tensor> fakes_of_results_;
  std::unordered_map<const c10::StorageImpl*, StorageId> storages_;
  std::vector<c10::Storage> held_;
  std::optional<FakeValues> fakes_;
};

RewriteResult rewrite(Graph& graph, std::span<const RewriteRule> rules) {
  RewriteResult result;
  for (const RewriteRule& rule : rules) {
    check_rule(rule);
    Rewriter(graph, rule).run(result);
  }
  return result;
}

RewriteResult rewrite(Graph& graph, const RewriteOptions& options) {
  const std::string& file = options.file;
  std::string text = options.rules;
  if (file.empty() == text.empty()) throw Error("rewrite: give exactly one of rules=.. and file=..");
  if (!file.empty()) {
    text = read_file(file);
  } else {
    std::replace(text.begin(), text.end(), ';', '\n');
  }
  return rewrite(graph, parse_rules(text, &graph, file.empty() ? "<rules>" : file));
}

PassResult RewriteResult::summary() const {
  PassResult summary{.changed = replaced > 0 || moved > 0, .counters = {{"replaced", replaced}, {"refused", refused}}};
  for (const std::string& reason : reasons) summary.report += "not replaced: " + reason + "\n";
  return summary;
}

}  // namespace shadowgraph
