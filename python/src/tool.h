// The command line tool inside the Python process (tool.cpp).
#pragma once

namespace shadowgraph::python {

// Guard for calls into Python from a function guarded by CppCall; restores the translation to Python exceptions.
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
