// Names of torch.fx nodes, recorded with the captured nodes that they create (shadowgraph.from_fx).
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"

namespace shadowgraph::python {
namespace {

thread_local std::string current_node;  // "name\nfile:line"

std::string location() { return current_node; }

}  // namespace

void bind_sources(py::module_& m) {
  m.def(
      "name_nodes",
      [] {
        Capture* const session = Capture::current();
        if (session == nullptr) throw Error("no capture is active on this thread");
        current_node.clear();
        session->set_locate(&location);
      },
      "Makes the active capture of this thread take source locations from set_node_name.");
  m.def(
      "set_node_name", [](const std::string& name, const std::string& source) { current_node = name + "\n" + source; },
      py::arg("name"), py::arg("source"));
  m.def(
      "take_node_names",
      [](Graph& graph, const std::string& key) {
        for (const NodeId node : graph.nodes()) {
          const std::string text(graph.text_or_empty(graph.node(node).source));
          const size_t end = text.find('\n');
          if (end == std::string::npos) continue;
          graph.set_note(node, key, text.substr(0, end));
          graph.set_source(node, text.substr(end + 1));
        }
      },
      py::arg("graph"), py::arg("key"), "Splits source locations: the name becomes a note, the rest the source.");
}

}  // namespace shadowgraph::python
