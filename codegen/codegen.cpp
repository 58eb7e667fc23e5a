#include "shadowgraph/codegen/codegen.h"

#include <ATen/core/Dict.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <filesystem>
#include <fnmatch.h>

#include "shadowgraph/graph/text.h"
#include "support/files.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

struct NamedValue {
  std::string name;
  ValueId value;
};

// The names of the graph's placeholders, outputs and gradients, as in run_by_name and forward().
std::vector<NamedValue> named_values(const Graph& graph) {
  std::vector<NamedValue> named;
  size_t outputs = 0;
  for (const NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    const auto arguments = graph.arguments(node);
    if (target.index <= target_of(Builtin::kInput).index) {
      named.push_back({graph.text(arguments[0].string), graph.results(node)[0].ref.value});
    } else if (target == target_of(Builtin::kOutput)) {
      for (const Argument& output : graph.list(arguments[0])) {
        const std::string name = "output" + std::to_string(outputs++);
        if (output.kind == ArgumentKind::kValue) named.push_back({name, output.ref.value});
      }
    } else if (target == target_of(Builtin::kGradient) && arguments[1].kind == ArgumentKind::kValue) {
      const NodeId parameter = graph.value(arguments[0].ref.value).producer;
      // A gradient of an unnamed tensor cannot be selected by name.
      if (graph.node(parameter).target.index > target_of(Builtin::kInput).index) continue;
      named.push_back({"gradient." + graph.text(graph.arguments(parameter)[0].string), arguments[1].ref.value});
    }
  }
  return named;
}

std::string some_names(const std::vector<NamedValue>& named) {
  std::string text;
  for (size_t i = 0; i < named.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + named[i].name;
  return text + (named.size() > 8 ? ", ... (" + std::to_string(named.size()) + ")" : "");
}

}  // namespace

void refuse_node(const Graph& graph, NodeId node, const std::string& what) {
  throw UnsupportedError("cannot write " + to_text(graph, node) + "\n  as code: " + what, node);
}

void choose_values(const Graph& graph, const std::vector<std::string>& patterns, CodegenOptions& options) {
  if (patterns.empty()) return;
  const std::vector<NamedValue> named = named_values(graph);
  const Numbering numbering = Numbering::of(graph);
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with('%')) {
      const auto number = parse_number<int64_t>(std::string_view(pattern).substr(1));
      if (!number || *number < 0 || *number >= static_cast<int64_t>(numbering.values().size())) {
        throw UnsupportedError("the graph has no value " + pattern + "; its text numbers them from %0 to %" +
                               std::to_string(static_cast<int64_t>(numbering.values().size()) - 1));
      }
      options.only.push_back(numbering.values()[static_cast<size_t>(*number)]);
      options.only_names.push_back("value" + pattern.substr(1));
      continue;
    }
    bool any = false;
    for (const NamedValue& value : named) {
      if (fnmatch(pattern.c_str(), value.name.c_str(), 0) != 0) continue;
      any = true;
      options.only.push_back(value.value);
      options.only_names.push_back(value.name);
    }
    if (!any) {
      throw UnsupportedError("no value of the graph is named '" + pattern + "'; the names are " + some_names(named) +
                             "; values can also be selected by number, as %12");
    }
  }
}

void write_code(const GeneratedCode& code, const std::string& directory) {
  namespace fs = std::filesystem;
  make_folder(directory);
  if (!code.constants_file.empty()) {
    c10::Dict<std::string, at::Tensor> tensors;
    for (const auto& [name, tensor] : code.constants) tensors.insert(name, tensor);
    // The format of torch.load and torch::jit::pickle_load.
    const std::vector<char> bytes = torch::jit::pickle_save(tensors);
    write_file((fs::path(directory) / code.constants_file).string(), std::string_view(bytes.data(), bytes.size()));
  }
  for (const auto& [name, text] : code.files) write_file((fs::path(directory) / name).string(), text);
}

}  // namespace shadowgraph
