// Replay of graphs on real tensors.
#include "shadowgraph/capture/replay.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>

#include "python/src/binding.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph::python {
namespace {

class Executor {
 public:
  Executor(const Graph& graph, const std::optional<std::string>& device, bool autograd, bool copy_inputs,
           bool check_results, std::shared_ptr<KernelGroups> groups, std::map<std::string, at::Generator> generators)
      : groups_(std::move(groups)),
        executor_(clone(graph), {.device = device ? std::optional(c10::Device(*device)) : std::nullopt,
                                 .check_results = check_results,
                                 .copy_inputs = copy_inputs,
                                 .generators = std::move(generators),
                                 .autograd = autograd,
                                 .groups = groups_}) {}

  py::list input_names() const {
    py::list names;
    for (const std::string& name : executor_.input_names()) names.append(text_object(name));
    return names;
  }

  // Releases the GIL, which Python operators and other threads need.
  std::pair<std::vector<at::Tensor>, std::map<std::string, at::Tensor>> run(std::vector<at::Tensor> in_order) {
    if (running_.exchange(true)) {
      throw ReplayError(
          "this compiled graph is already running, on another thread or recursively; compile one per thread", NodeId());
    }
    const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> ended(
        &running_, [](std::atomic<bool>* running) { *running = false; });
    const py::gil_scoped_release no_gil;
    ReplayResult result = executor_.run(Bindings().in_order(std::move(in_order)));
    return {std::move(result.outputs), std::move(result.gradients)};
  }

 private:
  const std::shared_ptr<KernelGroups> groups_;
  ReplayExecutor executor_;
  std::atomic<bool> running_ = false;
};

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<Executor>(m, "Executor", "A graph prepared for execution, used by Graph.compile.")
      .def(py::init<const Graph&, const std::optional<std::string>&, bool, bool, bool, std::shared_ptr<KernelGroups>,
                    std::map<std::string, at::Generator>>(),
           py::arg("graph"), py::arg("device") = std::nullopt, py::arg("autograd") = false,
           py::arg("copy_inputs") = false, py::arg("check_results") = false, py::arg("groups") = nullptr,
           py::arg("generators") = std::map<std::string, at::Generator>(), py::call_guard<CppCall>())
      .def_property_readonly("input_names", &Executor::input_names,
                             "Names of parameters, buffers and inputs in program order, the order of `in_order`.")
      .def("run", &Executor::run, py::arg("in_order"), py::call_guard<CppCall>(),
           "Returns (outputs, gradients by parameter). Raises ReplayError.");
}

}  // namespace shadowgraph::python
