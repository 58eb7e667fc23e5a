// Reads patterns. A pattern is a small program in the text form's words; pattern_search.cpp finds it in a graph.
//
//     %t = aten::t(self=%w)                        %w: any value; %t: the result of this very call
//     %y = aten::addmm(self=%b, mat1=%x, mat2=%t, beta=$beta, ...)      $beta: any constant; ...: any other argument
//     return %y                                    only %y may be used by the rest of the graph
//
// Constants are read into a graph of the pattern's own (`literals`) by the reader of the text form. Reading is linear
// in the text, but that each named result looks at all earlier calls.
#include "shadowgraph/edit/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "ir/operators/operator_name.h"
#include "ir/text/argument_reader.h"
#include "ir/text/cursor.h"
#include "shadowgraph/analysis/dependences.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/text.h"
#include "support/same_bits.h"

namespace shadowgraph {
namespace {

constexpr size_t kMaxCalls = 256;  // a search tries one call inside the other

class PatternReader {
 public:
  PatternReader(std::string_view text, const Graph* targets, std::string_view name)
      : cursor_(text, name), targets_(targets) {}
  Pattern run();

 private:
  void call_line();
  void take_arguments(PatternCall& call, TargetId target);
  PatternArgument take_argument(const FormalType& type, int depth);
  uint32_t take_value();
  void take_results(PatternCall& call);
  TargetId take_target(PatternCall& call);

