// Polynomials with exact coefficients in a few named sizes, and fitting one to samples.
//
//     PolynomialFit fit({{2}, {3}, {5}, {7}});              // four captures, at batch 2, 3, 5 and 7
//     auto p = fit.of({{64, 96, 160, 224}});                // 32*batch
//     p->evaluate({{512}});                                 // 16384
//
// Only integers and rationals occur: a fit is exact at every sample or there is none. The fewest terms win. There is at
// least one sample more than terms, and one value more of each size than it takes. So a polynomial is never merely
// drawn through its points.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

class Polynomial {
 public:
  static constexpr size_t kMaxVariables = 4;
  using Exponents = std::array<uint8_t, kMaxVariables>;
  struct Term {
    int64_t coefficient = 0;
    Exponents exponents{};
    friend bool operator==(const Term&, const Term&) = default;
  };

  // The sum of `terms` over `denominator`.
  explicit Polynomial(std::vector<Term> terms = {}, int64_t denominator = 1);
  static Polynomial constant(int64_t value) { return Polynomial(std::vector<Term>{{value, {}}}); }

  // Throws Error if the value is no integer there, or larger than an int64.
  int64_t evaluate(std::span<const int64_t> sizes) const;
  int64_t evaluate(std::initializer_list<int64_t> sizes) const {
    return evaluate(std::span<const int64_t>(sizes.begin(), sizes.size()));
  }
  bool is_constant() const;
  std::span<const Term> terms() const { return terms_; }
  int64_t denominator() const { return denominator_; }
  // "4*batch*seq^2 + 8", "(batch^2 + batch)/2"; highest powers first.
  std::string to_text(std::span<const std::string> names) const;
  friend bool operator==(const Polynomial&, const Polynomial&) = default;

 private:
  std::vector<Term> terms_;  // without zeros, highest powers first
  int64_t denominator_ = 1;
};

class PolynomialFit {
 public:
  // One point per sample, all with the same number of coordinates, at most Polynomial::kMaxVariables. Throws Error
  // otherwise, and for equal points.
  explicit PolynomialFit(std::vector<std::vector<int64_t>> points);
  ~PolynomialFit();
  PolynomialFit(PolynomialFit&&) noexcept;
  PolynomialFit& operator=(PolynomialFit&&) noexcept;

  // The polynomial that has these values at the points, one per point; empty if none with few enough terms has.
  std::optional<Polynomial> of(std::span<const int64_t> values) const;
  std::optional<Polynomial> of(std::initializer_list<int64_t> values) const {
    return of(std::span<const int64_t>(values.begin(), values.size()));
  }

 private:
  struct Basis;
  std::vector<std::vector<int64_t>> points_;
  std::vector<int64_t> origin_;  // fitting is done in (size - origin) / step: small numbers
  std::vector<int64_t> step_;
  std::vector<std::unique_ptr<const Basis>> bases_;  // fewest terms first
};

// One graph for all batch sizes: captures at a few sizes, aligned, with every number that differs as a polynomial.
//
//     std::vector<SizedGraph> captures;
//     for (int64_t batch : {2, 3, 5, 7}) captures.push_back({{{"batch", batch}}, capture(batch)});
//     SymbolicGraph symbolic = SymbolicGraph::fit(std::move(captures));
//     Graph at_512 = symbolic.instantiate({{"batch", 512}});      // what a capture at 512 gives, without one
//
// Aligned means equal in all but numbers: nodes, operators, operands, regions, storages and their lives, saved tensors.
// Where a kernel or a branch was chosen by the size, the graphs differ, and fit() says at which node. These numbers are
// fitted:
//
//   - sizes, strides, offsets, bytes of storages, integers in arguments;
//   - floating-point arguments that are such an integer or the inverse of one (a mean's 1/n);
//   - sizes in guards and in the metadata.
//
// A number that no polynomial fits is an error that names it. So instantiate() gives something wrong in one case only:
// the program changes its ways at a size that was not captured. difference_from() compares with a capture where it
// matters, such as the end of a range.
//
// Sizes 0 and 1 are not like others (broadcasting, strides): leave them out of the captures. Sizes below the smallest
// captured are refused. If captures are at 64, 128 and 192, only multiples of 64 apart are answered. Floor divisions
// and padding, as of attention's statistics or of strided convolutions, are polynomials there and nowhere else.
// docs/graph.md has the whole story.

