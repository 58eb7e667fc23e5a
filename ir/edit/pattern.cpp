// Patterns: reads them, with the parser of the text form, and finds their matches in graphs.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "ir/analysis/structural_hash.h"
#include "ir/text/cursor.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {

namespace {

constexpr size_t kMaxCalls = 256;  // the search recurses once per call

class PatternReader {
 public:
  PatternReader(std::string_view text, const Graph* targets, std::string_view name)
      : cursor_(text, name), targets_(targets) {}
  // A pattern must list its outputs: other values may not be used by the rest of the graph.
  Pattern run() {
    while (cursor_.next_line()) {
      if (returned_) cursor_.fail("a line after 'return'", "the end");
      if (cursor_.eat_word("return")) {
        returned_ = true;
        do {
          pattern_.returns.push_back(take_value());
        } while (cursor_.eat(','));
      } else {
        call_line();
      }
      cursor_.expect_end();
    }
    if (!returned_) cursor_.fail("no 'return' line", "one such as: return %y");
    return std::move(pattern_);
  }

 private:
  void call_line() {
    if (pattern_.calls.size() == kMaxCalls) cursor_.fail("too many calls", fmt::format("at most {}", kMaxCalls));
    PatternCall call;
    call.line = cursor_.place().line;
    if (cursor_.peek() == '%' || cursor_.peek() == '_') {
      take_results(call);
      cursor_.expect('=');
    }
    const TargetId target = take_target(call);
    take_arguments(call, target);
    pattern_.calls.push_back(std::move(call));
  }

  void take_arguments(PatternCall& call, TargetId target) {
    const Signature& formals = pattern_.literals->target(target).signature();
    call.arguments.resize(formals.arguments.size());
    std::vector<bool> stated(call.arguments.size());
    cursor_.expect('(');
    if (!cursor_.eat(')')) {
      do {
        const auto place = cursor_.next_place();
        // "...": unlisted arguments may have any value.
        if (cursor_.eat('.')) {
          cursor_.expect('.');
          cursor_.expect('.');
          call.more = true;
          break;
        }
        const std::string_view name = cursor_.take_argument_name();
        size_t i = 0;
        while (i < formals.arguments.size() && formals.arguments[i].name != name) ++i;
        if (i == formals.arguments.size()) {
          cursor_.fail_at(place, "no argument of this name",
                          "name=.. with one of " + pattern_.literals->target(target).schema_text());
        }
        if (stated[i]) cursor_.fail_at(place, "an argument given twice", "each argument once");
        stated[i] = true;
        call.arguments[i] = take_argument(formals.arguments[i].type, 0);
      } while (cursor_.eat(','));
      cursor_.expect(')');
    }
    // An omitted argument means its default, not "anything", so that patterns match only what they state.
    for (size_t i = 0; i < stated.size(); ++i) {
      if (stated[i]) continue;
      if (call.more) {
        call.arguments[i].kind = PatternArgument::Kind::kAnything;
      } else if (formals.arguments[i].default_value) {
        call.arguments[i].kind = PatternArgument::Kind::kLiteral;
        call.arguments[i].literal = formals.arguments[i].default_value->make(*pattern_.literals);
      } else {
        cursor_.fail(fmt::format("argument '{}' is missing and has no default", formals.arguments[i].name),
                     fmt::format("{}=... or '...'", formals.arguments[i].name));
      }
    }
  }

  // An int list is one constant; other lists may contain values, so their elements are patterns themselves.
  PatternArgument take_argument(const FormalType& type, int depth) {
    PatternArgument result;
    if (cursor_.eat_word("_")) {
      result.kind = PatternArgument::Kind::kAnything;
    } else if (cursor_.peek() == '%') {
      result.kind = PatternArgument::Kind::kValue;
      result.index = take_value();
    } else if (cursor_.eat('$')) {
      result.kind = PatternArgument::Kind::kArgument;
      const std::string name = "$" + std::string(cursor_.take_identifier());
      if (name.size() == 1) cursor_.fail("a '$' without a name", "a name such as $alpha");
      const auto [entry, added] = arguments_.try_emplace(name, static_cast<uint32_t>(pattern_.argument_names.size()));
      if (added) pattern_.argument_names.push_back(name);
      result.index = entry->second;
    } else if (cursor_.peek() == '[' && !type.is_int_list()) {
      if (depth >= kMaxListDepth) cursor_.fail("lists nested too deeply");
      result.kind = PatternArgument::Kind::kList;
      FormalType element;
      element.type = type.type == TypeClass::kList ? type.element : TypeClass::kAny;
      cursor_.take_list('[', ']', [&] { result.elements.push_back(take_argument(element, depth + 1)); });
    } else {
      result.kind = PatternArgument::Kind::kLiteral;
      result.literal = literals_.take_argument(type, false);
    }
    return result;
  }

