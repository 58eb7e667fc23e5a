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

void bind_errors(py::module_& m);
void bind_contexts(py::module_& m);
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