using NamedSizes = std::map<std::string, int64_t>;

struct SizedGraph {
  NamedSizes sizes;
  Graph graph;
};

class SymbolicGraph {
 public:
  // All with the same names, at least three values of each size that varies, and two captures more than names. The
  // first graph is kept. Throws UnsupportedError. Linear in nodes and captures; about 1 us a node and capture.
  static SymbolicGraph fit(std::vector<SizedGraph> captures);
  ~SymbolicGraph();
  SymbolicGraph(SymbolicGraph&&) noexcept;
  SymbolicGraph& operator=(SymbolicGraph&&) noexcept;

  // Which sizes are answered.
  struct Dimension {
    std::string name;
    int64_t smallest = 0;
    int64_t step = 1;     // sizes are smallest + k * step
    int64_t largest = 0;  // captured; beyond it nothing was checked
  };
  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  // Why these sizes are not answered; empty if they are.
  std::optional<std::string> refusal(const NamedSizes& sizes) const;

  // Deeply equal (shadowgraph/graph/verify.h) to a capture at these sizes. Throws UnsupportedError for sizes that are
  // not answered.
  Graph instantiate(const NamedSizes& sizes) const;
  // The first difference between instantiate(sizes) and a capture there; empty if it is as foretold.
  std::optional<std::string> difference_from(const NamedSizes& sizes, const Graph& capture) const;

  // A graph that is rewritten in place for one size after another: microseconds, not a copy. The graph must not be
  // edited, and ids in it are stable. Must not outlive the SymbolicGraph.
  class Instance {
   public:
    explicit Instance(const SymbolicGraph& symbolic);
    const Graph& at(const NamedSizes& sizes);
    const Graph& graph() const { return graph_; }

   private:
    friend class SymbolicGraph;
    const SymbolicGraph& symbolic_;
    Graph graph_;
    std::vector<std::string> metadata_keys_;  // in the order of lines
    std::vector<int64_t*> integers_;          // parallel to SymbolicGraph::integers_
    std::vector<double*> reals_;
  };

  // The first capture, whose ids the questions below are about.
  const Graph& base() const { return base_; }
  Polynomial size(ValueId value, size_t dimension) const;
  Polynomial stride(ValueId value, size_t dimension) const;
  Polynomial offset(ValueId value) const;
  Polynomial bytes(StorageId storage) const;
  // "f32[batch,64*seq]", strides left out.
  std::string type_text(ValueId value) const;
  // For people: a line per node with the types of its results, and the storages whose bytes vary.
  std::string to_text() const;
  // Different polynomials among all numbers, constants left out.
  const std::vector<Polynomial>& polynomials() const { return polynomials_; }

 private:
  // Number `index` in the order in which a graph is walked is polynomial `polynomial`; a real may be its inverse.
  struct Varying {
    uint32_t index = 0;
    uint32_t polynomial = 0;
    bool inverse = false;
  };
  struct VaryingText {
    uint32_t index = 0;                 // among texts
    std::vector<std::string> pieces;    // around the numbers
    std::vector<uint32_t> polynomials;  //
  };
  class Fit;
  SymbolicGraph() = default;
  std::vector<int64_t> values_at(const NamedSizes& sizes) const;
  Polynomial number(uint32_t index, int64_t constant) const;

  Graph base_;
  std::vector<Dimension> dimensions_;
  std::vector<Polynomial> polynomials_;
  std::vector<Varying> integers_;  // ascending
  std::vector<Varying> reals_;
  std::vector<VaryingText> texts_;
  IdMap<ValueId, uint32_t> value_numbers_;  // index of a value's first number: sizes, strides, offset
  IdMap<StorageId, uint32_t> storage_numbers_;
};

}  // namespace shadowgraph
