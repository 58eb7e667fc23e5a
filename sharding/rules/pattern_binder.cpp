// Binds the patterns of a rule to the tensors of a call: finds which dimension is which factor, and how large factors
// are.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "shadowgraph/saturating.h"
#include "sharding/rules/node_factors.h"

namespace shadowgraph {

namespace {

constexpr int64_t kUnknown = -1;

// A tensor with the pattern that it must fit.
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
  // Patterns stand for the schema's tensors in order; those that are `out=` arguments are the results.
  void pair_up() {
    const NodeCall& call = builder_.call;
    const std::vector<Formal>& formals = call.target().signature().arguments;
    size_t next = 0;
    for (size_t i = 0; i < formals.size(); ++i) {
      if (!formals[i].type.is_tensor_like() || formals[i].out) continue;
      const std::vector<TensorFactors*> tensors = builder_.operands(static_cast<uint16_t>(i));
      if (next >= rule_.operands.size()) {
        if (!tensors.empty()) throw Misfit(fmt::format("it says nothing of {}", formals[i].name));
        continue;
      }
      for (TensorFactors* tensor : tensors) pair(*tensor, rule_.operands[next]);
      ++next;
    }
    if (next < rule_.operands.size()) {
      throw Misfit(fmt::format("it has {} operands, the operator {}", rule_.operands.size(), next));
    }
    for (TensorFactors& result : builder_.made.results) {
      if (result.argument >= rule_.results.size()) {
        throw Misfit(fmt::format("it says nothing of result {}", result.argument));
      }
      const TensorPattern& pattern = rule_.results[result.argument];
      for (const std::string& name : pattern.of) {
        const int at = call.position(name);
        if (at < 0) throw Misfit(fmt::format("there is no argument {}", name));
        result.of.push_back(static_cast<uint16_t>(at));
      }
      pair(result, pattern);
    }
  }

  void pair(TensorFactors& tensor, const TensorPattern& pattern) {
    tensor.added = pattern.added;
    tensor.same = pattern.same;
    // An absent tensor has nothing to cut: what autograd leaves out, torch.cat's empty tensors.
    const bool nothing = tensor.sizes.size() == 1 && tensor.sizes[0] == 0;
    if (pattern.same || nothing) {
      builder_.whole(tensor);
      return;
    }
    bound_.push_back({&tensor, &pattern});
  }

  // ---- How many dimensions each *row has
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
    // Rows that broadcast are as long as the longest.
    for (const Bound& bound : bound_) {
      const std::vector<DimPattern>& dims = bound.pattern->dims;
      const auto star = std::find_if(dims.begin(), dims.end(), [](const DimPattern& dim) { return dim.star; });
      if (star == dims.end() || !star->broadcast || star->factors.empty()) continue;
      int64_t& length = lengths_.try_emplace(star->factors[0], kUnknown).first->second;
      length = std::max(length, rank_of(bound) - static_cast<int64_t>(dims.size()) + 1);
    }
  }

  static int64_t rank_of(const Bound& bound) { return static_cast<int64_t>(bound.tensor->sizes.size()); }

  // Takes the length from what is left of a tensor's rank, or from the place of an anchor.
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

  // ---- Dimensions
  FactorId named(const std::string& name, int64_t extent) {
    const auto [found, is_new] = by_name_.try_emplace(name, FactorId{0});
    if (is_new) found->second = builder_.factor(name, extent);
    return found->second;
  }

  void spread(const Bound& bound) {
    const std::vector<DimPattern>& dims = bound.pattern->dims;
    const int64_t rank = rank_of(bound);
    int64_t fixed = 0;  // dimensions that are not in rows that may be shorter
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
      if (dim.star && dim.factors.empty()) {  // *_: what is left
        for (int64_t left = rank - fixed; left > 0; --left) whole(bound, d++);
      } else if (dim.star) {
        const int64_t length = length_of(dim);
        const int64_t here = dim.broadcast && !bound.pattern->aligned ? std::min(length, rank - fixed) : length;
        if (here < 0) misfit(bound);
        if (!dim.broadcast && d + length > rank) misfit(bound);
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
    if (found == lengths_.end()) throw Misfit(fmt::format("the length of *{} does not follow", dim.factors[0]));
    return found->second;
  }

  void whole(const Bound& bound, int64_t d) {
    if (d < 0 || d >= rank_of(bound)) misfit(bound);
    const auto dim = static_cast<size_t>(d);
    bound.tensor->dims[dim] = {builder_.factor("_", bound.tensor->sizes[dim], true)};
  }

  bool is_equal_kind(const std::string& name) const {
    const std::string row = name.substr(0, name.find('.'));
    return std::find(equal_.begin(), equal_.end(), row) != equal_.end();
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
      if (!is_equal_kind(names[0])) misfit(bound);
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

  // Solves for the one unknown factor: (g c) of 12 with g = 3 known has c = 4.
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
          throw Misfit(fmt::format("a dimension of {} has a factor of {}", size, known));
        }
        unknown->extent = size / known;
        changed = true;
      }
    }
    for (const Composite& composite : composites_) {
      int64_t product = 1;
      for (const FactorId f : composite.factors) {
        if (factors[f].extent == kUnknown) {
          throw Misfit(fmt::format("the extent of {} does not follow", factors[f].name));
        }
        product = saturating_multiply(product, factors[f].extent);
      }
      const int64_t size = composite.tensor->sizes[composite.dim];
      if (composite.broadcast && size <= 1 && product != size) continue;
      composite.tensor->dims[composite.dim] = composite.factors;
    }
    for (Factor& factor : factors) {
      if (factor.extent == kUnknown) factor.extent = 1;  // of size 1 wherever it is
    }
    for (const FactorId f : unequal_) factors[f].whole = true;
  }

  [[noreturn]] void misfit(const Bound& bound) const {
    throw Misfit(fmt::format("a tensor of sizes [{}] does not fit", fmt::join(bound.tensor->sizes, ", ")));
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

void bind_patterns(const RuleText& rule, FactorBuilder& builder) { PatternBinder(rule, builder).bind(); }

}  // namespace shadowgraph
