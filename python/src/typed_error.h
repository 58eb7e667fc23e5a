// Python classes for exceptions that only some bindings throw (python/src/errors.cpp has those of the whole library).
#pragma once

#include "python/src/binding.h"

namespace shadowgraph::python {

// What throws Class arrives in Python as m.name, derived from m.Error. After bind_errors; of a class and one derived
// from it, the base first.
template <class Class>
void add_error(py::module_& m, const char* name, const char* doc) {
  static PyObject* python = nullptr;  // kept for the life of the process, as errors.cpp keeps its own
  const std::string full = std::string("shadowgraph.") + name;
  python = PyErr_NewExceptionWithDoc(full.c_str(), doc, py::object(m.attr("Error")).ptr(), nullptr);
  if (python == nullptr) throw py::error_already_set();
  m.attr(name) = py::reinterpret_borrow<py::object>(python);
  py::register_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const Class& error) {
      PyErr_SetString(python, error.what());
    }
  });
}

}  // namespace shadowgraph::python
