#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>

#include "ir/operators/operator_name.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/units.h"
#include "sharding/layout/dimension_cuts.h"
#include "sharding/rules/node_factors.h"
#include "support/source_place.h"

namespace shadowgraph {

class CallKey {
 public:
  explicit CallKey(const Graph& graph) : graph_(graph) {}
  // Returns a key that two calls share only if they have the same factors; valid until the next call.
  const std::string& of(NodeId node) {
    key_ = graph_.target(node).name();
    add(graph_.arguments(node));
    key_ += '>';
    add(graph_.results(node));
    return key_;
  }

 private:
  void add(int64_t number) { key_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void add(std::span<const Argument> arguments) {
    for (const Argument& argument : arguments) add(argument);
  }

  void add(const Argument& argument) {
    key_ += static_cast<char>(argument.kind);
    switch (argument.kind) {
      case ArgumentKind::kValue: {
        const Value& value = graph_.value(argument.ref.value);
        key_ += static_cast<char>(value.kind);
        key_ += static_cast<char>(value.dtype);
        add(value.rank);
        for (const int64_t size : graph_.sizes(argument.ref.value)) add(size);
        for (const int64_t stride : graph_.strides(argument.ref.value)) add(stride);
        break;
      }
      case ArgumentKind::kConstant: {
        const auto constant = graph_.constant_meta(argument.constant);
        add(constant ? static_cast<int64_t>(constant->sizes.size()) : -1);
        if (!constant) break;
        for (const int64_t size : constant->sizes) add(size);
        break;
      }
      case ArgumentKind::kInt:
      case ArgumentKind::kFloat:
        add(argument.i);
        break;
      case ArgumentKind::kBool:
        add(int64_t{argument.b});
        break;
      case ArgumentKind::kIntList:
        add(static_cast<int64_t>(graph_.ints(argument).size()));
        for (const int64_t value : graph_.ints(argument)) add(value);
        break;
      case ArgumentKind::kList:
        add(static_cast<int64_t>(graph_.list(argument).size()));
        add(graph_.list(argument));
        break;
      case ArgumentKind::kString:
      case ArgumentKind::kOpaque:
        key_ += graph_.text(argument.string);
        key_ += '\0';
        break;
      case ArgumentKind::kNone:
      case ArgumentKind::kComplex:
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator:
        break;
    }
  }

  const Graph& graph_;
  std::string key_;
};

bool fits_writes(const NodeFactors& factors, AxisStrategy& strategy) {
  for (const TensorFactors& operand : factors.operands) {
    if (operand.tied < 0 || operand.operand < 0) continue;
    Placement& before = strategy.operands[static_cast<size_t>(operand.operand)];
    const Placement& after = strategy.results[static_cast<size_t>(operand.tied)];
    if (operand.overwritten) before = after;
    if (before != after) return false;
  }
  return true;
}

std::optional<AxisStrategy> strategy_of(const NodeFactors& factors, FactorId factor, int64_t outer) {
  const Factor& cut = factors.factors[factor];
  // The indices of a device must be a contiguous range.
  if (cut.masked_by >= 0 && outer != 1) return std::nullopt;
  AxisStrategy strategy{.name = outer == 1 ? cut.name : fmt::format("{}/{}", cut.name, outer),
                        .extent = cut.extent / outer};
  // Returns the placement of a tensor that has the factor; nullopt without it.
  const auto placed = [&](const TensorFactors& tensor, bool& twice) -> std::optional<Placement> {
    std::optional<Placement> placement;
    for (size_t d = 0; d < tensor.dims.size(); ++d) {
      int64_t before = outer;
      for (const FactorId f : tensor.dims[d]) {
        if (f == factor) {
          twice = twice || placement.has_value();
          placement = Placement::shard(static_cast<int64_t>(d), before);
        }
        before *= factors.factors[f].extent;
      }
    }
    return placement;
  };
  bool twice = false;
  strategy.operands.resize(factors.tensors);
  std::vector<uint16_t> reads;  // arguments that have the factor
  for (const TensorFactors& tensor : factors.operands) {
    const std::optional<Placement> placement = placed(tensor, twice);
    if (!placement) continue;
    reads.push_back(tensor.argument);
    if (tensor.operand >= 0) strategy.operands[static_cast<size_t>(tensor.operand)] = *placement;
  }
  for (const TensorFactors& tensor : factors.results) {
    const std::optional<Placement> placement = placed(tensor, twice);
    const bool depends = std::any_of(reads.begin(), reads.end(), [&](uint16_t argument) {
      return tensor.of.empty() || std::find(tensor.of.begin(), tensor.of.end(), argument) != tensor.of.end();
    });
    const bool empty = std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) != tensor.sizes.end();
    strategy.results.push_back(placement                                                 ? *placement
                               : tensor.same || empty || !depends || factors.independent ? Placement::replicate()
                                                                                         : Placement::partial(cut.op));
  }
  if (twice) return std::nullopt;
  if (!strategy.results.empty() && strategy.results[0].is_partial()) {
    for (const TensorFactors& tensor : factors.operands) {
      if (!tensor.added) continue;
      if (tensor.operand < 0) return std::nullopt;
      strategy.operands[static_cast<size_t>(tensor.operand)] = strategy.results[0];
    }
  }
  if (!fits_writes(factors, strategy)) return std::nullopt;
  return strategy;
}

AxisStrategy replicated(const NodeFactors& factors) {
  AxisStrategy strategy;
  strategy.operands.resize(factors.tensors);
  strategy.results.resize(factors.results.size());
  return strategy;
}

namespace {

// Returns all strategies, the replicated one first.
std::vector<AxisStrategy> strategies_of(const NodeFactors& factors) {
  std::vector<AxisStrategy> all{replicated(factors)};
  const auto add = [&](AxisStrategy strategy) {
    const bool known = std::any_of(all.begin(), all.end(), [&](const AxisStrategy& other) {
      return other.operands == strategy.operands && other.results == strategy.results;
    });
    if (!known) all.push_back(std::move(strategy));
  };
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    if (factors.factors[f].whole || factors.factors[f].extent < 2) continue;
    std::optional<AxisStrategy> strategy = strategy_of(factors, static_cast<FactorId>(f), 1);
    if (strategy) add(std::move(*strategy));
  }
  for (AxisStrategy strategy : factors.partial) {
    if (fits_writes(factors, strategy)) add(std::move(strategy));
  }
  return all;
}

// Groups the tensors of an independent call by their factors. A strategy of all tensors for each of them would be
// quadratic in the length of the lists.
std::vector<PlaceFactors> places_of(const NodeFactors& call) {
  if (!call.independent || !call.partial.empty()) return {};
  std::vector<PlaceFactors> places;
  PlaceFactors rest;  // tensors that are never sharded
  std::unordered_map<FactorId, size_t> place_of;
  const auto place_at = [&](const TensorFactors& tensor) -> PlaceFactors& {
    const bool cut = std::ranges::any_of(tensor.dims, [&](const std::vector<FactorId>& dim) {
      return !dim.empty() && !call.factors[dim[0]].whole && call.factors[dim[0]].extent > 1;
    });
    if (!cut) return rest;
    const FactorId first = tensor.dims[0][0];
    const auto [found, is_new] = place_of.try_emplace(first, places.size());
    if (is_new) {
      const auto begin = call.factors.begin() + first;
      places.push_back({.first = first});
      places.back().factors.factors.assign(begin, begin + static_cast<ptrdiff_t>(tensor.dims.size()));
    }
    return places[found->second];
  };
  const auto own = [&](TensorFactors tensor, const PlaceFactors& place) {
    for (std::vector<FactorId>& dim : tensor.dims) {
      if (&place == &rest) dim.clear();
      for (FactorId& f : dim) f -= place.first;
    }
    return tensor;
  };
  std::vector<int64_t> index(call.results.size());  // of each result in its place
  for (const TensorFactors& operand : call.operands) {
    if (operand.operand < 0) continue;
    // A written tensor is in the place of the result that aliases it.
    PlaceFactors& place = place_at(operand.tied < 0 ? operand : call.results[static_cast<size_t>(operand.tied)]);
    place.factors.operands.push_back(own(operand, place));
    place.factors.operands.back().operand = static_cast<int64_t>(place.factors.tensors++);
    place.operands.push_back(static_cast<uint32_t>(operand.operand));
  }
  for (uint32_t r = 0; r < call.results.size(); ++r) {
    PlaceFactors& place = place_at(call.results[r]);
    index[r] = static_cast<int64_t>(place.results.size());
    place.factors.results.push_back(own(call.results[r], place));
    place.results.push_back(r);
  }
  if (!rest.operands.empty() || !rest.results.empty()) places.push_back(std::move(rest));
  for (PlaceFactors& place : places) {
    for (TensorFactors& operand : place.factors.operands) {
      if (operand.tied >= 0) operand.tied = index[static_cast<size_t>(operand.tied)];
    }
  }
  return places;
}

// Rules registered by users; process-wide.
struct Registered {
  std::mutex mutex;
  std::vector<std::vector<RuleText>> rules;
  uint64_t generation = 0;
};

Registered& registered() {
  static Registered all;
  return all;
}

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

// Returns the class of an operator without a rule, from its facts; nullptr if there is none.
const RuleText* class_by_facts(const Target& target) {
  const OperatorFacts& facts = target.facts();
  if (facts.unknown || facts.changes_objects) return nullptr;
  if (facts.collective || facts.host_read) return &class_rule("whole");
  if (target.name().starts_with("aten::_foreach_")) return &class_rule("foreach");
  if (facts.pointwise) return &class_rule("pointwise");
  const bool makes = facts.fills || facts.draws || facts.uninitialized;
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

const std::vector<RuleText>* ShardingRules::Table::lines_of(std::string_view name) const {
  for (const std::string_view key : {name, without_overload(name)}) {
    if (const auto found = rules.find(std::string(key)); found != rules.end()) return &found->second;
  }
  return nullptr;
}

// Returns the functional form's name, "aten::add.Tensor" for "aten::add_.Tensor"; empty for other operators.
static std::string name_of_plain(std::string_view name) {
  const std::string_view base = without_overload(name);
  if (!is_in_place_name(base)) return {};
  const std::string_view overload = overload_of(name);
  return fmt::format("{}{}{}", without_underscore(base), overload.empty() ? "" : ".", overload);
}

// An operator with a dropout probability draws nothing if it is 0: attention without dropout.
static bool draws_numbers(const NodeCall& call) {
  for (const char* name : {"dropout_p", "p"}) {
    if (call.position(name) < 0) continue;
    const Argument* probability = call.argument(name);
    if (probability == nullptr || probability->kind == ArgumentKind::kNone)
      return name != std::string_view("dropout_p");  // defaults to 0
    if (probability->kind == ArgumentKind::kFloat) return probability->d != 0;
    if (probability->kind == ArgumentKind::kInt) return probability->i != 0;
  }
  return true;
}

// Returns the operator's rule, or that of its functional form: aten::add for aten::add_.
const RuleText* ShardingRules::Table::find(const NodeCall& call) const {
  const std::string& name = call.target().name();
  for (const std::vector<RuleText>* lines : {lines_of(name), lines_of(name_of_plain(name))}) {
    if (lines == nullptr) continue;
    const auto rule = std::ranges::find_if(*lines, [&](const RuleText& one) { return call.holds(one.condition); });
    if (rule != lines->end()) return &*rule;
  }
  return nullptr;
}

const std::vector<RuleText>* ShardingRules::Table::lines(std::string_view name) const {
  const std::vector<RuleText>* own = lines_of(name);
  return own != nullptr ? own : lines_of(name_of_plain(name));
}

const NodeStrategies& KnownCall::strategies() const {
  std::call_once(once_, [&] {
    strategies_ = {.source = factors.source, .random = factors.random};
    strategies_.axis = places.empty() ? strategies_of(factors) : std::vector<AxisStrategy>{replicated(factors)};
    for (const PlaceFactors& place : places) {
      strategies_.places.push_back({place.operands, place.results, strategies_of(place.factors)});
    }
  });
  return strategies_;
}

NodeFactors ShardingRules::Table::work_out(const Graph& graph, NodeId node) const {
  const NodeCall call(graph, node);
  const RuleText* rule = find(call);
  const bool by_facts = rule == nullptr;
  if (by_facts) rule = class_by_facts(call);
  FactorBuilder builder(call);
  if (rule == nullptr) return builder.finish();
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
    throw Error(fmt::format("sharding rule \"{}: {}\" does not match the call {}: {}", rule->name, rule->text,
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
  call->places = places_of(call->factors);
  const std::lock_guard lock(mutex);
  return calls.try_emplace(key, std::move(call)).first->second;
}

namespace {

// Returns "if !transposed: ", the text between an operator's name and its rule; empty without a condition.
std::string condition_text(const RuleCondition& condition) {
  if (condition.argument.empty()) return {};
  const std::string equals = condition.equals ? fmt::format("={}", *condition.equals) : "";
  return fmt::format("if {}{}{}: ", condition.negated ? "!" : "", condition.argument, equals);
}

std::vector<RuleText> read_rules(std::string_view text) {
  std::vector<RuleText> rules = parse_rules(text, "<sharding rules>");
  for (const RuleText& rule : rules) {
    if (rule.builder.empty() || find_class(rule.builder) != nullptr) continue;
    throw ParseError(fmt::format("sharding rule of {}: unknown class \"{}\"", rule.name, rule.builder), rule.line,
                     rule.column);
  }
  return rules;
}

struct AxisCut {
  std::optional<FactorId> factor;
  int64_t devices = 1;
};

bool has_layouts(const AxisStrategy& strategy, std::span<const Layout> operands, std::span<const Layout> results,
                 size_t axis) {
  const auto on_axis = [axis](const Layout& layout) { return layout[axis]; };
  return std::ranges::equal(operands, strategy.operands, {}, on_axis) &&
         std::ranges::equal(results, strategy.results, {}, on_axis);
}

// Returns the number of elements of the factor outside the split in a tensor that has it; 0 if it is not sharded.
int64_t outer_of(const NodeFactors& factors, FactorId factor, const TensorFactors& tensor, const Placement& placement) {
  if (!placement.is_shard() || placement.dim >= tensor.dims.size()) return 0;
  int64_t before = 1;
  for (const FactorId f : tensor.dims[placement.dim]) {
    if (f == factor) return placement.outer % before == 0 ? placement.outer / before : 0;
    before *= factors.factors[f].extent;
  }
  return 0;
}

// Returns `outer` of the first tensor in which an axis shards the factor; 0 if there is none.
int64_t outer_of_cut(const NodeFactors& factors, FactorId factor, std::span<const Layout> operands,
                     std::span<const Layout> results, size_t axis) {
  for (const TensorFactors& tensor : factors.operands) {
    if (tensor.operand < 0 || static_cast<size_t>(tensor.operand) >= operands.size()) continue;
    const int64_t outer = outer_of(factors, factor, tensor, operands[static_cast<size_t>(tensor.operand)][axis]);
    if (outer != 0) return outer;
  }
  for (size_t r = 0; r < factors.results.size() && r < results.size(); ++r) {
    const int64_t outer = outer_of(factors, factor, factors.results[r], results[r][axis]);
    if (outer != 0) return outer;
  }
  return 0;
}

std::optional<AxisCut> find_cut(const NodeFactors& factors, std::span<const Layout> operands,
                                std::span<const Layout> results, size_t axis, int64_t devices) {
  const auto fits = [&](AxisStrategy strategy) {
    return strategy.extent == 0 && fits_writes(factors, strategy) && has_layouts(strategy, operands, results, axis);
  };
  if (fits(replicated(factors)) || std::ranges::any_of(factors.partial, fits)) return AxisCut{.devices = devices};
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const Factor& factor = factors.factors[f];
    if (factor.whole || factor.extent % devices != 0) continue;
    const auto id = static_cast<FactorId>(f);
    const int64_t outer = outer_of_cut(factors, id, operands, results, axis);
    if (outer == 0 || factor.extent % outer != 0 || factor.extent / outer % devices != 0) continue;
    const std::optional<AxisStrategy> strategy = strategy_of(factors, id, outer);
    if (strategy && has_layouts(*strategy, operands, results, axis)) return AxisCut{.factor = id, .devices = devices};
  }
  return std::nullopt;
}

// Returns true if every independent place has one of its strategies on the axis.
bool fit_places(const KnownCall& call, std::span<const Layout> operands, std::span<const Layout> results, size_t axis,
                int64_t devices) {
  const auto at = [](std::span<const Layout> layouts, const std::vector<uint32_t>& indices) {
    std::vector<Layout> found;
    for (const uint32_t i : indices) found.push_back(layouts[i]);
    return found;
  };
  return std::ranges::all_of(call.places, [&](const PlaceFactors& place) {
    return find_cut(place.factors, at(operands, place.operands), at(results, place.results), axis, devices).has_value();
  });
}

// Returns contiguous strides for these sizes, in the order of `strides`; 0 stays 0.
std::vector<int64_t> strides_in_order(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // For equal strides, the outer dimension has one element and may have any stride.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] != strides[b] ? strides[a] < strides[b] : a > b; });
  std::vector<int64_t> made(sizes.size(), 0);
  int64_t next = 1;
  for (const size_t d : order) {
    if (strides[d] == 0) continue;
    made[d] = next;
    next = saturating_multiply(next, sizes[d]);
  }
  return made;
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
  return table_->known(graph, node)->strategies();
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
    if (NodeTensors::of(graph, node).size() == 0) continue;
    ++coverage.nodes;
    const RuleSource source = rules.strategies(graph, node).source;
    ++(source == RuleSource::kRule    ? coverage.by_rule
       : source == RuleSource::kClass ? coverage.by_class
                                      : coverage.without_a_rule[graph.target(node).name()]);
  }
  return coverage;
}

std::vector<Argument> ShardingRules::local_arguments(Graph& graph, NodeId node, std::span<const Layout> operands,
                                                     std::span<const Layout> results, const DeviceMesh& mesh) const {
  const std::shared_ptr<const KnownCall> call = table_->known(graph, node);
  const NodeFactors& factors = call->factors;
  const auto fail = [&](std::string_view what) {
    std::string layouts;
    for (const Layout& layout : operands) layouts += " (" + to_string(layout) + ")";
    layouts += " ->";
    for (const Layout& layout : results) layouts += " (" + to_string(layout) + ")";
    throw Error(
        fmt::format("{} cannot have layouts{} on mesh {}: {}", to_text(graph, node), layouts, mesh.to_string(), what));
  };
  if (operands.size() != factors.tensors || results.size() != factors.results.size()) {
    fail(fmt::format("expected layouts of {} operands and {} results", factors.tensors, factors.results.size()));
  }
  for (const std::span<const Layout>& layouts : {operands, results}) {
    for (const Layout& layout : layouts) {
      if (layout.size() != mesh.axes.size()) fail("a layout must have one placement per mesh axis");
    }
  }
  std::vector<AxisCut> cuts;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const int64_t devices = mesh.axes[axis].size;
    std::optional<AxisCut> cut;
    if (call->places.empty()) {
      cut = find_cut(factors, operands, results, axis, devices);
    } else if (fit_places(*call, operands, results, axis, devices)) {
      cut = AxisCut{};
    }
    if (!cut) fail(fmt::format("no strategy for axis {} has these placements", mesh.axes[axis].name));
    cuts.push_back(*cut);
  }
  for (const TensorFactors& tensor : factors.operands) {
    if (tensor.operand < 0) continue;
    if (!local_sizes(tensor.sizes, operands[static_cast<size_t>(tensor.operand)], mesh))
      fail("a size is not divisible");
  }
  std::vector<std::optional<std::vector<int64_t>>> local;
  for (size_t r = 0; r < factors.results.size(); ++r) {
    local.push_back(local_sizes(factors.results[r].sizes, results[r], mesh));
    if (!local.back()) fail("a size is not divisible");
  }

  const std::span<const Argument> whole = graph.arguments(node);
  std::vector<Argument> arguments(whole.begin(), whole.end());
  for (const LocalArgument& made : factors.local) {
    Argument& argument = arguments[made.argument];
    if (argument.kind == ArgumentKind::kNone) continue;
    if (made.kind == LocalArgument::Kind::kSizes) {
      argument = graph.int_list(*local.at(0));
      continue;
    }
    if (made.kind == LocalArgument::Kind::kStrides) {
      argument = graph.int_list(strides_in_order(*local.at(0), graph.ints(argument)));
      continue;
    }
    int64_t divisor = 1;
    for (const AxisCut& cut : cuts) {
      if (cut.factor && std::ranges::find(made.factors, *cut.factor) != made.factors.end()) divisor *= cut.devices;
    }
    if (divisor == 1) continue;
    // A value that is not divisible is an end beyond the dimension's end.
    const auto scaled = [&](int64_t value) {
      const bool beyond = value >= std::numeric_limits<int64_t>::max() - divisor;
      return beyond ? value : (value >= 0 ? value + divisor - 1 : value) / divisor;
    };
    if (argument.kind == ArgumentKind::kInt) {
      argument = Argument::of_int(scaled(argument.i));
    } else if (argument.kind == ArgumentKind::kIntList) {
      std::vector<int64_t> ints(graph.ints(argument).begin(), graph.ints(argument).end());
      for (int64_t& value : ints) value = scaled(value);
      argument = graph.int_list(ints);
    }
  }
  return arguments;
}

std::optional<ShardingRules::Lookup> ShardingRules::lookup(const Graph& graph, NodeId node,
                                                           std::span<const Layout> operands,
                                                           std::span<const Layout> results, const DeviceMesh& mesh,
                                                           int64_t rank) const {
  const NodeFactors& factors = table_->known(graph, node)->factors;
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const Factor& factor = factors.factors[f];
    if (factor.masked_by < 0) continue;
    const auto id = static_cast<FactorId>(f);
    Lookup found{.end = factor.extent};
    for (const TensorFactors& tensor : factors.operands) {
      if (tensor.argument == factor.masked_by && tensor.operand >= 0)
        found.operand = static_cast<size_t>(tensor.operand);
    }
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (outer_of_cut(factors, id, operands, results, axis) == 0) continue;
      const int64_t part = (found.end - found.begin) / mesh.axes[axis].size;
      found.begin += part * mesh.coordinate(rank, axis);
      found.end = found.begin + part;
    }
    if (found.end - found.begin < factor.extent) return found;
  }
  return std::nullopt;
}

}  // namespace shadowgraph
