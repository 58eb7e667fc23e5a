// Rows of Graph.print_tabular.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include <array>

#include "cli/output.h"
#include "python/src/graph_parts.h"

namespace shadowgraph::python {
namespace {

class Rows {
 public:
  explicit Rows(const Graph& graph) : graph_(graph), numbering_(Numbering::of(graph)) {}

  // name, operator, arguments, results, module, phase
  std::array<std::string, 6> of(NodeId node) const {
    std::string results;
    graph_.for_each_output(node, [&](ValueId value) {
      results += fmt::format("{}%{} {}", results.empty() ? "" : ", ", numbering_.of(value), type_text(graph_, value));
    });
    return {fmt::format("n{}", numbering_.of(node)), graph_.target(node).name(),
            cli::printable(arguments(node)),         results,
            cli::printable(module_of(graph_, node)), cli::printable(graph_.phase_name(graph_.node(node).phase))};
  }

 private:
  std::string arguments(NodeId node) const {
    const auto& formals = graph_.target(node).signature().arguments;
    const std::span<const Argument> given = graph_.arguments(node);
    std::string text;
    for (size_t i = 0; i < given.size(); ++i) {
      const bool keyword = i < formals.size() && formals[i].keyword_only;
      if (keyword && given[i].kind == ArgumentKind::kNone) continue;
      if (!text.empty()) text += ", ";
      if (keyword) text += formals[i].name + "=";
      text += text_of(given[i]);
    }
    return text;
  }

  std::string text_of(const Argument& argument) const {
    switch (argument.kind) {
      case ArgumentKind::kNone:
        return "None";
      case ArgumentKind::kValue:
        return fmt::format("%{}", numbering_.of(argument.ref.value));
      case ArgumentKind::kInt:
        return fmt::format("{}", argument.i);
      case ArgumentKind::kFloat:
        return fmt::format("{}", argument.d);
      case ArgumentKind::kBool:
        return argument.b ? "True" : "False";
      case ArgumentKind::kComplex: {
        const auto parts = graph_.complex_parts(argument);
        return fmt::format("({}{:+}j)", parts[0], parts[1]);
      }
      case ArgumentKind::kString:
        return fmt::format("'{}'", graph_.text_or_empty(argument.string));
      case ArgumentKind::kOpaque:
        return fmt::format("<{}>", graph_.text_or_empty(argument.string));
      case ArgumentKind::kDevice:
        return argument.device().str();
      case ArgumentKind::kGenerator:
        return fmt::format("<generator {}>", argument.device().str());
      case ArgumentKind::kConstant:
        return "<constant>";
      case ArgumentKind::kIntList:
        return fmt::format("[{}]", fmt::join(graph_.ints(argument), ", "));
      case ArgumentKind::kList: {
        std::vector<std::string> elements;
        for (const Argument& element : graph_.list(argument)) elements.push_back(text_of(element));
        return fmt::format("[{}]", fmt::join(elements, ", "));
      }
    }
    return {};
  }

  const Graph& graph_;
  const Numbering numbering_;
};

}  // namespace

void bind_table(py::module_& m) {
  m.def(
      "table_rows",
      [](const Graph& graph) {
        const Rows rows(graph);
        std::vector<std::array<std::string, 6>> all;
        all.reserve(graph.node_count());
        for (const NodeId node : graph.nodes()) all.push_back(rows.of(node));
        return all;
      },
      py::arg("graph"), "Returns [name, operator, arguments, results, module, phase] of each node, in program order.");
}

}  // namespace shadowgraph::python
