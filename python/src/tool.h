// The tool in Python's process (tool.cpp).
#pragma once

#include <pybind11/pybind11.h>

namespace shadowgraph::python {

void bind_tool(pybind11::module_& m);

// Around Python that a function with CppCall calls: there errors go to Python again.
class PythonCall {
 public:
  PythonCall();
  ~PythonCall();
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;

 private:
  int before_;
};

}  // namespace shadowgraph::python
