// The same program with other sizes: by propagation, or for all sizes at once.
#pragma once

#include <ATen/core/Tensor.h>

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
#include "shadowgraph/fake.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Shape propagation: a graph's operators run again, on fake tensors, with other inputs.
//
//     auto shapes = ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[64,3,224,224]")}}});
//     shapes.tensor(value).sizes();      // the fake tensor of every value
//     shapes.baked();                    // recorded sizes that still stand in arguments
//     bool changed = shapes.apply(graph);
//
// The operators run, not the model: rules, decompositions and Meta kernels as in a capture, below autograd, in program
// order. What the model computed on the host from a size is in the graph as a number, and stays: a view to [8, 64] is
// one to [8, 64] however large the batch is now. Such baked-in sizes are found: where an operator refuses its operands,
// where its results no longer fit the graph, or where a size-like argument equals a recorded size that has changed. For
// sizes that follow the inputs, fit them from captures instead: shadowgraph/passes/shapes.h.
//
// With the recorded inputs the graph comes out as it was, byte for byte. The idea is torch.fx's ShapeProp and
// FakeTensorProp. Linear; about 2 us a node.

// The geometry that a placeholder shall have.
struct InputGeometry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::optional<std::vector<int64_t>> strides;  // elements; empty: contiguous
  int64_t offset = 0;                           // elements
  std::optional<c10::Device> device;            // empty: as recorded

  // From a real, fake or meta tensor; its data is not read. A meta tensor leaves the device as recorded.
  static InputGeometry of(const at::Tensor& tensor);
  // "f32[8,3,224,224]". Throws Error that shows the form.
  static InputGeometry of_text(std::string_view text);
};

struct ShapePropagationOptions {
  // By the name of the placeholder: an input, parameter, buffer, or "constant0", "constant1", ... in program order.
  // Others keep what is recorded.
  std::map<std::string, InputGeometry> inputs;
  DeviceProfile profile;
  // Sizes that depend on data, by name (shadowgraph/fake.h); others as recorded.
  NamedDataSizes data_sizes = {};
  // What the pass does about recorded sizes that stand in arguments: ShapePropagation::of lists them.
  enum class Baked : uint8_t { kReport, kError };
  Baked baked = Baked::kReport;

  // "x=f32[8,3,64,64];y=i64[8]", and back; strides, offset and device have no text. Throws Error.
  static std::map<std::string, InputGeometry> inputs_of(const std::string& text);
  static std::string text_of(const std::map<std::string, InputGeometry>& inputs);
  static OptionTable<ShapePropagationOptions> table() {
    return OptionTable<ShapePropagationOptions>()
        .parsed("inputs", &ShapePropagationOptions::inputs, &inputs_of, &text_of,
                "name=f32[8,3,64,64], several joined by ';'; others as recorded")
        .choice("baked", &ShapePropagationOptions::baked, {"report", "error"},
                "what to do about recorded sizes that stand in arguments: report or error");
  }
};

// A number in an argument that is a recorded size of an input whose size is now another.
struct BakedSize {
  NodeId node;
  std::string argument;   // "size[0]"
  int64_t number = 0;     //
  std::string dimension;  // "size 0 of input 'x'", or a product of such
  int64_t now = 0;        // what that dimension is now
};

// The operators cannot be run on the new inputs, or their results no longer fit the graph; names the node, and the
// sizes found baked-in at it or above it.
class ShapePropagationError : public Error {
 public:
  ShapePropagationError(const std::string& message, NodeId node, std::vector<BakedSize> baked)
      : Error(message), node_(node), baked_(std::move(baked)) {}
  NodeId node() const { return node_; }
  const std::vector<BakedSize>& baked() const { return baked_; }

 private:
  NodeId node_;
  std::vector<BakedSize> baked_;
};

class ShapePropagation {
 public:
  // Throws ShapePropagationError; Error for a name that no placeholder has.
  static ShapePropagation of(const Graph& graph, const ShapePropagationOptions& options = {});

