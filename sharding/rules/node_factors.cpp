#include "sharding/rules/node_factors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

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
  if (i >= made.results.size()) throw Misfit(fmt::format("the operator has no result {}", i));
  return made.results[i];
}

void FactorBuilder::whole(TensorFactors& tensor) {
  for (size_t d = 0; d < tensor.dims.size(); ++d) {
    if (tensor.dims[d].empty()) tensor.dims[d] = {factor("_", tensor.sizes[d], true)};
  }
}

void FactorBuilder::local(LocalArgument::Kind kind, std::string_view argument, std::vector<FactorId> factors) {
  const int at = call.position(argument);
  if (at < 0) throw Misfit(fmt::format("the operator has no argument {}", argument));
  made.local.push_back({.kind = kind, .argument = static_cast<uint16_t>(at), .factors = std::move(factors)});
}

namespace {

// Returns true if tensors of the dtype can be partial: integers have no mean; bools have no sum, mean, max or min.
bool can_be_partial(const TensorFactors& tensor, PartialOp op) {
  if (op == PartialOp::kAverage) return c10::isFloatingType(tensor.dtype) || c10::isComplexType(tensor.dtype);
  return tensor.dtype != c10::ScalarType::Bool;
}

constexpr int64_t kUnknown = -1;

struct Bound {
  TensorFactors* tensor;
  const TensorPattern* pattern;
};

class PatternBinder {
 public:
  PatternBinder(const RuleText& rule, FactorBuilder& builder) : rule_(rule), builder_(builder) {}

  void bind() {
    pair_up();
    find_lengths();
    for (const RuleClause& clause : rule_.clauses) {
      if (clause.kind == RuleClause::Kind::kEqual) {
        for (const std::string& name : clause.groups[0]) equal_.push_back(name);
      }
      if (clause.kind == RuleClause::Kind::kExtent) {
        named(clause.groups[0][0], builder_.call.integer(clause.argument, kUnknown));
      }
    }
    for (const Bound& bound : bound_) spread(bound);
    solve_composites();
    builder_.apply(rule_.clauses);
  }

 private:
  // Matches patterns with the schema's tensors in order; `out=` arguments are results.
  void pair_up() {
    const NodeCall& call = builder_.call;
    const std::vector<Formal>& formals = call.target().signature().arguments;
    size_t next = 0;
    for (size_t i = 0; i < formals.size(); ++i) {
      if (!formals[i].type.is_tensor_like() || formals[i].out) continue;
      const std::vector<TensorFactors*> tensors = builder_.operands(static_cast<uint16_t>(i));
      if (next >= rule_.operands.size()) {
        if (!tensors.empty()) throw Misfit(fmt::format("the rule has no pattern for {}", formals[i].name));
        continue;
      }
      for (TensorFactors* tensor : tensors) pair(*tensor, rule_.operands[next]);
      ++next;
    }
    if (next < rule_.operands.size()) {
      throw Misfit(fmt::format("the rule has {} operands, the operator {}", rule_.operands.size(), next));
    }
    for (TensorFactors& result : builder_.made.results) {
      if (result.argument >= rule_.results.size()) {
        throw Misfit(fmt::format("the rule has no pattern for result {}", result.argument));
      }
      const TensorPattern& pattern = rule_.results[result.argument];
      for (const std::string& name : pattern.of) {
        const int at = call.position(name);
        if (at < 0) throw Misfit(fmt::format("the operator has no argument {}", name));
        result.of.push_back(static_cast<uint16_t>(at));
      }
      pair(result, pattern);
    }
  }

  void pair(TensorFactors& tensor, const TensorPattern& pattern) {
    tensor.added = pattern.added;
    tensor.same = pattern.same;
    // Absent tensors have no dimensions to shard: undefined gradients, torch.cat's empty tensors.
    const bool nothing = tensor.sizes.size() == 1 && tensor.sizes[0] == 0;
    if (pattern.same || nothing) {
      builder_.whole(tensor);
      return;
    }
    bound_.push_back({&tensor, &pattern});
  }

  void find_lengths() {
    for (const Bound& bound : bound_) {
      for (const DimPattern& dim : bound.pattern->dims) {
        if (!dim.star || dim.length.empty()) continue;
        lengths_[dim.factors.at(0)] = static_cast<int64_t>(builder_.call.integers(dim.length).size());
      }
    }
    bool changed = true;
    while (changed) {
      changed = false;
      for (const Bound& bound : bound_) changed = find_lengths(bound) || changed;
    }
    // Starred names that broadcast have the number of dimensions of the longest.
    for (const Bound& bound : bound_) {
      const std::vector<DimPattern>& dims = bound.pattern->dims;
      const auto star = std::find_if(dims.begin(), dims.end(), [](const DimPattern& dim) { return dim.star; });
      if (star == dims.end() || !star->broadcast || star->factors.empty()) continue;
      int64_t& length = lengths_.try_emplace(star->factors[0], kUnknown).first->second;
      length = std::max(length, rank_of(bound) - static_cast<int64_t>(dims.size()) + 1);
    }
  }

