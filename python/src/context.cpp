#include "python/src/context.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/tensor/python_tensor.h>

#include <algorithm>
#include <exception>

namespace shadowgraph::python {
namespace {

// Number of times that a step runs if it raises: each run may be hit by another interrupt.
constexpr int kRuns = 3;

std::string name_of(const py::handle& self) { return py::cast<std::string>(py::repr(self)); }

bool is_interrupt(const py::handle& type) {
  return !type.is_none() && (PyErr_GivenExceptionMatches(type.ptr(), PyExc_KeyboardInterrupt) != 0 ||
                             PyErr_GivenExceptionMatches(type.ptr(), PyExc_SystemExit) != 0);
}

// Ends the generators of @contextmanager functions that were interrupted as they returned from __enter__ or came to
// __exit__. Otherwise they end when the frames are freed, and those of torch then push a mode.
void close_interrupted_managers(py::object trace) {
  if (!trace || trace.is_none()) return;
  const py::object outermost = trace.attr("tb_frame");
  for (py::object next = trace; !next.is_none(); next = next.attr("tb_next")) trace = next;
  const auto manager = py::module_::import("contextlib").attr("_GeneratorContextManager");
  const py::object enter = manager.attr("__enter__").attr("__code__"), exit = manager.attr("__exit__").attr("__code__");
  // Not the entries of the traceback, which lacks a frame that was interrupted as it returned.
  py::object frame = trace.attr("tb_frame");
  for (; !frame.is_none() && !frame.is(outermost); frame = frame.attr("f_back")) {
    const py::object code = frame.attr("f_code");
    if (!code.is(enter) && !code.is(exit)) continue;
    try {
      frame.attr("f_locals")["self"].attr("gen").attr("close")();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("closing an interrupted context manager");
    }
  }
}

// The active contexts of this thread, innermost last. Holds references, which a thread that ends leaves behind.
std::vector<PyObject*>& contexts() {
  thread_local std::vector<PyObject*> all;
  return all;
}

}  // namespace

Cleanup::~Cleanup() {
  try {
    run();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("leaving a context of shadowgraph");
  } catch (const std::exception&) {  // destructors must not throw
  }
}

py::object Cleanup::enter(const py::object& self) {
  if (active_) throw Error(name_of(self) + " is already active; create another one to nest them");
  active_ = true;
  try {
    py::object result = begin(self);
    return result.is_none() ? self : result;
  } catch (py::error_already_set& error) {
    end(self, true);
    if (is_interrupt(error.type())) interrupted(error.trace());
    throw;
  } catch (...) {
    end(self, true);
    throw;
  }
}

void Cleanup::exit(const py::object& self, const py::object& type, const py::object& value, const py::object& trace) {
  if (!active_) throw Error(name_of(self) + " is not active; enter it using `with`");
  error_ = py::make_tuple(type, value, trace);
  std::exception_ptr failed;
  try {
    if (type.is_none()) self.attr("_finish")();
    end(self, false);
  } catch (...) {
    failed = std::current_exception();
    end(self, true);
  }
  error_ = py::object();
  if (is_interrupt(type)) return interrupted(trace);  // rather than an error of its steps
  try {
    if (failed) std::rethrow_exception(failed);
  } catch (py::error_already_set& error) {
    if (is_interrupt(error.type())) interrupted(error.trace());
    throw;
  }
}

// Runs the steps; `failed`: without throwing, since another exception is on its way.
void Cleanup::end(const py::object& /*self*/, bool failed) {
  try {
    run();
  } catch (...) {
    if (!failed) throw;
  }
  active_ = false;
}

void Cleanup::run() {
  std::exception_ptr first;
  while (!steps_.empty()) {
    const std::function<void()> step = std::move(steps_.back());
    steps_.pop_back();
    for (int i = 0; i < kRuns; ++i) {
      try {
        step();
        break;
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
  }
  if (first) std::rethrow_exception(first);
}

void Cleanup::set(const py::object& owner, const py::str& name, const py::object& value) {
  on_exit([owner, name, before = py::object(owner.attr(name))] { owner.attr(name) = before; });
  owner.attr(name) = value;
}

py::object Cleanup::enter_context(const py::object& manager) {
  const py::object type = py::type::of(manager);
  const py::object leave = type.attr("__exit__");
  py::object result = type.attr("__enter__")(manager);
  on_exit([this, manager, leave] {
    const py::object none = py::none();
    const py::tuple error = error_ ? py::tuple(error_) : py::make_tuple(none, none, none);
    leave(manager, error[0], error[1], error[2]);
  });
  return result;
}

class Context::ThreadSnapshot {
 public:
  ThreadSnapshot()
      : devices_(py::module_::import("torch.utils._device")),
        default_device_(devices_.attr("CURRENT_DEVICE")),
        default_dtype_(py::module_::import("torch").attr("get_default_dtype")()) {
    nesting_ = at::autocast::increment_nesting() - 1;
    at::autocast::decrement_nesting();
  }
  void restore() const {
    at::ThreadLocalState::setThreadLocalState(state_);
    devices_.attr("CURRENT_DEVICE") = default_device_;
    torch::tensors::py_set_default_dtype(default_dtype_.ptr());
    at::autocast::set_autocast_cache_enabled(cache_);
    int nesting = at::autocast::increment_nesting();
    while (nesting > nesting_) nesting = at::autocast::decrement_nesting();
    if (nesting == 0) at::autocast::clear_cache();
  }

 private:
  at::ThreadLocalState state_;
  py::module_ devices_;
  py::object default_device_;
  py::object default_dtype_;
  bool cache_ = at::autocast::is_autocast_cache_enabled();
  int nesting_ = 0;
};

Context::Context() = default;
Context::~Context() = default;

py::object Context::begin(const py::object& self) {
  before_ = std::make_unique<ThreadSnapshot>();
  thread_ = std::this_thread::get_id();
  left_ = false;
  contexts().push_back(py::object(self).release().ptr());
  on_exit([this] {
    std::vector<PyObject*>& all = contexts();
    const auto place =
        std::ranges::find_if(all, [this](PyObject* each) { return py::cast<Context*>(py::handle(each)) == this; });
    if (place == all.end()) return;
    const py::object held = py::reinterpret_steal<py::object>(*place);
    all.erase(place);
  });
  return Cleanup::begin(self);
}

void Context::exit(const py::object& self, const py::object& type, const py::object& value, const py::object& trace) {
  if (left_ || !active_) throw Error(name_of(self) + " is not active; enter it using `with`");
  if (thread_ != std::this_thread::get_id()) {
    throw Error(name_of(self) + " was entered on another thread, where it remains active; leave it there");
  }
  std::vector<PyObject*>& all = contexts();
  if (all.back() != self.ptr()) {
    if (!is_interrupt(type)) {
      left_ = true;
      throw Error(
          name_of(self) + " is left before " + name_of(all.back()) +
          ", which was entered inside it; both end when the inner one is left. Leave contexts in reverse order, "
          "and do not await inside one: asyncio tasks share the contexts of their thread");
    }
    end_inner(self);  // their own exits were interrupted
  }
  const auto end_left = [&] {
    while (!all.empty()) {
      const auto below = py::reinterpret_borrow<py::object>(all.back());
      auto* const context = py::cast<Context*>(below);
      if (!context->left_) break;
      context->end(below, true);
    }
  };
  try {
    Cleanup::exit(self, type, value, trace);
  } catch (...) {
    end_left();
    throw;
  }
  end_left();
}

void Context::end_inner(const py::object& self) {
  std::vector<PyObject*>& all = contexts();
  while (!all.empty() && all.back() != self.ptr()) {
    const auto inner = py::reinterpret_borrow<py::object>(all.back());
    py::cast<Context*>(inner)->end(inner, true);
  }
}

void Context::interrupted(const py::object& trace) {
  close_interrupted_managers(trace);
  before_->restore();
}

void bind_contexts(py::module_& m) {
  py::class_<Cleanup>(m, "Cleanup", "Context manager whose steps restore state, also after an interrupt.")
      .def(py::init<>())
      .def("__enter__", [](const py::object& self) { return py::cast<Cleanup&>(self).enter(self); })
      .def("__exit__", [](const py::object& self, const py::object& type, const py::object& value,
                          const py::object& trace) { py::cast<Cleanup&>(self).exit(self, type, value, trace); })
      .def("_enter", [](const py::object&) {})
      .def("_finish", [](const py::object&) {})
      .def(
          "on_exit",
          [](Cleanup& self, const py::function& step, const py::args& arguments) {
            self.on_exit([step, arguments] { step(*arguments); });
          },
          "Runs step(*arguments) at the end. It must be idempotent, since an interrupt repeats it.")
      .def("set", &Cleanup::set, py::arg("owner"), py::arg("name"), py::arg("value"),
           "Sets an attribute until the end.")
      .def("enter_context", &Cleanup::enter_context, py::arg("manager"),
           "Enters another context manager, which is left with this one; returns the result of its __enter__.")
      .def("run", &Cleanup::run, "Runs all steps now.");
  py::class_<Context, Cleanup>(m, "Context", "A Cleanup that is left on its thread, in reverse order.")
      .def(py::init<>());
}

}  // namespace shadowgraph::python
