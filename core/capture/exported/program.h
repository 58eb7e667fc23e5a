// A torch.export archive (.pt2), a zip file of PyTorch's, and the program that is read from it. Internal to core/exported.
#pragma once

#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <nlohmann/json_fwd.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/capture/exported/symbolic_size.h"

namespace shadowgraph {

class ExportArchive {
 public:
  // Opening reads only the zip's directory. Throws FileError if there is no such file, Error if it is no archive of
  // torch.export, or one of another layout.
  explicit ExportArchive(std::string path);

  // Judges by what the file holds. It also accepts torn archives that begin as one, and those of PyTorch 2.7 and
  // AOTInductor, which this class refuses in words of their own. Never throws.
  static bool looks_like_one(const std::string& path);

  const std::string& path() const { return path_; }
  // "model", as torch.export.save names it, or the only one.
  const std::string& model() const { return model_; }
  bool has(const std::string& record) const { return reader_->hasRecord(record); }
  // These throw Error if there is no such record, or it is damaged.
  size_t size_of(const std::string& record) const;
  std::string bytes_of(const std::string& record) const;
  nlohmann::json json_of(const std::string& record) const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;
  void find_model();

  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  size_t file_bytes_ = 0;
  std::string model_;
};

// Holds an exported program as plain structs, checked while it is read. Every value is made before it is used, and
// every input of the graph has its line in the signature. Internal to core/exported.
//
//     %linear = torch.ops.aten.linear.default(input=%x, weight=%p_weight)      one ExportedNode, two NamedOperands
//
// Names of values are numbers here. An unknown operator or kind of argument is kept and refused when it is run: a
// program may hold more than what runs.

class ExportArchive;
struct ExportedGraph;

struct ExportedOperand {
  enum class Kind : uint8_t { kLiteral, kValue, kList, kGraph, kUnsupported };
  Kind kind = Kind::kLiteral;
  c10::IValue literal;  // dtypes, layouts and memory formats are integers, as for operators; kUnsupported: what it is
  uint32_t value = 0;   // an index into ExportedGraph::value_names
  std::vector<ExportedOperand> elements;
  std::shared_ptr<const ExportedGraph> graph;
};

struct NamedOperand {
  std::string name;  // of the schema's argument; empty for a positional argument of what has no schema
  ExportedOperand operand;
};

struct ExportedNode {
  std::string name;
  std::string target;  // "torch.ops.aten.linear.default", "_operator.add"
  std::vector<NamedOperand> inputs;
  std::vector<ExportedOperand> outputs;
  std::string source;            // "net.py:12", or empty
  uint32_t module_stack = 0;     // an index into SavedProgram::module_stacks
  std::vector<uint32_t> unused;  // values that nothing uses after this node
};

struct ExportedGraph {
  std::vector<ExportedOperand> inputs;
  std::vector<ExportedNode> nodes;
  std::vector<ExportedOperand> outputs;
  std::vector<std::string> value_names;
  std::vector<uint32_t> unused;  // inputs that nothing uses
};

// One module on the way to a node.
struct SavedModuleCall {
  std::string key;  // another one for another call of the same module
  std::string path;
  std::string class_name;
};

struct SavedGeometry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<SymbolicSize> sizes;
  std::vector<SymbolicSize> strides;
  SymbolicSize offset;
  bool requires_grad = false;
};

// One input of the graph.
struct SavedInput {
  enum class Kind : uint8_t { kUser, kConstant, kParameter, kBuffer, kTensorConstant };
  Kind kind = Kind::kUser;
  std::string name;                       // in the graph
  std::string target;                     // "layers.0.weight", empty for the user's
  std::optional<SavedGeometry> geometry;  // of a tensor
  SymbolicSize number;                    // of an integer of the user's
};

struct SavedOutput {
  enum class Kind : uint8_t { kUser, kBufferMutation, kParameterMutation, kUserInputMutation };
  Kind kind = Kind::kUser;
  std::string target;  // of a mutation: of the buffer or parameter, or the name of the input
};

// Where the bytes of a weight or constant lie.
struct SavedPayload {
  std::string record;
  SavedGeometry geometry;
};

struct SymbolRange {
  int64_t least = 0;
  int64_t most = INT64_MAX;
};

struct SavedProgram {
  ExportedGraph graph;
  std::vector<SavedInput> inputs;    // parallel to graph.inputs
  std::vector<SavedOutput> outputs;  // parallel to graph.outputs
  std::vector<std::vector<SavedModuleCall>> module_stacks;
  std::map<std::string, SavedPayload> payloads;  // by target
  std::vector<SavedInput> idle;  // weights that the graph does not take: the module holds them all the same
  std::map<std::string, SymbolRange> ranges;  // by symbol
};

// Throws Error that names the file and the place in it.
SavedProgram read_program(const ExportArchive& archive);

}  // namespace shadowgraph