  // Undefined for scalars. Aliases share a storage; the last geometry of a tensor changed in place is in its last
  // value.
  const at::Tensor& tensor(ValueId value) const { return tensors_[value]; }
  // Arguments by name and position that were not refused, yet look like recorded sizes that have changed. In the order
  // of the program; empty if no input changed.
  const std::vector<BakedSize>& baked() const { return baked_; }
  // Guards on sizes that have changed: a capture at the new sizes may take another path.
  const std::vector<std::string>& paths() const { return paths_; }

  // Writes geometry, storages and their bytes into the graph that was propagated, unedited since. Whether that changed
  // it.
  bool apply(Graph& graph) const;

 private:
  friend class ShapeRun;
  IdMap<ValueId, at::Tensor> tensors_;
  IdMap<ValueId, StorageId> storages_;  // where they are now; ids from storage_count() on are new
  std::vector<int64_t> bytes_;          // by storage, new ones included
  std::vector<StorageId> models_;       // of new storages: the one whose kind they take
  std::vector<BakedSize> baked_;
  std::vector<std::string> paths_;
};

// The pass `shape-prop`: propagates and applies.
struct ShapePropResult {
  bool changed = false;
  std::vector<BakedSize> baked;
  std::vector<std::string> paths;  // whose sizes have changed
  std::string report;              // the same for people
  PassResult summary() const;
};
// Throws what ShapePropagation::of throws; ShapePropagationError for baked sizes, if they are to be errors.
ShapePropResult shape_prop(Graph& graph, const ShapePropagationOptions& options = {});

// ---------------------------------------------------------------------------------------------------------------------
// Polynomials with exact coefficients in a few named sizes, and fitting one to samples.
//
//     PolynomialFit fit({{2}, {3}, {5}, {7}});              // four captures, at batch 2, 3, 5 and 7
//     auto p = fit.of({{64, 96, 160, 224}});                // 32*batch
//     p->evaluate({{512}});                                 // 16384
//
// Integers and rationals only: a fit is exact at every sample or there is none. The fewest terms win. There is at least
// one sample more than terms, and of each size one value more than it takes, so that a polynomial is never merely drawn
// through its points.

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

// ---------------------------------------------------------------------------------------------------------------------
// One graph for all batch sizes: captures at a few sizes, aligned, with every number that differs as a polynomial.
//
//     std::vector<SizedGraph> captures;
//     for (int64_t batch : {2, 3, 5, 7}) captures.push_back({{{"batch", batch}}, capture(batch)});
//     SymbolicGraph symbolic = SymbolicGraph::fit(std::move(captures));
//     Graph at_512 = symbolic.instantiate({{"batch", 512}});      // what a capture at 512 gives, without one
//
// Aligned means equal in all but numbers: nodes, operators, operands, regions, storages and their lives, saved tensors.
// Where a kernel or a branch was chosen by the size, the graphs differ, and fit() says at which node. Fitted are sizes,
// strides, offsets, bytes of storages, integers in arguments, floating-point arguments that are such an integer or the
// inverse of one (a mean's 1/n), sizes in guards and in the metadata. A number that no polynomial fits is an
// error that names it, so what instantiate() gives is wrong in one case only: the program changes its ways at a size
// that was not captured. difference_from() compares with a capture where it matters, such as the end of a range.
//
// Sizes 0 and 1 are not like others (broadcasting, strides): leave them out of the captures; sizes below the smallest
// captured are refused. If captures are at 64, 128 and 192, only multiples of 64 apart are answered: floor divisions
// and padding, as of attention's statistics or of strided convolutions, are polynomials there and nowhere else.
// docs/graph.md has the whole story.

using NamedSizes = std::map<std::string, int64_t>;

struct SizedGraph {
  NamedSizes sizes;
  Graph graph;
};

// Captures that do not align, numbers that do not fit, sizes that are not answered.
class SymbolicError : public Error {
 public:
  using Error::Error;
};

class SymbolicGraph {
 public:
  // All with the same names, at least three values of each size that varies, and two captures more than names. The
  // first graph is kept. Throws SymbolicError. Linear in nodes and captures; about 1 us a node and capture.
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

  // Deeply equal (shadowgraph/verify.h) to a capture at these sizes. Throws SymbolicError for sizes that are not
  // answered.
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
