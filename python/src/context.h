// Context managers in C++, which restore state also when an interrupt hits any Python function.
#pragma once

#include <functional>
#include <thread>
#include <tuple>
#include <utility>

#include "python/src/binding.h"

namespace shadowgraph::python {

// Steps that restore state, run in reverse order at the end of a `with` block.
//
// An interrupt (KeyboardInterrupt) is raised at the entry of any Python function, so also in __exit__ and in the body of
// `finally`. Here, __enter__ and __exit__ are C functions, and a step that raises is repeated. The interrupt is raised
// again after the last step. Steps must be idempotent, and are registered before the change that they undo.
//
//     class Quiet(_C.Cleanup):
//         def _enter(self):                       # if it raises, the steps so far run
//             self.on_exit(setattr, log, "level", log.level)
//             log.level = 0
//
// Returns what _enter returns, or self for None. _finish runs at the end of a block that has not raised, before the
// steps.
class Cleanup {
 public:
  Cleanup() = default;
  virtual ~Cleanup();
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;

  py::object enter(const py::object& self);
  virtual void exit(const py::object& self, const py::object& type, const py::object& value, const py::object& trace);

  void on_exit(std::function<void()> step) { steps_.push_back(std::move(step)); }
  // Sets an attribute until the end.
  void set(const py::object& owner, const py::str& name, const py::object& value);
  // Enters another context manager, which is left with this one. Returns the result of its __enter__.
  py::object enter_context(const py::object& manager);
  // Runs all steps now. Rethrows the first exception after the last one.
  void run();

 protected:
  virtual py::object begin(const py::object& self) { return self.attr("_enter")(); }
  virtual void interrupted(const py::object& /*trace*/) {}
  void end(const py::object& self, bool failed);

  bool active_ = false;

 private:
  std::vector<std::function<void()>> steps_;
  py::object error_;  // the exception that ends the block, for managers entered by enter_context
};

// A context of the calling thread, such as a mode. Contexts are left on the same thread in reverse order. One that is
// left too early raises Error, and ends with the contexts that were entered inside it. An interrupt also restores
// libtorch's thread-local state (grad mode, autocast, torch function modes) and the default dtype.
class Context : public Cleanup {
 public:
  Context();
  ~Context() override;
  void exit(const py::object& self, const py::object& type, const py::object& value, const py::object& trace) override;

 protected:
  py::object begin(const py::object& self) override;
  void interrupted(const py::object& trace) override;

 private:
  class ThreadSnapshot;
  void end_inner(const py::object& self);

  std::thread::id thread_;
  std::unique_ptr<ThreadSnapshot> before_;
  bool left_ = false;  // too early
};

// A C++ guard as a context manager.
template <class Guard, class Base, class... Arguments>
class GuardContext final : public Base {
 public:
  explicit GuardContext(Arguments... arguments) : arguments_(std::move(arguments)...) {}

 private:
  py::object begin(const py::object& self) override {
    py::object result = Base::begin(self);
    auto guard = std::apply([](const auto&... arguments) { return std::make_shared<Guard>(arguments...); }, arguments_);
    this->on_exit([guard = std::move(guard)]() mutable { guard.reset(); });
    return result;
  }

  std::tuple<Arguments...> arguments_;
};

// An object that has an effect while it exists, until close() or the end of a `with` block.
template <class T>
class Closing final : public Cleanup {
 public:
  explicit Closing(T object) : object_(std::make_shared<std::optional<T>>(std::move(object))) {
    on_exit([object = object_] { object->reset(); });
  }
  const std::optional<T>& object() const { return *object_; }

 private:
  std::shared_ptr<std::optional<T>> object_;
};

template <class Guard, class Base, class... Arguments>
void bind_guard(py::module_& m, const char* name) {
  py::class_<GuardContext<Guard, Base, Arguments...>, Base>(m, name).def(py::init<Arguments...>());
}

}  // namespace shadowgraph::python
