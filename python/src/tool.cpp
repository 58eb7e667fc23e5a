// Runs the command line tool (cli/) in this process, with callbacks to Python for Python models.
#include "cli/tool.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/tool.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph::python {
namespace {

// Calls work(function, request) with the function `name` of shadowgraph._tool. Python exceptions become Error.
template <class Work>
auto call_python(const char* name, const nlohmann::json& request, Work work) {
  std::fflush(stdout);
  const py::gil_scoped_acquire gil;
  const PythonCall call;
  const py::module_ tool = py::module_::import("shadowgraph._tool");
  try {
    return work(tool.attr(name), to_python(request));
  } catch (const py::error_already_set& error) {
    throw Error(tool.attr("error_message")(error.value(), request.value("debug", false)).cast<std::string>());
  }
}

std::pair<Graph, double> capture(const nlohmann::json& request) {
  return call_python("capture", request, [](const py::object& function, const py::object& argument) {
    const auto [graph, seconds] = function(argument).cast<std::pair<std::shared_ptr<Graph>, double>>();
    return std::pair(clone(*graph), seconds);
  });
}

Serving serve_model(const nlohmann::json& request) {
  return call_python("serve", request, [](const py::object& function, const py::object& argument) {
    return function(argument).cast<Serving>();
  });
}

std::string call_for_text(const std::string& name, const nlohmann::json& request) {
  return call_python(name.c_str(), request, [](const py::object& function, const py::object& argument) {
    return function(argument).cast<std::string>();
  });
}

int run_tool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "shadowgraph");
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  begin_cost_rules();
  int code = 0;
  {
    const py::gil_scoped_release no_gil;  // threads of the autograd engine need the GIL
    const CppCall call;
    code = cli::run_tool(static_cast<int>(arguments.size()), words.data());
    std::fflush(stdout);
  }
  end_cost_rules();
  return code;
}

}  // namespace

void bind_tool(py::module_& m) {
  cli::python() = {.capture = &capture, .serve = &serve_model, .ask = &call_for_text};
  m.def("exit_on_interrupt", &exit_on_interrupt,
        "Ends this process by SIGINT with one line, without Python's KeyboardInterrupt.");
  m.def("run_tool", &run_tool, py::arg("arguments"), "Runs the command line tool and returns its exit code.");
}

}  // namespace shadowgraph::python
