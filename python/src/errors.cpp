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
void add(py::module_& m, const char* name, const char* base, const char* doc) {
  py::object bases = py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
  if (base != nullptr) bases = m.attr(base);
  const std::string full = std::string("shadowgraph.") + name;
  PyObject* python = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
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
  add<Error>(m, "Error", nullptr, "What every exception of shadowgraph is.");
  add<ParseError>(m, "ParseError", "Error", "A text or JSON that is no graph; the message has line and column.");
  add<VerifyError>(m, "VerifyError", "Error", "A graph that breaks an invariant; the message lists every violation.");
  add<GraphEditError>(m, "GraphEditError", "Error", "An edit that would leave the graph broken; nothing was changed.");
  add<FileError>(m, "FileError", "Error", "A file that cannot be read or written.");
  add<NoRuleError>(m, "NoRuleError", "Error",
                   "An operator with neither shape rule, decomposition nor Meta kernel: register one "
                   "(torch.library.register_fake).");
  add<DeviceMismatchError>(m, "DeviceMismatchError", "Error", "Tensors of one call are on devices that do not mix.");
  add<NoSuchDeviceError>(m, "NoSuchDeviceError", "Error", "A device that the pretended machine does not have.");
  add<DataDependentError>(
      m, "DataDependentError", "Error",
      "The program reads data that a fake tensor does not have: item(), nonzero(), a mask as index.");
  add<RealTensorError>(m, "RealTensorError", "Error", "A real tensor where a fake one is needed.");
  add<EnvironmentError>(m, "EnvironmentError", "Error", "torch in this process cannot be used for fake tensors.");
  add<ModeMismatchError>(m, "ModeMismatchError", "Error",
                         "A capture was told another device than its module's tensors were made for.");
  add<CrossRefError>(m, "CrossRefError", "Error", "What an operator does on fakes is not what it does for real.");
  add<PipelineError>(m, "PipelineError", "Error", "A text that is no pipeline of passes.");
  add<PassError>(m, "PassError", "Error", "A pass that failed; the graph is as it was before.");
  add<DeferredError>(m, "DeferredError", "Error", "What deferred initialisation refuses.");
  add<NotDeferredError>(m, "NotDeferredError", "DeferredError", "A tensor that no deferred_init describes.");
  add<ExternalTensorChangedError>(m, "ExternalTensorChangedError", "DeferredError",
                                  "A real tensor that a description uses has been written since.");
  add<UnrecordableCallError>(m, "UnrecordableCallError", "DeferredError", "A call that cannot be recorded.");
  add<AlreadyMaterializedError>(m, "AlreadyMaterializedError", "DeferredError",
                                "A described tensor is used whose storage has been materialised.");
  add<GeneratorMovedError>(m, "GeneratorMovedError", "DeferredError",
                           "A generator was drawn from, past the record, while a program was described.");
  add<MaterializeError>(m, "MaterializeError", "DeferredError", "An operator failed while a tensor was computed.");

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