  // Numbers values in order of first mention; a maker of -1 denotes a wildcard.
  uint32_t take_value() {
    cursor_.expect('%');
    const std::string name = "%" + std::string(cursor_.take_identifier());
    if (name.size() == 1) cursor_.fail("a '%' without a name", "a value such as %x");
    const auto [entry, added] = values_.try_emplace(name, static_cast<uint32_t>(pattern_.value_names.size()));
    if (added) {
      pattern_.value_names.push_back(name);
      pattern_.maker.push_back(-1);
    }
    return entry->second;
  }

  void take_results(PatternCall& call) {
    do {
      if (cursor_.eat_word("_")) {
        call.results.push_back(-1);
        continue;
      }
      const auto place = cursor_.place();
      const uint32_t value = take_value();
      if (pattern_.maker[value] >= 0) cursor_.fail_at(place, "a value that an earlier line defines", "a new name");
      // A wildcard that is read before it is defined would form a cycle.
      for (const PatternCall& earlier : pattern_.calls) {
        const auto mentions = [&](const auto& self, const PatternArgument& a) -> bool {
          return (a.kind == PatternArgument::Kind::kValue && a.index == value) ||
                 std::any_of(a.elements.begin(), a.elements.end(), [&](const auto& e) { return self(self, e); });
        };
        if (std::any_of(earlier.arguments.begin(), earlier.arguments.end(),
                        [&](const PatternArgument& a) { return mentions(mentions, a); })) {
          cursor_.fail_at(place, "a value that an earlier line uses before its definition", "its definition first");
        }
      }
      pattern_.maker[value] = static_cast<int32_t>(pattern_.calls.size());
      call.results.push_back(static_cast<int32_t>(value));
    } while (cursor_.eat(','));
  }

  // A pattern may call user-defined functions, which only the target graph may declare.
  TargetId take_target(PatternCall& call) {
    const auto place = cursor_.next_place();
    call.target = cursor_.take_name();
    if (targets_ != nullptr) {
      for (uint32_t i = 0; i < targets_->target_count(); ++i) {
        const Target& target = targets_->target(TargetId(i));
        // Look in the graph first: its schema may be another version than this libtorch's.
        if (target.name() == call.target && target.kind() != TargetKind::kBuiltin) {
          return pattern_.literals->intern_target(target);
        }
      }
    }
    if (const auto found = find_operator(call.target)) return intern_operator(*pattern_.literals, *found);
    cursor_.fail_at(place, "unknown operator '" + call.target + "'", "one with its overload, such as aten::add.Tensor");
  }

  Cursor cursor_;
  const Graph* targets_;
  Pattern pattern_;
  ArgumentReader literals_{cursor_, *pattern_.literals,
                           [this](bool) -> ValueId { cursor_.fail("a value", "a constant"); }};
  // Numbers by name. `$names` denote arguments that are not values; a repeated name must match the same thing.
  std::unordered_map<std::string, uint32_t> values_, arguments_;
  bool returned_ = false;
};

}  // namespace

Pattern Pattern::parse(std::string_view text, const Graph* targets, std::string_view name) {
  return PatternReader(text, targets, name).run();
}

// Tensor constants may be huge, so their contents are not compared: they are equal only within one graph.
bool same_constant_argument(const Graph& a, const Argument& x, const Graph& b, const Argument& y) {
  return same_argument(
      a, x, b, y, [](ValueId, ValueId) { return false; },
      [&](ConstantId p, ConstantId q) { return &a == &b && p == q; });
}

namespace {

void values_of(const PatternArgument& argument, std::vector<uint32_t>& values) {
  if (argument.kind == PatternArgument::Kind::kValue) values.push_back(argument.index);
  for (const PatternArgument& e : argument.elements) values_of(e, values);
}

// Backtracking search: a step binds names, and undo() removes the bindings if a later step fails. Tries the last call on
// each node of the graph; from there it follows producers of operands, then users of bound values. A node that cannot be
// the last call is rejected by one bit of a table, so most nodes cost a lookup.
class Search {
 public:
  Search(const Graph& graph, const Pattern& pattern, const Dependences& dependences)
      : graph_(graph),
        pattern_(pattern),
        dependences_(dependences),
        taken_(graph.node_capacity()),
        nodes_(pattern.calls.size()),
        values_(pattern.value_names.size()),
        arguments_(pattern.argument_names.size()) {
    // Targets are compared once per call of the pattern, so that rejecting a node costs one bit lookup.
    for (const PatternCall& call : pattern.calls) {
      auto& wanted = targets_.emplace_back(graph.target_count());
      for (uint32_t i = 0; i < graph.target_count(); ++i) {
        wanted[i] = graph.target(TargetId(i)).name() == call.target &&
                    graph.target(TargetId(i)).signature().arguments.size() == call.arguments.size();
      }
    }
    plan();
  }