  static int64_t rank_of(const Bound& bound) { return static_cast<int64_t>(bound.tensor->sizes.size()); }

  // Infers the number from the rest of a tensor's rank, or from the position of an anchor.
  bool find_lengths(const Bound& bound) {
    const std::vector<DimPattern>& dims = bound.pattern->dims;
    if (bound.pattern->aligned) return false;
    const auto anchor =
        std::find_if(dims.begin(), dims.end(), [](const DimPattern& dim) { return !dim.anchor.empty(); });
    if (anchor == dims.end()) return find_length(dims.begin(), dims.end(), rank_of(bound));
    int64_t place = builder_.call.integer(anchor->anchor, 0);
    if (place < 0) place += rank_of(bound);
    return find_length(dims.begin(), anchor, place) | find_length(anchor + 1, dims.end(), rank_of(bound) - place - 1);
  }

  template <class It>
  bool find_length(It begin, It end, int64_t rank) {
    const DimPattern* unknown = nullptr;
    for (It dim = begin; dim != end; ++dim) {
      if (!dim->star) {
        --rank;
        continue;
      }
      if (dim->broadcast || dim->factors.empty()) return false;
      const auto found = lengths_.find(dim->factors[0]);
      if (found != lengths_.end()) {
        rank -= found->second;
      } else if (unknown != nullptr) {
        return false;
      } else {
        unknown = &*dim;
      }
    }
    if (unknown == nullptr || rank < 0) return false;
    lengths_[unknown->factors[0]] = rank;
    return true;
  }

  FactorId named(const std::string& name, int64_t extent) {
    const auto [found, is_new] = by_name_.try_emplace(name, FactorId{0});
    if (is_new) found->second = builder_.factor(name, extent);
    return found->second;
  }

  void spread(const Bound& bound) {
    const std::vector<DimPattern>& dims = bound.pattern->dims;
    const int64_t rank = rank_of(bound);
    int64_t fixed = 0;  // dimensions outside sequences that may be shorter
    for (const DimPattern& dim : dims) {
      if (!dim.star) ++fixed;
      if (dim.star && !dim.factors.empty() && (!dim.broadcast || bound.pattern->aligned)) fixed += length_of(dim);
    }
    int64_t d = 0;
    if (bound.pattern->aligned) {
      if (rank > fixed) misfit(bound);
      d = rank - fixed;
    }
    for (const DimPattern& dim : dims) {
      if (dim.star && dim.factors.empty()) {  // *_: the rest
        for (int64_t left = rank - fixed; left > 0; --left) whole(bound, d++);
      } else if (dim.star) {
        const int64_t length = length_of(dim);
        const int64_t here = dim.broadcast && !bound.pattern->aligned ? std::min(length, rank - fixed) : length;
        if (here < 0 || (!dim.broadcast && d + length > rank)) misfit(bound);
        for (int64_t i = length - here; i < length; ++i) {
          place(bound, d++, {fmt::format("{}.{}", dim.factors[0], i)}, dim.broadcast);
        }
      } else if (d < 0) {
        ++d;  // absent
      } else if (dim.factors.empty()) {
        whole(bound, d++);
      } else {
        place(bound, d++, dim.factors, dim.broadcast);
      }
    }
    if (d != rank) misfit(bound);
  }

  int64_t length_of(const DimPattern& dim) const {
    const auto found = lengths_.find(dim.factors[0]);
    if (found == lengths_.end())
      throw Misfit(fmt::format("cannot infer the number of dimensions of *{}", dim.factors[0]));
    return found->second;
  }

  void whole(const Bound& bound, int64_t d) {
    if (d < 0 || d >= rank_of(bound)) misfit(bound);
    const auto dim = static_cast<size_t>(d);
    bound.tensor->dims[dim] = {builder_.factor("_", bound.tensor->sizes[dim], true)};
  }

  void place(const Bound& bound, int64_t d, const std::vector<std::string>& names, bool broadcast) {
    if (d < 0) return;  // absent
    if (d >= rank_of(bound)) misfit(bound);
    const auto dim = static_cast<size_t>(d);
    const int64_t size = bound.tensor->sizes[dim];
    std::vector<FactorId> ids;
    for (const std::string& name : names) ids.push_back(named(name, kUnknown));
    if (names.size() > 1) {
      composites_.push_back({bound.tensor, dim, ids, broadcast});
      return;
    }
    Factor& factor = builder_.made.factors[ids[0]];
    if (factor.extent == kUnknown && !(broadcast && size <= 1)) factor.extent = size;
    if (factor.extent != size) {
      if (broadcast && (size == 1 || size == 0)) return;
      if (std::ranges::find(equal_, names[0].substr(0, names[0].find('.'))) == equal_.end()) misfit(bound);
      unequal_.push_back(ids[0]);
      bound.tensor->dims[dim] = {builder_.factor("_", size, true)};
      return;
    }
    bound.tensor->dims[dim] = ids;
  }

