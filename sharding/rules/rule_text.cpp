#include "sharding/rules/rule_text.h"

#include <fmt/format.h>

#include "ir/text/cursor.h"

namespace shadowgraph {
namespace {

class RuleReader {
 public:
  RuleReader(std::string_view text, std::string_view name) : cursor_(text, name) {}

  std::vector<RuleText> read() {
    std::vector<RuleText> rules;
    while (cursor_.next_line()) read_line(rules);
    return rules;
  }

 private:
  std::string word(std::string_view what) {
    const std::string_view taken = cursor_.take_identifier();
    if (taken.empty()) cursor_.fail(fmt::format("'{}'", cursor_.peek()), what);
    return std::string(taken);
  }

  // Parses operator names up to a colon followed by a space or the end of the line.
  void read_line(std::vector<RuleText>& rules) {
    std::vector<std::string> names;
    RuleText rule;
    bool more = true;
    while (more) {
      cursor_.peek();
      const Cursor::Place start = cursor_.place();
      std::string name(cursor_.take_name());
      more = !name.ends_with(':');
      if (!more) name.pop_back();
      if (name == "if") {
        rule.condition = read_condition();
        cursor_.expect(':');
        break;
      }
      const size_t colons = name.find("::");
      if (colons == 0 || colons == name.npos || colons + 2 == name.size()) {
        cursor_.fail_at(start, fmt::format("'{}'", name), "an operator's name, \"aten::mm:\"");
      }
      names.push_back(std::move(name));
    }
    read_body(rule);
    cursor_.expect_end();
    for (std::string& name : names) {
      rules.push_back(rule);
      rules.back().name = std::move(name);
    }
  }

  RuleCondition read_condition() {
    RuleCondition condition;
    condition.negated = cursor_.eat('!');
    condition.argument = word("the name of an argument");
    if (cursor_.eat('=')) condition.equals = cursor_.take_int();
    return condition;
  }

  void read_body(RuleText& rule) {
    const char* begin = cursor_.place().at;
    rule.line = cursor_.place().line;
    rule.column = static_cast<int>(begin - cursor_.place().line_begin) + 1;
    if (is_word_body()) {
      rule.builder = word("a class of operators");
      while (!cursor_.at_end() && cursor_.peek() != ';') rule.words.push_back(word("a word"));
    } else {
      read_tensors(rule.operands, false);
      cursor_.expect('-');
      cursor_.expect('>');
      read_tensors(rule.results, true);
    }
    while (cursor_.eat(';')) read_clause(rule.clauses.emplace_back());
    rule.text = std::string(begin, cursor_.place().at);
    while (rule.text.starts_with(' ')) rule.text.erase(0, 1);
  }

  bool is_word_body() {
    Cursor ahead = cursor_;
    const std::string_view rest = ahead.take_rest();
    return rest.find("->") == rest.npos;
  }

  bool at_end_of_tensor() {
    const char c = cursor_.peek();
    return cursor_.at_end() || c == ',' || c == '-' || c == ';';
  }

  // Parses tensors. An empty item between commas is a 0-dimensional tensor; an empty list has no tensors.
  void read_tensors(std::vector<TensorPattern>& tensors, bool results) {
    if (!results && cursor_.peek() == '-') return;  // no tensor operand
    do {
      TensorPattern& tensor = tensors.emplace_back();
      tensor.added = cursor_.eat('+');
      if (cursor_.eat('.')) {
        tensor.same = true;
      } else {
        tensor.list = cursor_.eat('[');
        tensor.aligned = cursor_.eat('{');
        const char close = tensor.aligned ? '}' : ']';
        while (!at_end_of_tensor() && cursor_.peek() != close && !(results && at_word("of"))) {
          read_dim(tensor.dims.emplace_back());
          if (tensor.aligned) tensor.dims.back().broadcast = true;
        }
        if (tensor.aligned) cursor_.expect('}');
        if (tensor.list) cursor_.expect(']');
        if (results && cursor_.eat_word("of")) {
          while (!at_end_of_tensor()) tensor.of.push_back(word("the name of an argument"));
        }
      }
    } while (cursor_.eat(','));
  }