  Cursor cursor_;
  const Graph* targets_;
  Pattern pattern_;
  ArgumentReader literals_{cursor_, *pattern_.literals,
                           [this](bool) -> ValueId { cursor_.fail("a value where a constant is expected"); }};
  // Names to numbers. `$names` stand for arguments that are no values; both occur again wherever the name does.
  std::unordered_map<std::string, uint32_t> values_, arguments_;
  bool returned_ = false;
};

// A pattern must say which values come out: others may not be used by the rest of the graph.
Pattern PatternReader::run() {
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

// Numbers values in the order of first mention; -1 as maker means a wildcard.
uint32_t PatternReader::take_value() {
  cursor_.expect('%');
  const std::string name = "%" + std::string(cursor_.take_identifier());
  if (name.size() == 1) cursor_.fail("no value", "one such as %x");
  const auto [entry, added] = values_.try_emplace(name, static_cast<uint32_t>(pattern_.value_names.size()));
  if (added) {
    pattern_.value_names.push_back(name);
    pattern_.maker.push_back(-1);
  }
  return entry->second;
}

void PatternReader::take_results(PatternCall& call) {
  do {
    if (cursor_.eat_word("_")) {
      call.results.push_back(-1);
      continue;
    }
    const auto place = cursor_.place();
    const uint32_t value = take_value();
    if (pattern_.maker[value] >= 0) cursor_.fail_at(place, "a value that a line above makes", "a new name");
    // A wildcard that was read before it is made would be a circle.
    for (const PatternCall& earlier : pattern_.calls) {
      const auto mentions = [&](const auto& self, const PatternArgument& a) -> bool {
        return (a.kind == PatternArgument::Kind::kValue && a.index == value) ||
               std::any_of(a.elements.begin(), a.elements.end(), [&](const auto& e) { return self(self, e); });
      };
      if (std::any_of(earlier.arguments.begin(), earlier.arguments.end(),
                      [&](const PatternArgument& a) { return mentions(mentions, a); })) {
        cursor_.fail_at(place, "a value that a line above reads already", "a line order in which it is made first");
      }
    }
    pattern_.maker[value] = static_cast<int32_t>(pattern_.calls.size());
    call.results.push_back(static_cast<int32_t>(value));
  } while (cursor_.eat(','));
}

// A pattern may name functions of the user's own, which only the graph that it is for may know.
TargetId PatternReader::take_target(PatternCall& call) {
  cursor_.peek();
  const auto place = cursor_.place();
  call.target = cursor_.take_name();
  if (targets_ != nullptr) {
    for (uint32_t i = 0; i < targets_->target_count(); ++i) {
      const Target& target = targets_->target(TargetId(i));
      // The graph goes first: it may hold another version of the schema than this libtorch.
      if (target.name() == call.target && target.kind() != TargetKind::kBuiltin) {
        return pattern_.literals->intern_target(target);
      }
    }
  }
  if (const auto found = find_operator(call.target)) {
    return intern_operator(*pattern_.literals, *found);
  }
  cursor_.fail_at(place, "unknown operator '" + call.target + "'", "one with its overload, such as aten::add.Tensor");
}

// The search tries one call inside the other, so its stack is as deep as the pattern is long.
void PatternReader::call_line() {
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

void PatternReader::take_arguments(PatternCall& call, TargetId target) {
  const Signature& formals = pattern_.literals->target(target).signature();
  call.arguments.resize(formals.arguments.size());
  std::vector<bool> stated(call.arguments.size());
  cursor_.expect('(');
  if (!cursor_.eat(')')) {
    do {
      cursor_.peek();
      const auto place = cursor_.place();
      // "...": all arguments that are not named may be anything.
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
  // An argument that is left out means its default, not "anything": patterns must not match more than they say.
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

// An int list is one constant; another list may have values in it, so its elements are patterns themselves.
PatternArgument PatternReader::take_argument(const FormalType& type, int depth) {
  PatternArgument result;
  if (cursor_.eat_word("_")) {
    result.kind = PatternArgument::Kind::kAnything;
  } else if (cursor_.peek() == '%') {
    result.kind = PatternArgument::Kind::kValue;
    result.index = take_value();
  } else if (cursor_.eat('$')) {
    result.kind = PatternArgument::Kind::kArgument;
    const std::string name = "$" + std::string(cursor_.take_identifier());
    if (name.size() == 1) cursor_.fail("no name", "one such as $alpha");
    const auto [entry, added] = arguments_.try_emplace(name, static_cast<uint32_t>(pattern_.argument_names.size()));
    if (added) pattern_.argument_names.push_back(name);
    result.index = entry->second;
  } else if (cursor_.peek() == '[' && !type.is_int_list()) {
    if (depth >= kMaxListDepth) cursor_.fail("a list that nests too deep");
    result.kind = PatternArgument::Kind::kList;
    FormalType element;
    element.type = type.type == TypeClass::kList ? type.element : TypeClass::kAny;
    cursor_.expect('[');
    if (!cursor_.eat(']')) {
      do {
        result.elements.push_back(take_argument(element, depth + 1));
      } while (cursor_.eat(','));
      cursor_.expect(']');
    }
  } else {
    result.kind = PatternArgument::Kind::kLiteral;
    result.literal = literals_.take_argument(type, false);
  }
  return result;
}

}  // namespace

// `targets` is the graph whose own functions the pattern may name; operators come from this process.
Pattern Pattern::parse(std::string_view text, const Graph* targets, std::string_view name) {
  return PatternReader(text, targets, name).run();
}

// Compares constants by content. Floats are compared by bits: NaN equals itself, and -0.0 is not 0.0. A tensor constant
// is the same only within one graph.
bool same_constant_argument(const Graph& a, const Argument& x, const Graph& b, const Argument& y) {
  if (x.kind != y.kind) return false;
  switch (x.kind) {
    case ArgumentKind::kNone:
      return true;
    case ArgumentKind::kInt:
      return x.i == y.i;
    case ArgumentKind::kFloat:
      return same_bits(x.d, y.d);
    case ArgumentKind::kBool:
      return x.b == y.b;
    case ArgumentKind::kComplex: {
      const auto p = a.complex_parts(x);
      const auto q = b.complex_parts(y);
      return same_bits(p[0], q[0]) && same_bits(p[1], q[1]);
    }
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque:
      return a.text_or_empty(x.string) == b.text_or_empty(y.string);
    case ArgumentKind::kDevice:
    case ArgumentKind::kGenerator:
      return x.device() == y.device();
    case ArgumentKind::kIntList: {
      const auto p = a.ints(x);
      const auto q = b.ints(y);
      return std::equal(p.begin(), p.end(), q.begin(), q.end());
    }
    case ArgumentKind::kList: {
      const auto p = a.list(x);
      const auto q = b.list(y);
      return std::equal(p.begin(), p.end(), q.begin(), q.end(),
                        [&](const Argument& s, const Argument& t) { return same_constant_argument(a, s, b, t); });
    }
    case ArgumentKind::kConstant:
      // Constants may be huge, so their contents are never compared.
      return &a == &b && x.constant == y.constant;
    case ArgumentKind::kValue:
      return false;
  }
  return false;
}

}  // namespace shadowgraph
