// Shape propagation: re-runs a graph's operators on fake tensors with other input shapes.
//
// Only the operators run, not the model, with rules, decompositions and Meta kernels as in a capture, below autograd,
// in program order. Numbers that the model computed on the host from a size are constants of the graph and remain: a
// view to [8, 64] is one to [8, 64] regardless of the new batch size. Such baked-in sizes are detected if an operator
// raises an error for its operands, if its results no longer match the graph, or if a size-like argument equals a
// recorded size that has changed. For sizes that depend on the inputs, fit a SymbolicGraph to several captures instead.
//
// With the recorded input shapes, the graph is unchanged. Linear; about 2 us a node.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// New geometry of a placeholder.
struct InputGeometry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::optional<std::vector<int64_t>> strides;  // elements; std::nullopt: contiguous
  int64_t offset = 0;                           // elements
  std::optional<c10::Device> device;            // std::nullopt: as recorded

  // Takes the geometry of a real, fake or meta tensor, without reading data. The device of a meta tensor is ignored.
  static InputGeometry of(const at::Tensor& tensor);
  // Parses "f32[8,3,224,224]". Throws Error that shows the syntax.
  static InputGeometry of_text(std::string_view text);
};

struct ShapePropagationOptions {
  // By name of an input, parameter, buffer, or "constant0", "constant1", ... in program order. Others are unchanged.
  std::map<std::string, InputGeometry> inputs;
  DeviceProfile profile;
  // Data-dependent sizes by name (shadowgraph/capture/fake.h); default: as recorded.
  NamedDataSizes data_sizes = {};
  // Treatment of recorded sizes that remain in arguments.
  enum class Baked : uint8_t { kReport, kError };
  Baked baked = Baked::kReport;

  // Convert to and from "x=f32[8,3,64,64];y=i64[8]"; strides, offset and device have no text form. Throws Error.
  static std::map<std::string, InputGeometry> inputs_of(const std::string& text);
  static std::string text_of(const std::map<std::string, InputGeometry>& inputs);
  static OptionTable<ShapePropagationOptions> table() {
    return OptionTable<ShapePropagationOptions>()
        .parsed("inputs", &ShapePropagationOptions::inputs, &inputs_of, &text_of,
                "New inputs: name=f32[8,3,64,64], separated by ';' (default: as recorded)")
        .choice("baked", &ShapePropagationOptions::baked, {"report", "error"},
                "Report recorded sizes that are baked into arguments, or fail with an error");
  }
};

// A number in an argument that equals a recorded size of an input whose size has changed.
struct BakedSize {
  NodeId node;
  std::string argument;   // "size[0]"
  int64_t number = 0;     //
  std::string dimension;  // "size 0 of input 'x'", or a product of several
  int64_t now = 0;        // new value of that dimension
};

class ShapePropagation {
 public:
  // Throws UnsupportedError; Error if there is no placeholder of a given name.
  static ShapePropagation of(const Graph& graph, const ShapePropagationOptions& options = {});

  // Returns the fake tensor of a value; undefined for scalars. Aliases share a storage. For a tensor whose geometry was
  // changed in place, its last value has the final geometry.
  const at::Tensor& tensor(ValueId value) const { return tensors_[value]; }
  // Arguments, in program order, that caused no error but equal recorded sizes that have changed.
  const std::vector<BakedSize>& baked() const { return baked_; }
  // Guards on sizes that have changed: a capture with the new sizes may take another path.
  const std::vector<std::string>& paths() const { return paths_; }

  // Writes geometry, storages and bytes to the propagated graph, not edited since. Returns whether it changed.
  bool apply(Graph& graph) const;

 private:
  friend class ShapeRun;
  IdMap<ValueId, at::Tensor> tensors_;
  IdMap<ValueId, StorageId> storages_;  // current storage; ids from storage_count() on are new
  std::vector<int64_t> bytes_;          // by storage, including new ones
  std::vector<StorageId> models_;       // by new storage: the one whose kind it has
  std::vector<BakedSize> baked_;
  std::vector<std::string> paths_;
};

// The pass `shape-prop`: shape propagation followed by apply().
struct ShapePropResult {
  bool changed = false;
  std::vector<BakedSize> baked;
  std::vector<std::string> paths;  // see ShapePropagation::paths
  std::string report;              // both as text
  PassResult summary() const;
};
// Throws the errors of ShapePropagation::of; UnsupportedError for baked-in sizes, with Baked::kError.
ShapePropResult shape_prop(Graph& graph, const ShapePropagationOptions& options = {});

}  // namespace shadowgraph
