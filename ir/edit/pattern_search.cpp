// Finds patterns in graphs.
//
//     %wt = aten::t(self=%w)                      the last call is tried on each node of the graph; from there the
//     %y = aten::addmm(self=%b, mat1=%x,          search goes to makers of operands, then to users of values that are
//                      mat2=%wt)                  known, and back when something does not fit
//     return %y
//
// A node that cannot be the last call is refused by one bit of a table, so most nodes cost a look. A candidate costs
// the calls of the pattern, times the users of a value where a call is reached from what it reads. Whether all nodes of
// a match can meet at one point is asked last, since that follows dependences.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ir/operators/operator_name.h"
#include "shadowgraph/analysis/dependences.h"
#include "shadowgraph/edit/pattern.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

// Searches by going back: a step binds names, and undo() takes its bindings away again if a later step fails.
class Search {
 public:
  Search(const Graph& graph, const Pattern& pattern, const Dependences& dependences);
  std::vector<Match> run(std::vector<std::string>* refused);

 private:
  struct Step {
    size_t call = 0;
    // kAnchor: the node that is tried. kProducer: the one node that makes `value`. kUser: any user of `value`.
    enum class How : uint8_t { kAnchor, kProducer, kUser } how = How::kAnchor;
    uint32_t value = 0;  // whose producer or user the call is
  };
  void plan();
  bool solve(size_t step);
  bool try_node(const Step& step, size_t number, NodeId n);
  bool unify(const PatternCall& call, NodeId n);
  bool unify(const PatternArgument& wanted, const Argument& actual);
  bool bind(uint32_t value, ValueId to);
  bool legal();
  void undo(size_t values, size_t arguments);

  const Graph& graph_;
  const Pattern& pattern_;
  const Dependences& dependences_;
  std::vector<Step> steps_;
  std::vector<std::vector<bool>> targets_;  // by call: which targets of the graph it may be
  std::vector<char> taken_;                 // by node: 1 in an earlier match, 2 in this one
  std::vector<NodeId> nodes_;
  Dependences::MeetingPoint place_;
  NodeId obstacle_;  // to what fits from the node that is tried
  std::vector<ValueId> values_;
  std::vector<std::optional<Argument>> arguments_;
  std::vector<uint32_t> bound_values_, bound_arguments_;  // in order, to undo
};

void values_of(const PatternArgument& argument, std::vector<uint32_t>& values) {
  if (argument.kind == PatternArgument::Kind::kValue) values.push_back(argument.index);
  for (const PatternArgument& e : argument.elements) values_of(e, values);
}

Search::Search(const Graph& graph, const Pattern& pattern, const Dependences& dependences)
    : graph_(graph),
      pattern_(pattern),
      dependences_(dependences),
      taken_(graph.node_capacity()),
      nodes_(pattern.calls.size()),
      values_(pattern.value_names.size()),
      arguments_(pattern.argument_names.size()) {
  // Targets are compared once a call of the pattern, so that a node is refused by looking up one bit.
  for (const PatternCall& call : pattern.calls) {
    auto& wanted = targets_.emplace_back(graph.target_count());
    for (uint32_t i = 0; i < graph.target_count(); ++i) {
      wanted[i] = graph.target(TargetId(i)).name() == call.target &&
                  graph.target(TargetId(i)).signature().arguments.size() == call.arguments.size();
    }
  }
  plan();
}

