// What the files of the extension module share. The extension is thin: it holds objects of the library and asks them.
#pragma once

#include <nlohmann/json.hpp>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/shadowgraph.h"

namespace shadowgraph::python {

namespace py = pybind11;

void bind_errors(py::module_& m);
void bind_process(py::module_& m);
void bind_modes(py::module_& m);
void bind_capture(py::module_& m);
void bind_graph(py::module_& m);
void bind_pictures(py::module_& m);
void bind_passes(py::module_& m);
void bind_profile(py::module_& m);
void bind_profilers(py::module_& m);
void bind_deferred(py::module_& m);
void bind_table(py::module_& m);
void bind_replay(py::module_& m);
void bind_kernels(py::module_& m);
void bind_codegen(py::module_& m);
void bind_sizes(py::module_& m);
void bind_costs(py::module_& m);
void bind_sources(py::module_& m);
void bind_sharding(py::module_& m);
void bind_pipelines(py::module_& m);
void bind_plans(py::module_& m);
void bind_serving(py::module_& m);
void bind_shapes(py::module_& m);
void bind_rules(py::module_& m);

// Around functions of the library that run operators (py::call_guard<CppCall>): their errors stay what they are in C++,
// where the library catches some of them. Those of operators that Python calls itself go to Python at once.
class CppCall {
 public:
  CppCall();
  ~CppCall();
  CppCall(const CppCall&) = delete;
  CppCall& operator=(const CppCall&) = delete;
};

// Of the keywords of shadowgraph.fake and Capture, which are all given. Throws type_error for one of another type.
FakeTensorOptions fake_options(const std::string& device, const py::dict& given);
template <class T>
T keyword(const py::dict& given, const char* name) {
  try {
    return given[name].cast<T>();
  } catch (const py::cast_error&) {
    throw py::type_error(std::string(name) + " cannot be " + std::string(py::repr(given[name])));
  }
}
DeviceProfile device_profile_named(const std::string& name);  // an empty one is the default

// JSON as Python's own dicts and lists.
// Bytes of names that are not UTF-8 are replaced.
std::string json_text(const nlohmann::json& json);
py::object to_python(const nlohmann::json& json);

}  // namespace shadowgraph::python