  void read_dim(DimPattern& dim) {
    dim.star = cursor_.eat('*');
    if (cursor_.eat('(')) {
      if (dim.star) cursor_.fail("'('", "a name");
      while (!cursor_.eat(')')) dim.factors.push_back(word("a factor"));
    } else {
      std::string name = word("a factor, a size or '*'");
      if (name == "1") name = "_";
      if (name != "_") dim.factors.push_back(std::move(name));
    }
    if (cursor_.eat('=')) dim.length = word("the name of an argument");
    if (cursor_.eat('@')) dim.anchor = word("the name of an argument");
    if (cursor_.eat('?')) dim.broadcast = true;
  }

  bool at_end_of_clause() { return cursor_.at_end() || cursor_.peek() == ';'; }

  bool at_word(std::string_view word) const {
    Cursor ahead = cursor_;
    return ahead.eat_word(word);
  }

  std::vector<std::vector<std::string>> read_groups() {
    std::vector<std::vector<std::string>> groups(1);
    while (!at_end_of_clause() && !at_word("if")) {
      if (cursor_.eat('|')) {
        groups.emplace_back();
      } else {
        groups.back().push_back(word("the name of an argument"));
      }
    }
    return groups;
  }

  void read_clause(RuleClause& clause) {
    using Kind = RuleClause::Kind;
    constexpr std::pair<std::string_view, Kind> kOfGroups[] = {
        {"linear", Kind::kLinear}, {"monotone", Kind::kMonotone}, {"antitone", Kind::kAntitone}};
    for (const auto& [key, kind] : kOfGroups) {
      if (!cursor_.eat_word(key)) continue;
      clause.kind = kind;
      clause.groups = read_groups();
      if (cursor_.eat_word("if")) clause.condition = read_condition();
      return;
    }
    if (cursor_.eat_word("random")) {
      clause.kind = Kind::kRandom;
      return;
    }
    if (cursor_.eat_word("sizes")) {
      clause.kind = Kind::kSizes;
      clause.argument = word("the name of an argument");
      return;
    }
    const bool masked = cursor_.eat_word("masked");
    if (masked || cursor_.eat_word("local")) {
      clause.kind = masked ? Kind::kMasked : Kind::kLocal;
      clause.argument = word("the name of an argument");
      cursor_.expect('=');
      clause.groups = read_groups();
      return;
    }
    std::vector<std::string> names;
    while (!at_end_of_clause()) {
      if (cursor_.eat('=')) {
        clause.kind = Kind::kExtent;
        clause.argument = word("the name of an argument");
        if (names.size() != 1) cursor_.fail("an extent of several factors", "one");
        clause.groups.push_back(std::move(names));
        return;
      }
      if (cursor_.eat('@')) {
        if (names.size() != 1 || names[0] != "whole") cursor_.fail("'@'", "'whole @argument'");
        clause.kind = Kind::kWholeAt;
        clause.argument = word("the name of an argument");
        return;
      }
      names.push_back(word("factors and what they are: \"k whole\", \"k max\""));
      if (names.back() == "if") {
        names.pop_back();
        clause.condition = read_condition();
        break;
      }
    }
    const std::string kind = names.size() < 2 ? "" : names.back();
    if (kind == "whole") {
      clause.kind = Kind::kWhole;
    } else if (kind == "equal") {
      clause.kind = Kind::kEqual;
    } else if (const auto op = find_named<PartialOp>(kind)) {
      clause.kind = Kind::kReduce;
      clause.op = *op;
    } else {
      cursor_.fail(fmt::format("'{}'", names.empty() ? "" : names.back()),
                   "factors, then whole, equal, sum, avg, max or min");
    }
    names.pop_back();
    clause.groups.push_back(std::move(names));
  }

  Cursor cursor_;
};

}  // namespace

std::vector<RuleText> parse_rules(std::string_view text, std::string_view name) {
  return RuleReader(text, name).read();
}

}  // namespace shadowgraph