// Plans the order of steps: from the last call to what makes its operands, then to other calls that share a value. A
// producer is one node, users may be many, so producers come first.
void Search::plan() {
  const auto& calls = pattern_.calls;
  std::vector<std::vector<uint32_t>> reads(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    for (const PatternArgument& a : calls[i].arguments) values_of(a, reads[i]);
  }
  std::vector<bool> placed(calls.size()), known(pattern_.value_names.size());
  const auto place = [&](Step step) {
    placed[step.call] = true;
    for (uint32_t v : reads[step.call]) known[v] = true;
    for (int32_t v : calls[step.call].results) {
      if (v >= 0) known[static_cast<size_t>(v)] = true;
    }
    steps_.push_back(step);
  };
  place({calls.size() - 1});
  while (steps_.size() < calls.size()) {
    std::optional<Step> next;
    for (size_t i = calls.size(); i-- > 0 && !next;) {
      if (placed[i]) continue;
      for (int32_t v : calls[i].results) {
        if (v >= 0 && known[static_cast<size_t>(v)]) next = Step{i, Step::How::kProducer, static_cast<uint32_t>(v)};
      }
    }
    for (size_t i = calls.size(); i-- > 0 && !next;) {
      if (placed[i]) continue;
      for (uint32_t v : reads[i]) {
        if (known[v]) next = Step{i, Step::How::kUser, v};
      }
    }
    // Such a call could stand anywhere in the graph, and the search would try all pairs of nodes.
    if (!next) {
      size_t i = 0;
      while (placed[i]) ++i;
      throw Error(
          fmt::format("line {} of the pattern shares no value with the others; match it by itself", calls[i].line));
    }
    place(*next);
  }
}

// Bindings are undone in the reverse order of being made, back to given counts.
void Search::undo(size_t values, size_t arguments) {
  for (; bound_values_.size() > values; bound_values_.pop_back()) values_[bound_values_.back()] = ValueId();
  for (; bound_arguments_.size() > arguments; bound_arguments_.pop_back()) arguments_[bound_arguments_.back()].reset();
}

// A name means one value throughout a match; binding it again asks for the same one.
bool Search::bind(uint32_t value, ValueId to) {
  if (values_[value].valid()) return values_[value] == to;
  values_[value] = to;
  bound_values_.push_back(value);
  return true;
}

// Says whether an argument is what the pattern wants, and binds the names in it.
bool Search::unify(const PatternArgument& wanted, const Argument& actual) {
  switch (wanted.kind) {
    case PatternArgument::Kind::kAnything:
      return true;
    case PatternArgument::Kind::kDefault:
      return false;
    case PatternArgument::Kind::kLiteral:
      return same_constant_argument(*pattern_.literals, wanted.literal, graph_, actual);
    case PatternArgument::Kind::kValue:
      return actual.kind == ArgumentKind::kValue && bind(wanted.index, actual.ref.value);
    case PatternArgument::Kind::kArgument: {
      auto& bound = arguments_[wanted.index];
      if (!bound) {
        bound = actual;
        bound_arguments_.push_back(wanted.index);
        return true;
      }
      // Values are equal by identity, constants by content.
      if (bound->kind == ArgumentKind::kValue || actual.kind == ArgumentKind::kValue) {
        return bound->kind == actual.kind && bound->ref.value == actual.ref.value;
      }
      return same_constant_argument(graph_, *bound, graph_, actual);
    }
    case PatternArgument::Kind::kList: {
      if (actual.kind != ArgumentKind::kList) return false;
      const auto list = graph_.list(actual);
      return std::equal(wanted.elements.begin(), wanted.elements.end(), list.begin(), list.end(),
                        [&](const PatternArgument& w, const Argument& a) { return unify(w, a); });
    }
  }
  return false;
}

// A call with fewer arguments than the pattern has never fits; one with more fits only with `...`.
bool Search::unify(const PatternCall& call, NodeId n) {
  const auto arguments = graph_.arguments(n);
  if (arguments.size() < call.arguments.size() || (arguments.size() > call.arguments.size() && !call.more))
    return false;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (!unify(call.arguments[i], arguments[i])) return false;
  }
  size_t flat = 0;
  bool good = true;
  graph_.for_each_output(n, [&](ValueId v) {
    if (flat < call.results.size() && call.results[flat] >= 0) {
      good = good && bind(static_cast<uint32_t>(call.results[flat]), v);
    }
    ++flat;
  });
  // A pattern that names fewer results leaves the last ones unnamed.
  return good && flat >= call.results.size();
}

// Tries one node for one call; whatever it bound is undone when the rest of the pattern does not follow.
bool Search::try_node(const Step& step, size_t number, NodeId n) {
  // The cheap tests come first, as nearly every node fails them.
  if (taken_[n.index] != 0 || !targets_[step.call][graph_.node(n).target.index]) return false;
  const size_t values = bound_values_.size();
  const size_t arguments = bound_arguments_.size();
  taken_[n.index] = 2;
  nodes_[step.call] = n;
  if (unify(pattern_.calls[step.call], n) && solve(number + 1)) return true;
  taken_[n.index] = 0;
  undo(values, arguments);
  return false;
}

