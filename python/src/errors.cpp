// Typed exceptions: what the C++ library throws arrives in Python as the class of the same name.
#include <torch/csrc/Exceptions.h>

#include "python/src/binding.h"
#include "python/src/tool.h"

namespace shadowgraph::python {
namespace {

// What libtorch's own functions let through with its Python class. Not the C++ class, too: libtorch's handlers do not match a
// type with two bases that are std::exception.
class Typed final : public torch::PyTorchError {
 public:
  Typed(const Error& error, PyObject* python) : PyTorchError(error.what()), python_(python) {}
  PyObject* python_type() override { return python_; }

 private:
  PyObject* python_;
};

thread_local int calls_into_cpp = 0;

// A class in C++ and in Python.
struct ErrorClass {
  PyObject* python;
  bool (*is)(const Error& error);
};
// Most derived first.
std::vector<ErrorClass>& classes() {
  static auto* all = new std::vector<ErrorClass>;
  return *all;
}

const ErrorClass& class_of(const Error& error) {
  for (const ErrorClass& entry : classes()) {
    if (entry.is(error)) return entry;
  }
  return classes().back();  // Error itself
}

template <class Class>
void add(py::module_& m, const char* name, const char* doc) {
  py::object base = py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
  if constexpr (!std::is_same_v<Class, Error>) base = m.attr("Error");
  const std::string full = std::string("shadowgraph.") + name;
  PyObject* python = PyErr_NewExceptionWithDoc(full.c_str(), doc, base.ptr(), nullptr);
  if (python == nullptr) throw py::error_already_set();
  m.attr(name) = py::reinterpret_borrow<py::object>(python);
  classes().insert(classes().begin(), {python, [](const Error& error) {
                                         if constexpr (std::is_same_v<Class, Error>) return true;
                                         return typeid(error) == typeid(Class) || dynamic_cast<const Class*>(&error);
                                       }});
}

}  // namespace

CppCall::CppCall() { ++calls_into_cpp; }
CppCall::~CppCall() { --calls_into_cpp; }
PythonCall::PythonCall() : before_(std::exchange(calls_into_cpp, 0)) {}
PythonCall::~PythonCall() { calls_into_cpp = before_; }

void bind_errors(py::module_& m) {
  add<Error>(m, "Error", "What every exception of shadowgraph is.");
  add<ParseError>(m, "ParseError", "A text or JSON that is no graph; the message has line and column.");
  add<FileError>(m, "FileError", "A file that cannot be read or written.");
  add<GraphError>(m, "GraphError",
                  "A graph that breaks an invariant, or an edit that would; nothing was changed then.");
  add<PassError>(m, "PassError",
                 "A pass that failed, the graph is as it was before; or a text that is no pipeline of passes.");
  add<NoRuleError>(m, "NoRuleError",
                   "An operator with neither shape rule, decomposition nor Meta kernel: register one "
                   "(torch.library.register_fake).");
  add<DataDependentError>(
      m, "DataDependentError",
      "The program reads data that a fake tensor does not have: item(), nonzero(), a mask as index.");
  add<UnsupportedError>(m, "UnsupportedError",
                        "Not done for this tensor or graph: a real tensor where a fake one is needed, a node without "
                        "kernel, code or layout, captures that are not one program.");
  add<DeferredError>(m, "DeferredError", "What deferred initialisation refuses, or weights that do not fit.");
  add<ReplayError>(m, "ReplayError", "A graph that cannot run here, or a run that failed; names the node.");
  add<OutOfMemoryError>(m, "OutOfMemoryError", "A device's memory does not do; has the figures of torch's.");
  add<NoPlanError>(
      m, "NoPlanError",
      "Nothing keeps within the memory, or the pins contradict each other; the message says what is in the "
      "way, or would fit.");

  // From functions of this extension, and from libtorch's.
  py::register_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const Error& error) {
      PyErr_SetString(class_of(error).python, error.what());
    }
  });
  set_error_translator([](const Error& error) {
    if (calls_into_cpp == 0) throw Typed(error, class_of(error).python);
  });
}

}  // namespace shadowgraph::python