  // Tries each node as the pattern's last call, in program order, so that the first of overlapping matches wins.
  std::vector<Match> run(std::vector<std::string>* refused) {
    std::vector<Match> matches;
    for (NodeId n : graph_.nodes()) {
      obstacle_ = NodeId();
      if (!try_node(steps_[0], 0, n)) {
        if (refused != nullptr && obstacle_.valid()) {
          refused->push_back(fmt::format(
              "no place for the match that ends at\n  {}\nbefore, between or after\n  {}\nwhich depends on one part of "
              "it and is a dependence of another, or is too far away",
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
      // Mark the nodes of a match, since matches never overlap.
      for (NodeId m : nodes_) taken_[m.index] = 1;
      undo(0, 0);
    }
    return matches;
  }

 private:
  struct Step {
    size_t call = 0;
    // kAnchor: the candidate node. kProducer: the producer of `value`. kUser: any user of `value`.
    enum class How : uint8_t { kAnchor, kProducer, kUser } how = How::kAnchor;
    uint32_t value = 0;  // whose producer or user the call is
  };
  // Orders the steps: from the last call to the producers of its operands, then to other calls that share a value.
  // Producers come first, since there is only one, but there may be many users.
  void plan() {
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
      // Such a call could be anywhere in the graph, and the search would try all pairs of nodes.
      if (!next) {
        size_t i = 0;
        while (placed[i]) ++i;
        throw Error(
            fmt::format("line {} of the pattern shares no value with the other lines; use a separate pattern for it",
                        calls[i].line));
      }
      place(*next);
    }
  }

  // Runs the steps. Only a shared value with many users makes a step try several nodes.
  bool solve(size_t number) {
    if (number == steps_.size()) return legal();
    const Step& step = steps_[number];
    const ValueId value = values_[step.value];
    if (step.how == Step::How::kProducer) return try_node(step, number, graph_.value(value).producer);
    const std::vector<NodeId> users = graph_.users_of(value);
    return std::any_of(users.begin(), users.end(), [&](NodeId n) { return try_node(step, number, n); });
  }

  // Tries one node for one call; undoes its bindings if the rest of the pattern does not match.
  bool try_node(const Step& step, size_t number, NodeId n) {
    // Cheap tests first, since nearly every node fails them.
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

  // A call with fewer arguments than the pattern never matches; one with more matches only with `...`.
  bool unify(const PatternCall& call, NodeId n) {
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
    // A pattern may leave the last results unnamed.
    return good && flat >= call.results.size();
  }

  // Returns whether an argument matches the pattern; binds the names in it.
  bool unify(const PatternArgument& wanted, const Argument& actual) {
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
        // Values compare by identity, constants by content.
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

  // A name denotes one value throughout a match; if it is already bound, the values must be equal.
  bool bind(uint32_t value, ValueId to) {
    if (values_[value].valid()) return values_[value] == to;
    values_[value] = to;
    bound_values_.push_back(value);
    return true;
  }

  // Checks that a match can be replaced: values that are not returned have no uses outside the match, and all nodes can
  // be moved to one position.
  bool legal() {
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
        // An outside node would refer to a saved tensor that no longer has a producer.
        good = good && !graph_.is_saved_elsewhere(v);
        graph_.for_each_use(v, [&](NodeId user) { good = good && taken_[user.index] == 2; });
      });
      if (!good) return false;
    }
    // The most expensive test comes last.
    place_ = dependences_.meeting_point(graph_, nodes_);
    if (place_.obstacle.valid()) obstacle_ = place_.obstacle;
    return !place_.obstacle.valid();
  }

  // Removes bindings in reverse order, down to the given counts.
  void undo(size_t values, size_t arguments) {
    for (; bound_values_.size() > values; bound_values_.pop_back()) values_[bound_values_.back()] = ValueId();
    for (; bound_arguments_.size() > arguments; bound_arguments_.pop_back())
      arguments_[bound_arguments_.back()].reset();
  }

  const Graph& graph_;
  const Pattern& pattern_;
  const Dependences& dependences_;
  std::vector<Step> steps_;
  std::vector<std::vector<bool>> targets_;  // by call: the targets of the graph that it matches
  std::vector<char> taken_;                 // by node: 1 in an earlier match, 2 in this one
  std::vector<NodeId> nodes_;
  Dependences::MeetingPoint place_;
  NodeId obstacle_;  // the node that blocks the match at the current candidate
  std::vector<ValueId> values_;
  std::vector<std::optional<Argument>> arguments_;
  std::vector<uint32_t> bound_values_, bound_arguments_;  // in order of binding, for undo()
};

size_t place_of(std::string_view name, const std::vector<std::string>& names, const char* what) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw Error(fmt::format("the pattern has no {} {}", what, name));
  return static_cast<size_t>(found - names.begin());
}

}  // namespace

std::vector<Match> find_matches(const Graph& graph, const Pattern& pattern, std::vector<std::string>* refused) {
  return find_matches(graph, pattern, Dependences::of(graph), refused);
}

std::vector<Match> find_matches(const Graph& graph, const Pattern& pattern, const Dependences& dependences,
                                std::vector<std::string>* refused) {
  if (pattern.calls.empty()) throw Error("the pattern has no call; give it at least one");
  return Search(graph, pattern, dependences).run(refused);
}

ValueId Match::value(std::string_view name) const { return values[place_of(name, pattern->value_names, "value")]; }

const Argument& Match::argument(std::string_view name) const {
  return arguments[place_of(name, pattern->argument_names, "argument")];
}

}  // namespace shadowgraph
