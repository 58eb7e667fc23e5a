// Runs the command line tool (cli/) in this process, with callbacks to Python for Python models.
#include "cli/tool.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/tool.h"

namespace shadowgraph::python {
namespace {

// Returns the result of a function of shadowgraph._tool. Python exceptions become Error.
template <class Result>
Result call_tool(const std::string& name, const nlohmann::json& request) {
  std::fflush(stdout);
  const py::gil_scoped_acquire gil;
  const PythonCall call;
  const py::module_ tool = py::module_::import("shadowgraph._tool");
  try {
    return tool.attr(name.c_str())(to_python(request)).template cast<Result>();
  } catch (const py::error_already_set& error) {
    throw Error(tool.attr("error_message")(error.value(), request.value("debug", false)).cast<std::string>());
  }
}

std::pair<Graph, double> capture(const nlohmann::json& request) {
  const auto [graph, seconds] = call_tool<std::pair<std::shared_ptr<Graph>, double>>("capture", request);
  return {clone(*graph), seconds};
}

int run_tool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "shadowgraph");
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  return with_cost_rules([&] {
    const py::gil_scoped_release no_gil;  // threads of the autograd engine need the GIL
    const CppCall call;
    const int code = cli::run_tool(static_cast<int>(arguments.size()), words.data());
    std::fflush(stdout);
    return code;
  });
}

}  // namespace

void bind_tool(py::module_& m) {
  cli::python() = {.capture = &capture,
                   .serve = [](const nlohmann::json& request) { return call_tool<Serving>("serve", request); },
                   .ask = &call_tool<std::string>};
  m.def("exit_on_interrupt", &exit_on_interrupt,
        "Ends this process by SIGINT with one line, without Python's KeyboardInterrupt.");
  m.def("run_tool", &run_tool, py::arg("arguments"), "Runs the command line tool and returns its exit code.");
}

}  // namespace shadowgraph::python
