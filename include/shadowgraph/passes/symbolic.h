// Symbolic graphs: graphs whose sizes are polynomials in a few named sizes, fitted to several captures.
//
// Arithmetic is exact (integers and rationals): a fit equals all samples, or there is none. The polynomial with the
// fewest terms is chosen. There must be at least one sample more than terms, and one value more of each size than its
// degree requires, so that a fit is always overdetermined.
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

  // Throws Error if the value is not an integer, or does not fit in int64.
  int64_t evaluate(std::span<const int64_t> sizes) const;
  int64_t evaluate(std::initializer_list<int64_t> sizes) const {
    return evaluate(std::span<const int64_t>(sizes.begin(), sizes.size()));
  }
  bool is_constant() const;
  std::span<const Term> terms() const { return terms_; }
  int64_t denominator() const { return denominator_; }
  // Returns "4*batch*seq^2 + 8", "(batch^2 + batch)/2"; highest powers first.
  std::string to_text(std::span<const std::string> names) const;
  friend bool operator==(const Polynomial&, const Polynomial&) = default;

 private:
  std::vector<Term> terms_;  // without zeros, highest powers first
  int64_t denominator_ = 1;
};

class PolynomialFit {
 public:
  // One point per sample, of one dimension, at most Polynomial::kMaxVariables. Throws Error, also for duplicates.
  explicit PolynomialFit(std::vector<std::vector<int64_t>> points);
  ~PolynomialFit();
  PolynomialFit(PolynomialFit&&) noexcept;
  PolynomialFit& operator=(PolynomialFit&&) noexcept;

  // Returns the polynomial with these values at the points, or std::nullopt if there is none with few enough terms.
  std::optional<Polynomial> of(std::span<const int64_t> values) const;
  std::optional<Polynomial> of(std::initializer_list<int64_t> values) const {
    return of(std::span<const int64_t>(values.begin(), values.size()));
  }

 private:
  struct Basis;
  std::vector<std::vector<int64_t>> points_;
  std::vector<int64_t> origin_;  // fits use (size - origin) / step, to keep numbers small
  std::vector<int64_t> step_;
  std::vector<std::unique_ptr<const Basis>> bases_;  // fewest terms first
};

// A graph for all sizes: captures at a few sizes are aligned, and every number that differs becomes a polynomial.
//
// Captures are aligned if they are equal except for numbers: nodes, operators, operands, regions, storages and
// lifetimes, saved tensors. If a kernel or branch depends on the size, the graphs differ, and fit() reports the node.
// Polynomials are fitted to sizes, strides, offsets, bytes of storages and integers in arguments; to floating-point
// arguments that are such an integer or the inverse of one (1/n in a mean); and to sizes in guards and in the metadata.
// A number that does not fit a polynomial is an error that names it. Hence instantiate() is wrong only if the program
// behaves differently at a size that was not captured; difference_from() compares with a capture.
//
// Sizes 0 and 1 are special (broadcasting, strides) and should not be used for captures. Sizes below the smallest
// captured one are rejected. If captures are at 64, 128 and 192, only multiples of 64 are supported, because floor
// division and padding (in attention statistics, strided convolutions) are polynomials only there. See docs/graph.md.

using NamedSizes = std::map<std::string, int64_t>;

struct SizedGraph {
  NamedSizes sizes;
  Graph graph;
};

class SymbolicGraph {
 public:
  // All captures must have the same size names, at least three values of each varying size, and two captures more than
  // names. The first graph is kept. Throws UnsupportedError. Linear in nodes and captures; about 1 us each.
  static SymbolicGraph fit(std::vector<SizedGraph> captures);
  ~SymbolicGraph();
  SymbolicGraph(SymbolicGraph&&) noexcept;
  SymbolicGraph& operator=(SymbolicGraph&&) noexcept;

  // Range of supported sizes.
  struct Dimension {
    std::string name;
    int64_t smallest = 0;
    int64_t step = 1;     // sizes are smallest + k * step
    int64_t largest = 0;  // largest captured size; larger ones are extrapolated
  };
  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  // Returns the reason that the sizes are not supported, or std::nullopt if they are.
  std::optional<std::string> refusal(const NamedSizes& sizes) const;

  // Returns a graph structurally equal to a capture at these sizes. Throws UnsupportedError for unsupported sizes.
  Graph instantiate(const NamedSizes& sizes) const;
  // Returns the first difference between instantiate(sizes) and a capture, or std::nullopt if they are equal.
  std::optional<std::string> difference_from(const NamedSizes& sizes, const Graph& capture) const;

  // A graph that is rewritten in place for each size, in microseconds instead of a copy. It must not be edited; its ids
  // are stable. Must not outlive the SymbolicGraph.
  class Instance {
   public:
    explicit Instance(const SymbolicGraph& symbolic);
    const Graph& at(const NamedSizes& sizes);
    const Graph& graph() const { return graph_; }

   private:
    friend class SymbolicGraph;
    const SymbolicGraph& symbolic_;
    Graph graph_;
    std::vector<std::string> metadata_keys_;  // in order of lines
    std::vector<int64_t*> integers_;          // parallel to SymbolicGraph::integers_
    std::vector<double*> reals_;
  };

  // The first capture, to which the ids below refer.
  const Graph& base() const { return base_; }
  Polynomial size(ValueId value, size_t dimension) const;
  Polynomial stride(ValueId value, size_t dimension) const;
  Polynomial offset(ValueId value) const;
  Polynomial bytes(StorageId storage) const;
  // Returns "f32[batch,64*seq]", without strides.
  std::string type_text(ValueId value) const;
  // Formats one line per node with the types of its results, and the storages with varying bytes.
  std::string to_text() const;
  // All distinct non-constant polynomials.
  const std::vector<Polynomial>& polynomials() const { return polynomials_; }

 private:
  // The number at position `index` of a graph traversal is polynomial `polynomial`; a real may be its inverse.
  struct Varying {
    uint32_t index = 0;
    uint32_t polynomial = 0;
    bool inverse = false;
  };
  struct VaryingText {
    uint32_t index = 0;                 // index among texts
    std::vector<std::string> pieces;    // text around the numbers
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
