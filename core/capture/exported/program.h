// A torch.export archive (.pt2, a zip file) and the program read from it.
#pragma once

#include <caffe2/serialize/inline_container.h>
#include <nlohmann/json_fwd.hpp>

#include <vector>

#include "core/capture/exported/symbolic_size.h"

namespace shadowgraph {

class ExportArchive {
 public:
  // Reads only the zip directory. Throws FileError for a missing file, Error if it is no archive or has another layout.
  explicit ExportArchive(std::string path);

  // Checks the file's contents. Also accepts truncated archives and those of PyTorch 2.7 and AOTInductor, for which the
  // constructor has specific error messages. Never throws.
  static bool looks_like_archive(const std::string& path);

  const std::string& path() const { return path_; }
  // "model", the default of torch.export.save, or the only one.
  const std::string& model() const { return model_; }
  bool has(const std::string& record) const { return reader_->hasRecord(record); }
  // These throw Error if the record does not exist or is damaged.
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

// An exported program as plain structs, validated while it is read: every value is defined before its use, and every
// graph input is in the signature.
//
//     %linear = torch.ops.aten.linear.default(input=%x, weight=%p_weight)      one ExportedNode, two NamedOperands
//
// Values are numbered. Unknown operators and kinds of argument are kept and rejected when they are run, since part of a
// program may never run.

class ExportArchive;
struct ExportedGraph;

struct ExportedOperand {
  enum class Kind : uint8_t { kLiteral, kValue, kList, kGraph, kUnsupported };
  Kind kind = Kind::kLiteral;
  c10::IValue literal;  // dtypes, layouts and memory formats as integers; kUnsupported: a description
  uint32_t value = 0;   // an index into ExportedGraph::value_names
  std::vector<ExportedOperand> elements;
  std::shared_ptr<const ExportedGraph> graph;
};

struct NamedOperand {
  std::string name;  // of the schema's argument; empty for a positional argument
  ExportedOperand operand;
};

struct ExportedNode {
  std::string name;
  std::string target;  // "torch.ops.aten.linear.default", "_operator.add"
  std::vector<NamedOperand> inputs;
  std::vector<ExportedOperand> outputs;
  std::string source;            // "net.py:12", or empty
  uint32_t module_stack = 0;     // an index into SavedProgram::module_stacks
  std::vector<uint32_t> unused;  // values last used by this node
};

struct ExportedGraph {
  std::vector<ExportedOperand> inputs;
  std::vector<ExportedNode> nodes;
  std::vector<ExportedOperand> outputs;
  std::vector<std::string> value_names;
  std::vector<uint32_t> unused;  // inputs without a use
};

// One module in the module stack of a node.
struct SavedModuleCall {
  std::string key;  // differs for each call of the same module
  std::string path, class_name;
};

struct SavedGeometry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<SymbolicSize> sizes, strides;
  SymbolicSize offset;
  bool requires_grad = false;
};

// One input of the graph.
struct SavedInput {
  enum class Kind : uint8_t { kUser, kConstant, kParameter, kBuffer, kTensorConstant };
  Kind kind = Kind::kUser;
  std::string name;                       // in the graph
  std::string target;                     // "layers.0.weight"; empty for user inputs
  std::optional<SavedGeometry> geometry;  // of a tensor
  SymbolicSize number;                    // of an integer input
};

struct SavedOutput {
  enum class Kind : uint8_t { kUser, kBufferMutation, kParameterMutation, kUserInputMutation };
  Kind kind = Kind::kUser;
  std::string target;  // of a mutation: the buffer, parameter or input
};

// The record that holds a weight or constant.
struct SavedPayload {
  std::string record;
  SavedGeometry geometry;
};

struct SymbolRange {
  int64_t least = 0, most = INT64_MAX;
};

struct SavedProgram {
  ExportedGraph graph;
  std::vector<SavedInput> inputs;    // parallel to graph.inputs
  std::vector<SavedOutput> outputs;  // parallel to graph.outputs
  std::vector<std::vector<SavedModuleCall>> module_stacks;
  std::map<std::string, SavedPayload> payloads;  // by target
  std::vector<SavedInput> idle;                  // weights that the graph does not use, but the module holds
  std::map<std::string, SymbolRange> ranges;     // by symbol
};

// Throws Error that names the file and the location in it.
SavedProgram read_program(const ExportArchive& archive);

}  // namespace shadowgraph
