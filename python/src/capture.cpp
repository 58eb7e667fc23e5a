// Captures of Python code: sessions, module calls and source locations.
#include "shadowgraph/capture/capture.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <unordered_map>

#include "python/src/binding.h"
#include "python/src/context.h"

namespace shadowgraph::python {

namespace {

// Folders whose code is not part of the program: torch and this package.
std::vector<std::string>& library_folders() {
  static auto* folders = new std::vector<std::string>;
  return *folders;
}

bool is_library_code(const std::string& file) {
  if (file.starts_with("<")) return true;  // compiled from a string
  const auto& folders = library_folders();
  return std::any_of(folders.begin(), folders.end(), [&](const auto& folder) { return file.starts_with(folder); });
}

// Returns "file:line" of the innermost frame outside library_folders(). Called once per node. Caches by code object and
// keeps these alive, so that addresses are not reused.
std::string python_location() {
  const py::gil_scoped_acquire gil;
  struct CachedCode {
    py::object code;
    bool library;
    std::string file;
  };
  static auto* cache = new std::unordered_map<PyCodeObject*, CachedCode>;
  PyThreadState* const thread = PyThreadState_Get();
  PyFrameObject* frame = PyThreadState_GetFrame(thread);
  std::string text;
  while (frame != nullptr && text.empty()) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    auto found = cache->find(code);
    if (found == cache->end()) {
      const std::string file = py::str(reinterpret_cast<PyObject*>(code->co_filename));
      found = cache
                  ->emplace(code, CachedCode{py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(code)),
                                             is_library_code(file), file})
                  .first;
    }
    Py_DECREF(code);
    if (!found->second.library) text = found->second.file + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    PyFrameObject* const back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return text;
}

PyObject* wrapped_call = nullptr;  // the original torch.nn.Module.__call__

// Callback(module, arguments) for modules that the program calls directly, not from another module.
PyObject* root_called = nullptr;
thread_local int module_depth = 0;

bool notify_root_called(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  const Py_ssize_t total = count + (names != nullptr ? PyTuple_GET_SIZE(names) : 0);
  PyObject* const values = PyTuple_New(total);
  if (values == nullptr) return false;
  for (Py_ssize_t i = 0; i < total; ++i) {
    Py_INCREF(arguments[i]);
    PyTuple_SET_ITEM(values, i, arguments[i]);
  }
  PyObject* const result = PyObject_CallFunctionObjArgs(root_called, self, values, nullptr);
  Py_DECREF(values);
  Py_XDECREF(result);
  return result != nullptr;
}

// Module.__call__ while any capture is active: calls the original between enter_module() and leave_module().
PyObject* call_module(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  Capture* const session = Capture::current();
  const auto call = [&] {
    // Vectorcall expects self and the arguments contiguously.
    std::vector<PyObject*> all;
    all.reserve(static_cast<size_t>(count) + 1 + (names != nullptr ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0));
    all.push_back(self);
    const Py_ssize_t total = count + (names != nullptr ? PyTuple_GET_SIZE(names) : 0);
    all.insert(all.end(), arguments, arguments + total);
    return PyObject_Vectorcall(wrapped_call, all.data(), static_cast<size_t>(count) + 1, names);
  };
  if (session == nullptr) return call();
  struct Depth {
    Depth() { ++module_depth; }
    ~Depth() { --module_depth; }
  };
  const Depth inside;
  if (module_depth == 1 && root_called != nullptr && !notify_root_called(self, arguments, count, names)) return nullptr;
  PyObject* result = nullptr;
  try {
    session->enter_module(self, Py_TYPE(self)->tp_name);
    result = call();
    // Unless the call ended the session or started another one.
    if (Capture::current() == session) session->leave_module();
  } catch (const std::exception& error) {
    Py_CLEAR(result);
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return result;
}

PyMethodDef call_module_definition = {"__call__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_module)),
                                      METH_FASTCALL | METH_KEYWORDS,
                                      "Calls the module in a module region of the capture."};

// Returns a method descriptor that replaces Module.__call__.
py::object module_call(const py::type& module_class, const py::object& original) {
  if (wrapped_call == nullptr) wrapped_call = py::object(original).release().ptr();
  PyObject* const descriptor =
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(module_class.ptr()), &call_module_definition);
  if (descriptor == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(descriptor);
}

std::vector<at::Tensor> parts_of_wrapper(const at::Tensor& wrapper) {
  const py::gil_scoped_acquire gil;
  static auto* const parts = new py::object(py::module_::import("shadowgraph._wrappers").attr("parts"));
  return py::cast<std::vector<at::Tensor>>((*parts)(wrapper));
}

class Session {
 public:
  Session(const std::string& device, const py::dict& options)
      : options_{.mode = fake_options(device, options),
                 .saved_tensors = keyword<bool>(options, "saved_tensors"),
                 .guards = keyword<bool>(options, "guards")},
        locations_(keyword<bool>(options, "source_lines")) {}
  void enter() {
    if (session_) throw Error("this capture is already active; create another one to nest them");
    session_ = std::make_unique<Capture>(options_);
    if (locations_) session_->set_locate(&python_location);
  }
  void leave() { session_.reset(); }
  Capture& get() {
    if (!session_) throw Error("this capture is not active; enter it using `with`");
    return *session_;
  }
  at::Tensor from_real(const at::Tensor& real, const std::optional<std::string>& device, bool with_gradient) {
    return get().mode().from_real(real, device ? std::optional(c10::Device(*device)) : std::nullopt, with_gradient);
  }
  uintptr_t address() const { return session_ ? reinterpret_cast<uintptr_t>(&session_->mode()) : 0; }
  std::shared_ptr<Graph> finish(const std::vector<at::Tensor>& outputs,
                                std::vector<std::pair<at::Tensor, at::Tensor>> gradients) {
    return std::make_shared<Graph>(get().finish(outputs, std::move(gradients)));
  }

 private:
  CaptureOptions options_;
  bool locations_;
  std::unique_ptr<Capture> session_;
};

}  // namespace

void bind_capture(py::module_& m) {
  set_wrapper_parts(&parts_of_wrapper);
  m.def("set_library_folders", [](std::vector<std::string> folders) { library_folders() = std::move(folders); });
  m.def("module_call", &module_call);
  m.def(
      "set_root_called",
      [](const py::object& called) {
        PyObject* const before = root_called;
        root_called = called.is_none() ? nullptr : py::object(called).release().ptr();
        Py_XDECREF(before);
      },
      "Calls called(module, arguments) for each module that a captured program calls directly.");
  m.def("mark_gradient", &mark_gradient, py::call_guard<CppCall>());
  m.def("mark_optimizer_state", &mark_optimizer_state, py::call_guard<CppCall>());
  bind_guard<PhaseScope, Cleanup, std::string>(m, "Phase");
  bind_guard<RegionScope, Cleanup, std::string>(m, "RegionScope");
  bind_guard<FiniteGradients, Cleanup>(m, "FiniteGradients");
  bind_guard<UnfakeGuard, Context>(m, "Unfake");
  py::class_<Session>(m, "Session")
      .def(py::init<const std::string&, const py::dict&>(), py::arg("device"), py::arg("options"))
      .def("enter", &Session::enter)
      .def("leave", &Session::leave)
      .def("address", &Session::address)
      .def("from_real", &Session::from_real, py::arg("tensor"), py::arg("device") = std::nullopt,
           py::arg("with_gradient") = true)
      .def("name_parameter",
           [](Session& s, const at::Tensor& tensor, const std::string& name) { s.get().name_parameter(tensor, name); })
      .def("name_buffer",
           [](Session& s, const at::Tensor& tensor, const std::string& name) { s.get().name_buffer(tensor, name); })
      .def("name_input", [](Session& s, const at::Tensor& tensor, const std::string& name,
                            bool keep_contents) { s.get().name_input(tensor, name, keep_contents); })
      .def("name_module",
           [](Session& s, py::handle module, std::string path) { s.get().name_module(module.ptr(), std::move(path)); })
      .def("finish", &Session::finish, py::arg("outputs"), py::arg("gradients"));
  py::class_<ExternalCheckpoint>(m, "ExternalCheckpoint")
      .def(py::init<std::string>())
      .def("enter", &ExternalCheckpoint::enter)
      .def("leave", &ExternalCheckpoint::leave)
      .def_static("keep", &ExternalCheckpoint::keep);
  m.def("is_capturing", [] { return Capture::current() != nullptr; });
}

}  // namespace shadowgraph::python