  struct Composite {
    TensorFactors* tensor;
    size_t dim;
    std::vector<FactorId> factors;
    bool broadcast;
  };

  // Solves for a single unknown factor: (g c) of 12 with g = 3 gives c = 4.
  void solve_composites() {
    std::vector<Factor>& factors = builder_.made.factors;
    bool changed = true;
    while (changed) {
      changed = false;
      for (const Composite& composite : composites_) {
        int64_t known = 1;
        Factor* unknown = nullptr;
        size_t unknowns = 0;
        for (const FactorId f : composite.factors) {
          if (factors[f].extent == kUnknown) {
            unknown = &factors[f];
            ++unknowns;
          } else {
            known = saturating_multiply(known, factors[f].extent);
          }
        }
        const int64_t size = composite.tensor->sizes[composite.dim];
        if (unknowns != 1 || (composite.broadcast && size <= 1)) continue;
        if (known <= 0 || size % known != 0) {
          throw Misfit(fmt::format("a dimension of {} is not divisible by its factor {}", size, known));
        }
        unknown->extent = size / known;
        changed = true;
      }
    }
    for (const Composite& composite : composites_) {
      int64_t product = 1;
      for (const FactorId f : composite.factors) {
        if (factors[f].extent == kUnknown) throw Misfit(fmt::format("cannot infer the extent of {}", factors[f].name));
        product = saturating_multiply(product, factors[f].extent);
      }
      const int64_t size = composite.tensor->sizes[composite.dim];
      if (composite.broadcast && size <= 1 && product != size) continue;
      composite.tensor->dims[composite.dim] = composite.factors;
    }
    for (Factor& factor : factors) {
      if (factor.extent == kUnknown) factor.extent = 1;  // size 1 in all tensors
    }
    for (const FactorId f : unequal_) factors[f].whole = true;
  }

  [[noreturn]] void misfit(const Bound& bound) const {
    throw Misfit(fmt::format("sizes [{}] do not match the pattern", fmt::join(bound.tensor->sizes, ", ")));
  }

  const RuleText& rule_;
  FactorBuilder& builder_;
  std::vector<Bound> bound_;
  std::map<std::string, int64_t, std::less<>> lengths_;
  std::map<std::string, FactorId, std::less<>> by_name_;
  std::vector<std::string> equal_;
  std::vector<FactorId> unequal_;
  std::vector<Composite> composites_;
};

}  // namespace

void FactorBuilder::partial(const std::vector<std::string>& group, PartialOp from, PartialOp to) {
  AxisStrategy strategy{.name = std::string(to_string(from))};
  strategy.operands.resize(made.tensors);
  std::vector<uint16_t> arguments;
  bool any = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // common dtype of the partial operands
  for (const std::string& name : group) {
    const int at = call.position(name);
    if (at < 0) continue;  // an argument of another overload
    arguments.push_back(static_cast<uint16_t>(at));
    for (const TensorFactors* tensor : operands(static_cast<uint16_t>(at))) {
      if (tensor->operand < 0) return;  // a constant is replicated
      if (!can_be_partial(*tensor, from)) return;
      strategy.operands[static_cast<size_t>(tensor->operand)] = Placement::partial(from);
      dtype = any ? c10::promoteTypes(dtype, tensor->dtype) : tensor->dtype;
      any = true;
    }
    // A scalar term is added on every device, which is correct only for a mean.
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
    // A sum of rounded or truncated parts is not the rounded sum.
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
      // "b" also matches the dimensions of *b: "b.0", "b.1".
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
      case Kind::kMasked:
        for (const FactorId f : named(clause.groups[0])) made.factors[f].masked_by = call.position(clause.argument);
        break;
      case Kind::kLocal:
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
        break;  // applied when dimensions are bound
    }
  }
}

// Gives written tensors the layouts of the results that alias them, and `out=` tensors also their dimensions.
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
          throw Misfit(fmt::format("a dimension of {} has factors with a product of {}", tensor.sizes[d], product));
        }
      }
    }
  }
  return std::move(made);
}

void bind_patterns(const RuleText& rule, FactorBuilder& builder) { PatternBinder(rule, builder).bind(); }

}  // namespace shadowgraph
