// Translates exceptions of the C++ library to Python classes of the same name.
#include <torch/csrc/Exceptions.h>

#include <algorithm>

#include "cli/output.h"
#include "python/src/binding.h"
#include "python/src/tool.h"

namespace shadowgraph::python {
namespace {

// Exception that libtorch's bindings translate to its Python class. Does not also derive from the C++ class: libtorch's
// handlers do not match a type with two std::exception bases.
class Typed final : public torch::PyTorchError {
 public:
  Typed(const Error& error, PyObject* python) : PyTorchError(cli::printable(error.what())), python_(python) {}
  PyObject* python_type() override { return python_; }

 private:
  PyObject* python_;
};

thread_local int calls_into_cpp = 0;

struct ErrorClass {
  PyObject* python;
  bool (*is)(const Error& error);
};
// Most derived first.
std::vector<ErrorClass>& classes() {
  static auto* all = new std::vector<ErrorClass>;
  return *all;
}

// The last one is Error itself.
const ErrorClass& class_of(const Error& error) {
  return *std::ranges::find_if(classes(), [&](const ErrorClass& entry) { return entry.is(error); });
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
  add<Error>(m, "Error", "Base class of all exceptions of shadowgraph.");
  // Messages have names from programs and files. Python prints them as they are.
  const auto text_of = [](const py::object& error) {
    const py::object text = py::handle(PyExc_RuntimeError).attr("__str__")(error);
    return cli::printable(text.attr("encode")("utf-8", "replace").cast<std::string>());
  };
  m.attr("Error").attr("__str__") = py::cpp_function(text_of, py::is_method(m.attr("Error")), py::name("__str__"));
  add<ParseError>(m, "ParseError", "Raised for invalid graph text or JSON; the message has line and column.");
  add<FileError>(m, "FileError", "Raised when a file cannot be read or written.");
  add<GraphError>(m, "GraphError",
                  "Raised for a graph that violates an invariant, and for an edit that would, which is not applied.");
  add<PassError>(m, "PassError",
                 "Raised when a pass fails, which leaves the graph unchanged, and for an invalid pass pipeline.");
  add<NoRuleError>(m, "NoRuleError",
                   "Raised for an operator without shape rule, decomposition or Meta kernel. Register one by "
                   "torch.library.register_fake.");
  add<DataDependentError>(
      m, "DataDependentError",
      "Raised when the program reads values that a fake tensor does not have: item(), nonzero(), a mask as index.");
  add<UnsupportedError>(m, "UnsupportedError",
                        "Raised for a tensor or graph that an operation does not support: a real tensor among fake "
                        "ones, a node without kernel, code or layout, captures of different programs.");
  add<DeferredError>(m, "DeferredError",
                     "Raised for calls that deferred initialization does not support, and for mismatched weights.");
  add<ReplayError>(m, "ReplayError", "Raised when a graph cannot be run or a run fails; names the node.");
  add<OutOfMemoryError>(m, "OutOfMemoryError",
                        "Raised when memory is exceeded; reports the same values as torch.OutOfMemoryError.");
  add<InfeasibleError>(
      m, "InfeasibleError",
      "Raised if no plan fits in memory or the pins are contradictory; the message has the obstacle, or settings that "
      "would fit.");

  m.def(
      "printable", [](const std::string& text) { return cli::printable(text); },
      "Escapes control characters, and what begins a command of continuous integration.", py::arg("text"));

  // Errors thrown by functions of this extension, and by operators called from libtorch's bindings.
  py::register_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const Error& error) {
      PyErr_SetString(class_of(error).python, cli::printable(error.what()).c_str());
    }
  });
  set_error_translator([](const Error& error) {
    if (calls_into_cpp == 0) throw Typed(error, class_of(error).python);
  });
}

}  // namespace shadowgraph::python
