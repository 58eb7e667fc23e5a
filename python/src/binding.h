// Shared declarations of the extension module, a thin binding layer over the library.
#pragma once

#include <nlohmann/json.hpp>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/shadowgraph.h"

namespace shadowgraph::python {

namespace py = pybind11;

// Each adds the classes and functions of one file to the module.
using Binding = void(py::module_& m);
Binding bind_errors, bind_contexts, bind_process, bind_modes, bind_graph, bind_pictures, bind_capture, bind_passes,
    bind_profile, bind_profilers, bind_deferred, bind_table, bind_kernels, bind_replay, bind_codegen, bind_sizes,
    bind_costs, bind_sources, bind_sharding, bind_pipelines, bind_plans, bind_serving, bind_shapes, bind_rules,
    bind_tool;

// Guard for library functions that run operators (py::call_guard<CppCall>). Inside, errors of operators stay C++
// exceptions, which the library may catch; otherwise they become Python exceptions immediately.
class CppCall {
 public:
  CppCall();
  ~CppCall();
  CppCall(const CppCall&) = delete;
  CppCall& operator=(const CppCall&) = delete;
};

// Options from the keywords of shadowgraph.fake and Capture, all of which must be given. Throws type_error for a value
// of a wrong type.
FakeTensorOptions fake_options(const std::string& device, const py::dict& given);
template <class T>
T keyword(const py::dict& given, const char* name) {
  try {
    return given[name].cast<T>();
  } catch (const py::cast_error&) {
    throw py::type_error("invalid value for " + std::string(name) + ": " + std::string(py::repr(given[name])));
  }
}
DeviceProfile device_profile_named(const std::string& name);  // "" for the default

// Converts text of a program or file. Invalid UTF-8 is replaced.
inline py::str text_object(std::string_view text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}
// Serializes to text. Invalid UTF-8 is replaced.
std::string json_text(const nlohmann::json& json);
py::object to_python(const nlohmann::json& json);  // dicts and lists

}  // namespace shadowgraph::python
