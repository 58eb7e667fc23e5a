#include "sharding/rules/node_factors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/saturating.h"

namespace shadowgraph {

bool TensorFactors::has(FactorId factor) const {
  return std::any_of(dims.begin(), dims.end(), [&](const std::vector<FactorId>& dim) {
    return std::find(dim.begin(), dim.end(), factor) != dim.end();
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading a call

NodeCall::NodeCall(const Graph& graph, NodeId node) : graph_(graph), node_(node) {}

int NodeCall::position(std::string_view name) const {
  const auto position = signature().position_of(name);
  return position ? static_cast<int>(*position) : -1;
}

const Argument* NodeCall::argument(std::string_view name) const {
  const int at = position(name);
  const std::span<const Argument> arguments = graph_.arguments(node_);
  return at < 0 || static_cast<size_t>(at) >= arguments.size() ? nullptr : &arguments[static_cast<size_t>(at)];
}

int64_t NodeCall::integer(std::string_view name, int64_t otherwise) const {
  const Argument* found = argument(name);
  if (found == nullptr) return otherwise;
  if (found->kind == ArgumentKind::kInt) return found->i;
  if (found->kind == ArgumentKind::kBool) return found->b ? 1 : 0;
  if (found->kind == ArgumentKind::kIntList && graph_.ints(*found).size() == 1) return graph_.ints(*found)[0];
  return otherwise;
}

std::vector<int64_t> NodeCall::integers(std::string_view name) const {
  const Argument* found = argument(name);
  if (found == nullptr) return {};
  if (found->kind == ArgumentKind::kInt) return {found->i};
  if (found->kind != ArgumentKind::kIntList) return {};
  const std::span<const int64_t> ints = graph_.ints(*found);
  return {ints.begin(), ints.end()};
}

bool NodeCall::holds(const RuleCondition& condition) const {
  if (condition.argument.empty()) return true;
  const Argument* found = argument(condition.argument);
  bool holds = false;
  if (found != nullptr && condition.equals) {
    holds = (found->kind == ArgumentKind::kInt && found->i == *condition.equals) ||
            (found->kind == ArgumentKind::kFloat && found->d == static_cast<double>(*condition.equals));
  } else if (found != nullptr) {
    holds = found->kind == ArgumentKind::kBool ? found->b : found->kind != ArgumentKind::kNone;
  }
  return holds != condition.negated;
}

// ---------------------------------------------------------------------------------------------------------------------
// Building

FactorBuilder::FactorBuilder(const NodeCall& c) : call(c) {
  const Graph& graph = call.graph();
  int64_t operand = 0;
  const auto add = [&](std::vector<TensorFactors>& to, size_t position, const Argument& argument) {
    TensorFactors tensor{.argument = static_cast<uint16_t>(position)};
    if (argument.kind == ArgumentKind::kConstant) {
      const auto constant = graph.constant_meta(argument.constant);
      if (!constant) return;
      tensor.sizes.assign(constant->sizes.begin(), constant->sizes.end());
    } else if (argument.kind == ArgumentKind::kValue && graph.value(argument.ref.value).kind == ValueKind::kTensor) {
      const std::span<const int64_t> sizes = graph.sizes(argument.ref.value);
      tensor.sizes.assign(sizes.begin(), sizes.end());
      tensor.dtype = graph.value(argument.ref.value).dtype;
      tensor.operand = operand++;
    } else {
      return;
    }
    tensor.dims.resize(tensor.sizes.size());
    to.push_back(std::move(tensor));
  };
  const auto add_all = [&](std::vector<TensorFactors>& to, std::span<const Argument> arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].kind == ArgumentKind::kList) {
        for (const Argument& element : graph.list(arguments[i])) add(to, i, element);
      } else {
        add(to, i, arguments[i]);
      }
    }
  };
  add_all(made.operands, graph.arguments(call.node()));
  made.tensors = static_cast<size_t>(operand);
  operand = 0;
  add_all(made.results, graph.results(call.node()));
}

FactorId FactorBuilder::factor(std::string name, int64_t extent, bool whole) {
  made.factors.push_back({.name = std::move(name), .extent = extent, .whole = whole});
  return static_cast<FactorId>(made.factors.size() - 1);
}

std::vector<TensorFactors*> FactorBuilder::operands(uint16_t argument) {
  std::vector<TensorFactors*> found;
  for (TensorFactors& tensor : made.operands) {
    if (tensor.argument == argument) found.push_back(&tensor);
  }
  return found;
}

TensorFactors* FactorBuilder::operand(std::string_view name) {
  const int at = call.position(name);
  const std::vector<TensorFactors*> found =
      at < 0 ? std::vector<TensorFactors*>() : operands(static_cast<uint16_t>(at));
  return found.size() == 1 ? found[0] : nullptr;
}

TensorFactors& FactorBuilder::result(size_t i) {
  if (i >= made.results.size()) throw Misfit(fmt::format("there is no result {}", i));
  return made.results[i];
}

void FactorBuilder::whole(TensorFactors& tensor) {
  for (size_t d = 0; d < tensor.dims.size(); ++d) {
    if (tensor.dims[d].empty()) tensor.dims[d] = {factor("_", tensor.sizes[d], true)};
  }
}

void FactorBuilder::sizes(std::string_view argument, size_t result) {
  const int at = call.position(argument);
  if (at < 0) throw Misfit(fmt::format("there is no argument {}", argument));
  made.local.push_back({.kind = LocalArgument::Kind::kSizes,
                        .argument = static_cast<uint16_t>(at),
                        .tensor = static_cast<uint16_t>(result)});
}

void FactorBuilder::strides(std::string_view argument, size_t result) {
  sizes(argument, result);
  made.local.back().kind = LocalArgument::Kind::kStrides;
}

void FactorBuilder::scaled(std::string_view argument, std::vector<FactorId> factors, int element) {
  const int at = call.position(argument);
  if (at < 0) throw Misfit(fmt::format("there is no argument {}", argument));
  made.local.push_back({.kind = LocalArgument::Kind::kScaled,
                        .argument = static_cast<uint16_t>(at),
                        .element = element,
                        .factors = std::move(factors)});
}

namespace {

// Says whether tensors of a type can be partial: a mean is no integer, and a bool has no sum, mean, maximum or minimum.
bool can_be_partial(const TensorFactors& tensor, PartialOp op) {
  if (op == PartialOp::kAverage) return c10::isFloatingType(tensor.dtype) || c10::isComplexType(tensor.dtype);
  return tensor.dtype != c10::ScalarType::Bool;
}

}  // namespace

void FactorBuilder::partial(const std::vector<std::string>& group, PartialOp from, PartialOp to) {
  AxisStrategy strategy{.name = std::string(to_string(from))};
  strategy.operands.resize(made.tensors);
  std::vector<uint16_t> arguments;
  bool any = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the partial operands together
  for (const std::string& name : group) {
    const int at = call.position(name);
    if (at < 0) continue;  // of another overload
    arguments.push_back(static_cast<uint16_t>(at));
    for (const TensorFactors* tensor : operands(static_cast<uint16_t>(at))) {
      if (tensor->operand < 0) return;  // a constant is the same on every device
      if (!can_be_partial(*tensor, from)) return;
      strategy.operands[static_cast<size_t>(tensor->operand)] = Placement::partial(from);
      dtype = any ? c10::promoteTypes(dtype, tensor->dtype) : tensor->dtype;
      any = true;
    }
    // The term that is no tensor is added on every device, which is right for a mean alone.
    const Argument* argument = call.argument(name);
    const bool number = argument->kind == ArgumentKind::kInt || argument->kind == ArgumentKind::kFloat;
    if (number && from == PartialOp::kSum) return;
  }
  if (!any) return;
  for (const TensorFactors& result : made.results) {
    const bool made_of = result.of.empty() || std::any_of(result.of.begin(), result.of.end(), [&](uint16_t argument) {
                           return std::find(arguments.begin(), arguments.end(), argument) != arguments.end();
                         });
    const bool passes = !result.same && made_of;
    if (passes && !can_be_partial(result, to)) return;
    // A sum of parts that are rounded or truncated is not the rounded sum.
    const bool sums = to == PartialOp::kSum || to == PartialOp::kAverage;
    if (passes && sums && c10::promoteTypes(dtype, result.dtype) != result.dtype) return;
    strategy.results.push_back(passes ? Placement::partial(to) : Placement::replicate());
  }
  made.partial.push_back(std::move(strategy));
}

void FactorBuilder::linear(const std::vector<std::vector<std::string>>& groups) {
  for (const PartialOp op : {PartialOp::kSum, PartialOp::kAverage}) {
    for (const std::vector<std::string>& group : groups) partial(group, op, op);
  }
}

void FactorBuilder::monotone(const std::vector<std::vector<std::string>>& groups, bool turn) {
  for (const PartialOp op : {PartialOp::kMax, PartialOp::kMin}) {
    const PartialOp other = op == PartialOp::kMax ? PartialOp::kMin : PartialOp::kMax;
    for (const std::vector<std::string>& group : groups) partial(group, op, turn ? other : op);
  }
}

std::vector<FactorId> FactorBuilder::named(const std::vector<std::string>& names) const {
  std::vector<FactorId> found;
  for (size_t f = 0; f < made.factors.size(); ++f) {
    const std::string& own = made.factors[f].name;
    for (const std::string& name : names) {
      // "b" names the row *b, too: "b.0", "b.1".
      if (own == name || (own.starts_with(name) && own.size() > name.size() && own[name.size()] == '.')) {
        found.push_back(static_cast<FactorId>(f));
      }
    }
  }
  return found;
}

void FactorBuilder::apply(const std::vector<RuleClause>& clauses) {
  using Kind = RuleClause::Kind;
  for (const RuleClause& clause : clauses) {
    if (!call.holds(clause.condition)) continue;
    switch (clause.kind) {
      case Kind::kWhole:
        for (const FactorId f : named(clause.groups[0])) made.factors[f].whole = true;
        break;
      case Kind::kReduce:
        for (const FactorId f : named(clause.groups[0])) made.factors[f].op = clause.op;
        break;
      case Kind::kWholeAt: {
        TensorFactors& first = made.operands.at(0);
        std::vector<int64_t> at = call.integers(clause.argument);
        if (at.empty()) {
          for (size_t d = 0; d < first.dims.size(); ++d) at.push_back(static_cast<int64_t>(d));
        }
        const auto rank = static_cast<int64_t>(first.dims.size());
        for (const int64_t d : at) {
          const int64_t dim = d < 0 ? d + rank : d;
          if (dim < 0 || dim >= rank) continue;
          for (const FactorId f : first.dims[static_cast<size_t>(dim)]) made.factors[f].whole = true;
        }
        break;
      }
      case Kind::kLinear:
        linear(clause.groups);
        break;
      case Kind::kMonotone:
        monotone(clause.groups, false);
        break;
      case Kind::kAntitone:
        monotone(clause.groups, true);
        break;
      case Kind::kLocal:
        scaled(clause.argument, named(clause.groups[0]));
        break;
      case Kind::kMasked:
        for (const FactorId f : named(clause.groups[0])) made.factors[f].masked_by = call.position(clause.argument);
        break;
      case Kind::kExtent:
        scaled(clause.argument, named(clause.groups[0]));
        break;
      case Kind::kSizes:
        sizes(clause.argument);
        break;
      case Kind::kRandom:
        made.random = true;
        break;
      case Kind::kEqual:
        break;  // when dimensions are bound
    }
  }
}

// Lets tensors that are written lie as the results that they become. Tensors in `out=` have the dimensions of those.
void FactorBuilder::tie_written() {
  const OperatorFacts& facts = call.target().facts();
  for (const OperatorFacts::Alias& alias : facts.aliases) {
    if (std::find(facts.written.begin(), facts.written.end(), alias.argument) == facts.written.end()) continue;
    const std::vector<TensorFactors*> written = operands(alias.argument);
    size_t element = 0;
    for (size_t r = 0; r < made.results.size() && element < written.size(); ++r) {
      if (made.results[r].argument != alias.result) continue;
      TensorFactors& operand = *written[element++];
      operand.tied = static_cast<int64_t>(r);
      operand.overwritten = is_overwritten(facts, alias.argument);
      const bool unsaid =
          std::all_of(operand.dims.begin(), operand.dims.end(), [](const auto& dim) { return dim.empty(); });
      if (unsaid && operand.sizes == made.results[r].sizes) operand.dims = made.results[r].dims;
    }
  }
}

NodeFactors FactorBuilder::finish() {
  tie_written();
  for (std::vector<TensorFactors>* tensors : {&made.operands, &made.results}) {
    for (TensorFactors& tensor : *tensors) {
      for (size_t d = 0; d < tensor.dims.size(); ++d) {
        int64_t product = 1;
        for (const FactorId f : tensor.dims[d]) {
          product = saturating_multiply(product, made.factors[f].extent);
          if (tensor.operand < 0 && tensors == &made.operands) made.factors[f].whole = true;
        }
        if (!tensor.dims[d].empty() && product != tensor.sizes[d]) {
          throw Misfit(fmt::format("a dimension of {} has factors of {} together", tensor.sizes[d], product));
        }
      }
    }
  }
  return std::move(made);
}

}  // namespace shadowgraph
