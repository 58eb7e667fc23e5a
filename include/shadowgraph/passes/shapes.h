// Shape propagation: a graph's operators run again, on fake tensors, with other inputs.
//
//     auto shapes = ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[64,3,224,224]")}}});
//     shapes.tensor(value).sizes();      // the fake tensor of every value
//     shapes.baked();                    // recorded sizes that still stand in arguments
//     bool changed = shapes.apply(graph);
//
// The operators run, not the model: rules, decompositions and Meta kernels as in a capture, below autograd, in program
// order. A number that the model computed on the host from a size is a constant of the graph, and stays. A view to [8,
// 64] is one to [8, 64] however large the batch is now. Such baked-in sizes are found in three ways:
//
//   - an operator refuses its operands;
//   - its results no longer fit the graph;
//   - a size-like argument equals a recorded size that has changed.
//
// For sizes that follow the inputs, fit them from captures instead: SymbolicGraph.
//
// With the recorded inputs the graph comes out as it was, byte for byte. The idea is torch.fx's ShapeProp and
// FakeTensorProp. Linear; about 2 us a node.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

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
  // Sizes that depend on data, by name (shadowgraph/capture/fake.h); others as recorded.
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
                "new inputs, name=f32[8,3,64,64], separated by ';' (default: as captured)")
        .choice("baked", &ShapePropagationOptions::baked, {"report", "error"},
                "handling of captured sizes in arguments: report or error");
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

class ShapePropagation {
 public:
  // Throws UnsupportedError; Error for a name that no placeholder has.
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
// Throws what ShapePropagation::of throws; UnsupportedError for baked sizes, if they are to be errors.
ShapePropResult shape_prop(Graph& graph, const ShapePropagationOptions& options = {});

}  // namespace shadowgraph
