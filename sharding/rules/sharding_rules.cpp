#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "ir/operators/operator_name.h"
#include "shadowgraph/text.h"
#include "sharding/rules/call_key.h"
#include "sharding/rules/rule_table.h"
#include "support/source_place.h"

namespace shadowgraph {

namespace {

constexpr std::string_view kWhere = "<sharding rules>";

// ---------------------------------------------------------------------------------------------------------------------
// Rules of users, for all

struct Registered {
  std::mutex mutex;
  std::vector<std::vector<RuleText>> rules;
  uint64_t generation = 0;
};

Registered& registered() {
  static Registered all;
  return all;
}

// ---------------------------------------------------------------------------------------------------------------------
// Classes by what is known of the operator

const RuleText& class_rule(std::string_view word) {
  static const std::map<std::string, RuleText, std::less<>> kRules = [] {
    std::map<std::string, RuleText, std::less<>> rules;
    for (const char* name : {"pointwise", "foreach", "like", "factory", "placeholder", "end", "alias", "whole"}) {
      RuleText& rule = rules[name];
      rule.builder = rule.text = name;
    }
    return rules;
  }();
  return kRules.find(word)->second;
}

// Returns the class that facts give an operator without a line; nullptr if there is none.
const RuleText* class_by_facts(const Target& target) {
  const OperatorFacts& facts = target.facts();
  if (facts.unknown || facts.changes_objects) return nullptr;
  if (facts.collective || facts.host_read) return &class_rule("whole");
  if (target.name().starts_with("aten::_foreach_")) return &class_rule("foreach");
  if (facts.pointwise) return &class_rule("pointwise");
  const bool makes = facts.fills || facts.draws || facts.uninitialised;
  if (makes && facts.is_in_place) return &class_rule("pointwise");
  if (makes && facts.geometry_only) return &class_rule("like");
  if (makes && target.signature().position_of("size")) return &class_rule("factory");
  return nullptr;
}

const RuleText* class_by_facts(const NodeCall& call) {
  if (call.target().kind() != TargetKind::kBuiltin) return class_by_facts(call.target());
  const TargetId id = call.graph().node(call.node()).target;
  if (is_placeholder(id)) return &class_rule("placeholder");
  if (is_end(id)) return &class_rule("end");
  return id == target_of(Builtin::kAlias) ? &class_rule("alias") : nullptr;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// The table

void ShardingRules::Table::add(std::vector<RuleText> added) {
  std::vector<std::string> cleared;
  for (RuleText& rule : added) {
    std::vector<RuleText>& alternatives = rules[rule.name];
    if (std::find(cleared.begin(), cleared.end(), rule.name) == cleared.end()) {
      alternatives.clear();
      cleared.push_back(rule.name);
    }
    alternatives.push_back(std::move(rule));
  }
}

const RuleText* ShardingRules::Table::find(std::string_view name, const NodeCall& call) const {
  for (const std::string_view key : {name, without_overload(name)}) {
    const auto found = rules.find(std::string(key));
    if (found == rules.end()) continue;
    for (const RuleText& rule : found->second) {
      if (call.holds(rule.condition)) return &rule;
    }
    return nullptr;
  }
  return nullptr;
}

namespace {

// Returns the name of what an operator does in place, "aten::add.Tensor" for "aten::add_.Tensor"; "" for any other.
std::string name_of_plain(std::string_view name) {
  const std::string_view base = without_overload(name);
  if (!is_in_place_name(base)) return {};
  const std::string_view overload = overload_of(name);
  return fmt::format("{}{}{}", without_underscore(base), overload.empty() ? "" : ".", overload);
}

}  // namespace

// Finds the operator's own line, or that of the operator which it does in place: aten::add for aten::add_.
const RuleText* ShardingRules::Table::find(const NodeCall& call) const {
  const std::string& name = call.target().name();
  if (const RuleText* own = find(name, call)) return own;
  const std::string plain = name_of_plain(name);
  return plain.empty() ? nullptr : find(plain, call);
}

const std::vector<RuleText>* ShardingRules::Table::lines(std::string_view name) const {
  const std::string plain = name_of_plain(name);
  for (const std::string_view one : {name, std::string_view(plain)}) {
    for (const std::string_view key : {one, without_overload(one)}) {
      if (const auto found = rules.find(std::string(key)); found != rules.end()) return &found->second;
    }
  }
  return nullptr;
}

namespace {

// An operator that can drop out draws nothing if it is told to drop nothing: attention without dropout.
bool draws_numbers(const NodeCall& call) {
  for (const char* name : {"dropout_p", "p"}) {
    if (call.position(name) < 0) continue;
    const Argument* probability = call.argument(name);
    const bool given = probability != nullptr && probability->kind != ArgumentKind::kNone;
    if (!given) return name != std::string_view("dropout_p");  // 0 unless it is given
    if (probability->kind == ArgumentKind::kFloat) return probability->d != 0;
    if (probability->kind == ArgumentKind::kInt) return probability->i != 0;
  }
  return true;
}

}  // namespace

NodeFactors ShardingRules::Table::work_out(const Graph& graph, NodeId node) const {
  const NodeCall call(graph, node);
  const RuleText* rule = find(call);
  const bool by_facts = rule == nullptr;
  if (by_facts) rule = class_by_facts(call);
  FactorBuilder builder(call);
  if (rule == nullptr) {
    return builder.finish();
  }
  try {
    if (rule->builder.empty()) {
      bind_patterns(*rule, builder);
      builder.made.source = RuleSource::kRule;
    } else {
      find_class(rule->builder)(*rule, builder);
      builder.apply(rule->clauses);
      builder.made.source = RuleSource::kClass;
    }
    builder.made.random = (builder.made.random || call.target().facts().random) && draws_numbers(call);
    return builder.finish();
  } catch (const Misfit& misfit) {
    if (by_facts || rule->builtin) return FactorBuilder(call).finish();
    throw Error(fmt::format("the sharding rule \"{}: {}\" does not fit the call {}: {}", rule->name, rule->text,
                            to_text(graph, node), misfit.what()));
  }
}

std::shared_ptr<const KnownCall> ShardingRules::Table::known(const Graph& graph, NodeId node) {
  thread_local std::string key;
  key = CallKey(graph).of(node);
  {
    const std::lock_guard lock(mutex);
    const auto found = calls.find(key);
    if (found != calls.end()) return found->second;
  }
  auto call = std::make_shared<KnownCall>();
  call->factors = work_out(graph, node);
  call->strategies = strategies_of(call->factors);
  const std::lock_guard lock(mutex);
  return calls.try_emplace(key, std::move(call)).first->second;
}

// ---------------------------------------------------------------------------------------------------------------------
// What users see

namespace {

// "if !transposed: ", as it stands between an operator's name and its rule; "" without a condition.
std::string condition_text(const RuleCondition& condition) {
  if (condition.argument.empty()) return {};
  const std::string equals = condition.equals ? fmt::format("={}", *condition.equals) : "";
  return fmt::format("if {}{}{}: ", condition.negated ? "!" : "", condition.argument, equals);
}

void check_classes(const std::vector<RuleText>& rules) {
  for (const RuleText& rule : rules) {
    if (rule.builder.empty() || find_class(rule.builder) != nullptr) continue;
    throw ParseError(fmt::format("the sharding rule of {}: there is no class \"{}\"", rule.name, rule.builder),
                     rule.line, rule.column);
  }
}

std::vector<RuleText> read_rules(std::string_view text) {
  std::vector<RuleText> rules = parse_rules(text, kWhere);
  check_classes(rules);
  return rules;
}

}  // namespace

void register_sharding_rule(std::string_view text) {
  std::vector<RuleText> rules = read_rules(text);
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  all.rules.push_back(std::move(rules));
}

ShardingRules::ShardingRules() : table_(std::make_shared<Table>()) {
  static const std::vector<RuleText> kBuiltin = [] {
    std::vector<RuleText> rules;
    std::string folder = source_place(std::source_location::current().file_name());
    folder.resize(folder.rfind('/'));
    for (const EmbeddedFile& file : sharding_rule_files()) {
      std::vector<RuleText> read = read_rules(file.text);
      for (RuleText& rule : read) {
        rule.builtin = true;
        rule.place = fmt::format("{}/{}:{}", folder, file.name, rule.line);
      }
      rules.insert(rules.end(), std::make_move_iterator(read.begin()), std::make_move_iterator(read.end()));
    }
    return rules;
  }();
  table_->add(kBuiltin);
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  for (const std::vector<RuleText>& rules : all.rules) table_->add(rules);
}

void ShardingRules::add(std::string_view text) {
  auto table = std::make_shared<Table>();
  table->rules = table_->rules;
  table->add(read_rules(text));
  table_ = std::move(table);
}

NodeStrategies ShardingRules::strategies(const Graph& graph, NodeId node) const {
  return table_->known(graph, node)->strategies;
}

ShardingRules::OfOperator ShardingRules::of_operator(const Target& target) const {
  if (const std::vector<RuleText>* lines = table_->lines(target.name())) {
    OfOperator known{.place = lines->front().place};
    known.source = lines->front().builder.empty() ? RuleSource::kRule : RuleSource::kClass;
    for (const RuleText& line : *lines) known.lines.push_back(condition_text(line.condition) + line.text);
    return known;
  }
  const RuleText* by_facts = class_by_facts(target);
  if (by_facts == nullptr) return {};
  return {.source = RuleSource::kClass,
          .lines = {by_facts->text},
          .place = source_place(std::source_location::current().file_name())};
}

double RuleCoverage::share() const {
  return nodes == 0 ? 1 : static_cast<double>(by_rule + by_class) / static_cast<double>(nodes);
}

RuleCoverage RuleCoverage::of(const Graph& graph, const ShardingRules& rules) {
  RuleCoverage coverage;
  for (const NodeId node : graph.nodes()) {
    bool tensors = false;
    const auto look = [&](ValueId value) { tensors = tensors || graph.value(value).kind == ValueKind::kTensor; };
    graph.for_each_input(node, look);
    graph.for_each_output(node, look);
    if (!tensors) continue;
    ++coverage.nodes;
    switch (rules.strategies(graph, node).source) {
      case RuleSource::kRule:
        ++coverage.by_rule;
        break;
      case RuleSource::kClass:
        ++coverage.by_class;
        break;
      case RuleSource::kReplicated:
        ++coverage.without_a_rule[graph.target(node).name()];
        break;
    }
  }
  return coverage;
}

}  // namespace shadowgraph
