// Classes of operators that patterns cannot say. Their dimensions follow from lists of dimensions, from sizes, or from
// how two shapes fit together.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "sharding/rules/class_parts.h"

namespace shadowgraph {

size_t wrapped(int64_t dim, size_t rank) {
  const auto size = static_cast<int64_t>(std::max<size_t>(rank, 1));
  const int64_t at = dim < 0 ? dim + size : dim;
  if (at < 0 || at >= size) throw Misfit(fmt::format("there is no dimension {} in {}", dim, rank));
  return static_cast<size_t>(at);
}

TensorFactors& self_of(FactorBuilder& b) {
  if (b.made.operands.empty()) throw Misfit("there is no tensor among the operands");
  return b.made.operands[0];
}

void name_dims(FactorBuilder& b, TensorFactors& tensor) {
  for (size_t d = 0; d < tensor.dims.size(); ++d) {
    if (tensor.dims[d].empty()) tensor.dims[d] = {b.factor(fmt::format("d{}", d), tensor.sizes[d])};
  }
}

void passes_partial(FactorBuilder& b, const std::string& argument) {
  b.linear({{argument}});
  b.monotone({{argument}}, false);
}
void view_passes_partial(FactorBuilder& b) {
  passes_partial(b, b.call.signature().arguments.at(self_of(b).argument).name);
}

void broadcast_to(TensorFactors& tensor, const TensorFactors& whole) {
  const size_t rank = tensor.dims.size();
  if (rank > whole.dims.size()) throw Misfit("an operand has more dimensions than the result");
  for (size_t d = 0; d < rank; ++d) {
    const size_t of = whole.dims.size() - rank + d;
    if (tensor.sizes[d] == whole.sizes[of]) {
      tensor.dims[d] = whole.dims[of];
    } else if (tensor.sizes[d] != 1) {
      throw Misfit(fmt::format("sizes {} and {} do not broadcast", tensor.sizes[d], whole.sizes[of]));
    }
  }
}

namespace {

using Dims = std::vector<int64_t>;

// ---- Element by element

void pointwise(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& first = b.made.results.empty() ? self_of(b) : b.result(0);
  name_dims(b, first);
  for (TensorFactors& result : b.made.results) {
    if (&result != &first && result.sizes != first.sizes) throw Misfit("its results differ in size");
    result.dims = first.dims;
  }
  for (TensorFactors& operand : b.made.operands) {
    if (&operand != &first) broadcast_to(operand, first);
  }
}

// Does the same for each place of the lists: _foreach_mul_, _fused_adamw_. Lists as long as the first are taken place
// by place; other tensors, and tensors of one element, are whole.
void foreach_tensor(const RuleText& rule, FactorBuilder& b) {
  b.made.independent = true;
  const std::vector<TensorFactors*> first = b.operands(self_of(b).argument);
  for (size_t i = 0; i < first.size(); ++i) {
    for (size_t d = 0; d < first[i]->dims.size(); ++d) {
      first[i]->dims[d] = {b.factor(fmt::format("t{}.{}", i, d), first[i]->sizes[d])};
    }
  }
  const auto follow = [&](const std::vector<TensorFactors*>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      TensorFactors& tensor = *list[i];
      if (list.size() == first.size() && tensor.sizes == first[i]->sizes) {
        tensor.dims = first[i]->dims;
      } else if (std::any_of(tensor.sizes.begin(), tensor.sizes.end(), [](int64_t size) { return size != 1; })) {
        // Whatever the call is for, its tensors are then needed whole.
        for (Factor& factor : b.made.factors) factor.whole = true;
      }
    }
  };
  for (size_t i = 0; i < b.call.signature().arguments.size(); ++i) {
    if (i != self_of(b).argument) follow(b.operands(static_cast<uint16_t>(i)));
  }
  for (size_t r = 0; r < b.call.signature().returns.size(); ++r) {
    std::vector<TensorFactors*> list;
    for (TensorFactors& result : b.made.results) {
      if (result.argument == r) list.push_back(&result);
    }
    if (!list.empty()) follow(list);
  }
}

// ---- Made of nothing: any cut of what is asked for

void factory(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& made = b.result(0);
  name_dims(b, made);
  for (TensorFactors& operand : b.made.operands) {
    if (operand.sizes == made.sizes) operand.dims = made.dims;
  }
  for (const std::string_view argument : {"size", "stride"}) {
    if (b.call.position(argument) < 0) continue;
    argument == "size" ? b.sizes(argument) : b.strides(argument);
  }
}

// A result that is like another tensor does not read it, so a partial tensor does as well.
void like(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& made = b.result(0);
  TensorFactors& self = self_of(b);
  const bool sized = b.call.position("size") >= 0;
  name_dims(b, made);
  if (sized) {
    factory(rule, b);
    if (self.sizes != made.sizes) b.whole(self);
  } else if (self.sizes == made.sizes) {
    self.dims = made.dims;
  }
  for (const PartialOp op : {PartialOp::kSum, PartialOp::kAverage, PartialOp::kMax, PartialOp::kMin}) {
    AxisStrategy strategy{.name = std::string(to_string(op))};
    strategy.operands.assign(b.made.tensors, Placement::partial(op));
    strategy.results.assign(b.made.results.size(), Placement::replicate());
    b.made.partial.push_back(std::move(strategy));
  }
}

// ---- Reductions

// The words in a rule say what happens to the dimensions that are reduced:
//
//     reduction sum    results are partial in what is reduced, and partial operands pass
//     reduction count  the same, but a sum of something that is no multiple of the operand
//     reduction whole  dimensions that are reduced are not cut
void reduction(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  std::vector<bool> reduced(self.dims.size(), false);
  const char* name = b.call.position("dim") >= 0 ? "dim" : "dims";
  const Dims dims = b.call.integers(name);
  for (const int64_t dim : dims) {
    if (!reduced.empty()) reduced[wrapped(dim, reduced.size())] = true;
  }
  if (dims.empty()) reduced.assign(reduced.size(), true);
  std::optional<PartialOp> op;
  for (const PartialOp known : {PartialOp::kSum, PartialOp::kAverage, PartialOp::kMax, PartialOp::kMin}) {
    if (!rule.words.empty() && rule.words[0] == to_string(known)) op = known;
  }
  const bool counts = !rule.words.empty() && rule.words[0] == "count";
  if (counts) op = PartialOp::kSum;
  name_dims(b, self);
  for (size_t d = 0; d < reduced.size(); ++d) {
    Factor& factor = b.made.factors[self.dims[d][0]];
    if (!reduced[d]) continue;
    factor.whole = !op.has_value();
    if (op) factor.op = *op;
  }
  for (TensorFactors& result : b.made.results) {
    const bool kept = result.dims.size() == self.dims.size();
    size_t at = 0;
    for (size_t d = 0; d < self.dims.size(); ++d) {
      if (reduced[d]) {
        at += kept ? 1 : 0;
        continue;
      }
      if (at >= result.dims.size() || result.sizes[at] != self.sizes[d])
        throw Misfit("its result has other dimensions");
      result.dims[at++] = self.dims[d];
    }
  }
  const std::string argument = b.call.signature().arguments.at(self.argument).name;
  if (!counts && (op == PartialOp::kSum || op == PartialOp::kAverage)) b.linear({{argument}});
  if (op == PartialOp::kMax || op == PartialOp::kMin) {
    // A maximum of maxima is one, a maximum of minima is not.
    for (const PartialOp known : {PartialOp::kMax, PartialOp::kMin}) {
      if (known != *op) continue;
      b.monotone({{argument}}, false);
      std::erase_if(b.made.partial, [&](const AxisStrategy& strategy) { return strategy.name != to_string(known); });
    }
  }
}

// ---- Products whose shape says what is multiplied

void matmul(const RuleText& rule, FactorBuilder& b) {
  if (b.made.operands.size() < 2) throw Misfit("two tensors are multiplied");
  TensorFactors& left = b.made.operands[0];
  TensorFactors& right = b.made.operands[1];
  TensorFactors& result = b.result(0);
  const size_t rank = result.dims.size();
  name_dims(b, result);
  const size_t matrix = (left.dims.size() > 1 ? 1U : 0U) + (right.dims.size() > 1 ? 1U : 0U);
  if (left.dims.empty() || right.dims.empty() || rank < matrix) throw Misfit("a tensor without dimensions");
  const FactorId k = b.factor("k", left.sizes.back());
  left.dims.back() = {k};
  right.dims[right.dims.size() > 1 ? right.dims.size() - 2 : 0] = {k};
  if (left.dims.size() > 1) left.dims[left.dims.size() - 2] = result.dims[rank - matrix];
  if (right.dims.size() > 1) right.dims.back() = result.dims[rank - 1];
  for (TensorFactors* tensor : {&left, &right}) {
    const size_t batches = tensor->dims.size() > 2 ? tensor->dims.size() - 2 : 0;
    if (batches + matrix > rank) throw Misfit("its result has fewer dimensions");
    for (size_t d = 0; d < batches; ++d) {
      const size_t of = rank - matrix - batches + d;
      if (tensor->sizes[d] == result.sizes[of]) tensor->dims[d] = result.dims[of];
    }
  }
}

// Products of which one device's share is a group: _grouped_mm. A flat operand has its groups one after another, up to
// the ends in `offs`. The dimension that they lie along cannot be cut, nor can the groups themselves.
//
//     self [m k]    mat2 [g k n]  -> [m n]     m, g whole
//     self [g m k]  mat2 [k n]    -> [m n]     n, g whole
//     self [m k]    mat2 [k n]    -> [g m n]   k, g whole
//     self [g m k]  mat2 [g k n]  -> [g m n]
//
// The kernels take rows and columns that begin every 16 bytes, so a dimension is cut in pieces of 16 bytes.
void grouped_product(const RuleText& rule, FactorBuilder& b) {
  TensorFactors* const left = b.operand("self");
  TensorFactors* const right = b.operand("mat2");
  TensorFactors& result = b.result(0);
  if (left == nullptr || right == nullptr) throw Misfit("two tensors are multiplied");
  for (const TensorFactors* tensor : {left, right}) {
    if (tensor->dims.size() != 2 && tensor->dims.size() != 3) throw Misfit("a tensor is neither matrix nor matrices");
  }
  const bool flat_left = left->dims.size() == 2;
  const bool flat_right = right->dims.size() == 2;
  const auto aligned = [&](const char* name, int64_t extent, c10::ScalarType dtype, bool whole) {
    const int64_t step = 16 / static_cast<int64_t>(c10::elementSize(dtype));
    const bool divides = extent % step == 0;
    std::vector<FactorId> factors{b.factor(name, divides ? extent / step : extent, whole || !divides)};
    if (divides) factors.push_back(b.factor(fmt::format("{}_step", name), step, true));
    return factors;
  };
  const TensorFactors& grouped = !flat_left ? *left : !flat_right ? *right : result;
  const std::vector<FactorId> g{b.factor("g", grouped.sizes[0], flat_left || flat_right)};
  const std::vector<FactorId> m =
      aligned("m", left->sizes[left->sizes.size() - 2], left->dtype, flat_left && !flat_right);
  const std::vector<FactorId> k = aligned("k", left->sizes.back(), left->dtype, flat_left && flat_right);
  const std::vector<FactorId> n = aligned("n", right->sizes.back(), right->dtype, flat_right && !flat_left);
  left->dims = flat_left ? std::vector{m, k} : std::vector{g, m, k};
  right->dims = flat_right ? std::vector{k, n} : std::vector{g, k, n};
  result.dims = flat_left == flat_right ? std::vector{g, m, n} : std::vector{m, n};
  if (TensorFactors* const offsets = b.operand("offs")) b.whole(*offsets);
  // A scale for each row or column goes with it. Any other kind of scale keeps everything whole.
  for (const auto& [name, by] : {std::pair("scale_a", &m), std::pair("scale_b", &n)}) {
    TensorFactors* const scales = b.operand(name);
    if (scales == nullptr) continue;
    const int64_t lines = by == &m ? left->sizes[left->sizes.size() - 2] : right->sizes.back();
    const bool groups = !(by == &m ? flat_left : flat_right);
    if (scales->sizes.size() == (groups ? 2U : 1U) && scales->sizes.back() == lines) {
      if (groups) scales->dims[0] = g;
      scales->dims.back() = *by;
    } else {
      for (Factor& factor : b.made.factors) factor.whole = true;
    }
  }
}

// Takes the equation as the rule: "bij,bjk->bik".
void einsum(const RuleText& rule, FactorBuilder& b) {
  const Argument* equation = b.call.argument("equation");
  if (equation == nullptr || equation->kind != ArgumentKind::kString) throw Misfit("it has no equation");
  std::string text = b.call.graph().text(equation->string);
  std::erase(text, ' ');
  const size_t arrow = text.find("->");
  if (arrow == text.npos || text.find('.') != text.npos) throw Misfit("an equation without an arrow, or with dots");
  std::array<int, 256> factors{};
  factors.fill(-1);
  const auto spread = [&](std::string_view letters, TensorFactors& tensor) {
    if (letters.size() != tensor.dims.size()) throw Misfit("a tensor has other dimensions than its letters");
    for (size_t d = 0; d < letters.size(); ++d) {
      int& factor = factors[static_cast<unsigned char>(letters[d])];
      if (factor < 0) factor = b.factor(std::string(1, letters[d]), tensor.sizes[d]);
      if (b.made.factors[static_cast<size_t>(factor)].extent != tensor.sizes[d]) throw Misfit("sizes that broadcast");
      tensor.dims[d] = {static_cast<FactorId>(factor)};
    }
  };
  std::string_view rest = std::string_view(text).substr(0, arrow);
  std::vector<std::vector<std::string>> groups;
  for (TensorFactors& operand : b.made.operands) {
    const size_t comma = std::min(rest.find(','), rest.size());
    spread(rest.substr(0, comma), operand);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  spread(std::string_view(text).substr(arrow + 2), b.result(0));
}

// ---- Indices: self[:, i, j]

// Says which dimensions of self are indexed, and where the indices' dimensions are in what is taken out.
struct Indexed {
  std::vector<bool> dims;  // of self
  size_t rank = 0;         // of the indices together
  size_t place = 0;        // of their first dimension
  std::vector<TensorFactors*> indices;
};

Indexed indexed(FactorBuilder& b) {
  Indexed found;
  TensorFactors& self = self_of(b);
  found.dims.assign(self.dims.size(), false);
  const int position = b.call.position("indices");
  const Argument* list = b.call.argument("indices");
  if (list == nullptr || list->kind != ArgumentKind::kList) throw Misfit("it has no indices");
  found.indices = b.operands(static_cast<uint16_t>(position));
  size_t d = 0;
  size_t runs = 0;
  for (const Argument& index : b.call.graph().list(*list)) {
    if (d >= self.dims.size()) throw Misfit("more indices than dimensions");
    found.dims[d] = index.kind != ArgumentKind::kNone;
    if (found.dims[d] && (d == 0 || !found.dims[d - 1]) && runs++ == 0) found.place = d;
    ++d;
  }
  if (runs > 1) found.place = 0;  // not side by side: they go to the front
  for (const TensorFactors* index : found.indices) {
    if (index->operand < 0 || !c10::isIntegralType(index->dtype, false))
      throw Misfit("an index that is no list of places");
    found.rank = std::max(found.rank, index->dims.size());
  }
  return found;
}

void index(const RuleText& rule, FactorBuilder& b) {
  const Indexed by = indexed(b);
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  name_dims(b, result);
  size_t at = 0;
  for (size_t d = 0; d < self.dims.size(); ++d) {
    if (at == by.place) at += by.rank;
    if (by.dims[d]) continue;
    if (at >= result.dims.size() || self.sizes[d] != result.sizes[at]) throw Misfit("its result has other dimensions");
    self.dims[d] = result.dims[at++];
  }
  for (TensorFactors* tensor : by.indices) {
    for (size_t d = 0; d < tensor->dims.size(); ++d) {
      const size_t of = by.place + by.rank - tensor->dims.size() + d;
      if (of >= result.dims.size()) throw Misfit("its result has other dimensions");
      if (tensor->sizes[d] == result.sizes[of]) tensor->dims[d] = result.dims[of];
    }
  }
}

// Lets dimensions that are not indexed pass. Which of two values at one place is kept is not known.
void index_put(const RuleText& rule, FactorBuilder& b) {
  const Indexed by = indexed(b);
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  TensorFactors* values = b.operand("values");
  if (values == nullptr) throw Misfit("it has no values");
  name_dims(b, self);
  result.dims = self.dims;
  // The dimensions of what is put in, as if it were taken out.
  std::vector<std::optional<size_t>> taken;
  for (size_t d = 0; d < self.dims.size(); ++d) {
    if (taken.size() == by.place) taken.insert(taken.end(), by.rank, std::nullopt);
    if (by.dims[d]) {
      b.made.factors[self.dims[d][0]].whole = true;
    } else {
      taken.push_back(d);
    }
  }
  if (taken.size() == by.place) taken.insert(taken.end(), by.rank, std::nullopt);
  const size_t rank = values->dims.size();
  if (rank > taken.size()) throw Misfit("the values have more dimensions than what they are put into");
  for (size_t d = 0; d < rank; ++d) {
    const std::optional<size_t> of = taken[taken.size() - rank + d];
    if (of && values->sizes[d] == self.sizes[*of]) values->dims[d] = self.dims[*of];
  }
}

// A tensor met that shares a storage is the same tensor, or an unknown part of it.
void alias(const RuleText& rule, FactorBuilder& b) {
  if (self_of(b).sizes != b.result(0).sizes || strides_of(b, false) != strides_of(b, true)) {
    throw Misfit("it has another geometry");
  }
  pointwise(rule, b);
  view_passes_partial(b);
}

// A tensor from outside lies in any way.
void placeholder(const RuleText& rule, FactorBuilder& b) {
  for (TensorFactors& result : b.made.results) name_dims(b, result);
}

// A gradient that is handed out lies as its parameter, an output in any way of its own.
void end(const RuleText& rule, FactorBuilder& b) {
  for (TensorFactors& operand : b.made.operands) {
    const TensorFactors& first = b.made.operands[0];
    if (b.call.position("gradient") >= 0 && operand.sizes == first.sizes && &operand != &first) {
      operand.dims = first.dims;
    } else {
      name_dims(b, operand);
    }
  }
}

// Cuts nothing.
void whole(const RuleText& rule, FactorBuilder& b) {
  for (TensorFactors& operand : b.made.operands) b.whole(operand);
  for (TensorFactors& result : b.made.results) b.whole(result);
}

constexpr std::array kClasses = std::to_array<ClassRow>({
    {"pointwise", pointwise},
    {"foreach", foreach_tensor},
    {"matmul", matmul},
    {"einsum", einsum},
    {"grouped_product", grouped_product},
    {"index", index},
    {"index_put", index_put},
    {"alias", alias},
    {"factory", factory},
    {"like", like},
    {"reduction", reduction},
    {"whole", whole},
    {"placeholder", placeholder},
    {"end", end},
});

}  // namespace

ClassBuilder find_class(std::string_view word) {
  for (const std::span<const ClassRow>& rows : {std::span<const ClassRow>(kClasses), view_classes()}) {
    const auto found = std::ranges::find(rows, word, &ClassRow::word);
    if (found != rows.end()) return found->build;
  }
  return nullptr;
}

}  // namespace shadowgraph