// Goes from step to step. Only a shared value with many users makes a step try several nodes.
bool Search::solve(size_t number) {
  if (number == steps_.size()) return legal();
  const Step& step = steps_[number];
  const ValueId value = values_[step.value];
  if (step.how == Step::How::kProducer) return try_node(step, number, graph_.value(value).producer);
  const std::vector<NodeId> users = graph_.users_of(value);
  return std::any_of(users.begin(), users.end(), [&](NodeId n) { return try_node(step, number, n); });
}

// What fits by its calls must also be replaceable. Values that do not come out may be used within the match alone, and
// all nodes must be able to meet at one point.
bool Search::legal() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const PatternCall& call = pattern_.calls[i];
    size_t flat = 0;
    bool good = true;
    graph_.for_each_output(nodes_[i], [&](ValueId v) {
      const int32_t named = flat < call.results.size() ? call.results[flat] : -1;
      ++flat;
      const bool returned = named >= 0 && std::find(pattern_.returns.begin(), pattern_.returns.end(),
                                                    static_cast<uint32_t>(named)) != pattern_.returns.end();
      if (returned) return;
      // A node outside would say that it saves a tensor that nobody makes any more.
      good = good && !graph_.is_saved_elsewhere(v);
      graph_.for_each_use(v, [&](NodeId user) { good = good && taken_[user.index] == 2; });
    });
    if (!good) return false;
  }
  // The costly test comes last, for nodes that fit in every other way.
  place_ = dependences_.meeting_point(graph_, nodes_);
  if (place_.obstacle.valid()) obstacle_ = place_.obstacle;
  return !place_.obstacle.valid();
}

// Each node is tried as the pattern's last call, in program order, so that the first match wins where matches overlap.
std::vector<Match> Search::run(std::vector<std::string>* refused) {
  std::vector<Match> matches;
  for (NodeId n : graph_.nodes()) {
    obstacle_ = NodeId();
    if (!try_node(steps_[0], 0, n)) {
      if (refused != nullptr && obstacle_.valid()) {
        refused->push_back(fmt::format(
            "no place for what ends at\n  {}\nbefore, between or behind\n  {}\nwhich needs a part of it and is "
            "needed by another, or is too far away",
            to_text(graph_, n), to_text(graph_, obstacle_)));
      }
      continue;
    }
    Match match;
    match.nodes = nodes_;
    match.last =
        *std::max_element(nodes_.begin(), nodes_.end(), [&](NodeId a, NodeId b) { return graph_.is_before(a, b); });
    match.place = place_;
    match.values = values_;
    for (const auto& argument : arguments_) match.arguments.push_back(argument.value_or(Argument()));
    match.pattern = &pattern_;
    matches.push_back(std::move(match));
    // Nodes of a match are taken: matches never overlap.
    for (NodeId m : nodes_) taken_[m.index] = 1;
    undo(0, 0);
  }
  return matches;
}

}  // namespace

std::vector<Match> find_matches(const Graph& graph, const Pattern& pattern, std::vector<std::string>* refused) {
  return find_matches(graph, pattern, Dependences::of(graph), refused);
}

std::vector<Match> find_matches(const Graph& graph, const Pattern& pattern, const Dependences& dependences,
                                std::vector<std::string>* refused) {
  if (pattern.calls.empty()) throw Error("a pattern without a call matches nothing in particular");
  return Search(graph, pattern, dependences).run(refused);
}

ValueId Match::value(std::string_view name) const {
  const auto& names = pattern->value_names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw Error(fmt::format("the pattern has no value {}", name));
  return values[static_cast<size_t>(found - names.begin())];
}

const Argument& Match::argument(std::string_view name) const {
  const auto& names = pattern->argument_names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw Error(fmt::format("the pattern has no argument {}", name));
  return arguments[static_cast<size_t>(found - names.begin())];
}

}  // namespace shadowgraph
