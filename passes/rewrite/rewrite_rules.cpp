// Reads rules: pattern, arrow, replacement. Each side is parsed by Pattern, with its line numbers in the file.
//
//     rule drop-double-transpose
//     %a = aten::t(self=%x)
//     %b = aten::t(self=%a)
//     return %b
//     =>
//     return %x
#include "passes/rewrite/rewrite_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "shadowgraph/edit/pattern.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

// Finds what would go wrong in the middle of a rewrite, before the first match. A replacement may not read values that
// nobody makes or that the rewrite erases, and its calls must be complete.
void check_rule(const RewriteRule& rule) {
  const auto fail = [&](const std::string& what) { throw ParseError("rule " + rule.name + ": " + what, 0, 0); };
  if (rule.pattern.calls.empty()) fail("its pattern has no call");
  if (rule.pattern.returns.size() != rule.replacement.returns.size()) {
    fail(fmt::format("the pattern returns {} values, the replacement {}", rule.pattern.returns.size(),
                     rule.replacement.returns.size()));
  }
  for (const uint32_t v : rule.pattern.returns) {
    if (rule.pattern.maker[v] < 0)
      fail("the pattern returns " + rule.pattern.value_names[v] + ", which it does not make");
  }
  const auto known = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (size_t i = 0; i < rule.replacement.value_names.size(); ++i) {
    const std::string& name = rule.replacement.value_names[i];
    const auto found = std::find(rule.pattern.value_names.begin(), rule.pattern.value_names.end(), name);
    if (rule.replacement.maker[i] >= 0) continue;
    if (found == rule.pattern.value_names.end())
      fail("the replacement reads " + name + ", which the pattern does not have");
    // The nodes of the match are erased, so what they make cannot be an operand of the replacement.
    if (rule.pattern.maker[static_cast<size_t>(found - rule.pattern.value_names.begin())] >= 0) {
      fail("the replacement reads " + name + ", which the pattern makes and which is then gone");
    }
  }
  for (const std::string& name : rule.replacement.argument_names) {
    if (!known(rule.pattern.argument_names, name)) {
      fail("the replacement has " + name + ", which the pattern does not have");
    }
  }
  const auto concrete = [](const auto& self, const PatternArgument& a) -> bool {
    return a.kind != PatternArgument::Kind::kAnything &&
           std::all_of(a.elements.begin(), a.elements.end(), [&](const auto& e) { return self(self, e); });
  };
  for (const PatternCall& call : rule.replacement.calls) {
    if (!std::all_of(call.arguments.begin(), call.arguments.end(),
                     [&](const PatternArgument& a) { return concrete(concrete, a); })) {
      fail("'_' and '...' have no meaning in a replacement");
    }
  }
}

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
      if (!sources.empty() && !sources.back().after_arrow) fail("a rule without '=>' before this line");
      sources.push_back({.name = std::string(line.substr(5))});
      // Lines before keep the numbers in messages right.
      sources.back().pattern.assign(static_cast<size_t>(number), '\n');
      continue;
    }
    if (sources.empty()) {
      if (!line.empty() && line[0] != '#') fail("a line outside of a rule, expected 'rule NAME'");
      continue;
    }
    Source& source = sources.back();
    if (line == "=>") {
      if (source.after_arrow) fail("a second '=>' in this rule");
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

}  // namespace shadowgraph
