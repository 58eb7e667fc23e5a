// Deferred initialization and materialization.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"

namespace shadowgraph::python {
namespace {

class Deferred {
 public:
  Deferred(const std::string& device, const std::string& profile, std::optional<int> device_count) {
    options_.device = c10::Device(device);
    options_.profile = device_profile_named(profile);
    if (device_count) options_.profile.device_count = *device_count;
  }
  void enter() { scope_ = std::make_unique<DeferredInit>(options_); }
  void finish() {
    const std::unique_ptr<DeferredInit> scope = std::move(scope_);
    if (scope) scope->finish();
  }
  void abandon() { scope_.reset(); }

 private:
  DeferredOptions options_;
  std::unique_ptr<DeferredInit> scope_;
};

MaterializeOptions options_of(const std::optional<std::string>& device, std::optional<at::ScalarType> dtype,
                              std::optional<uint64_t> independent_streams, bool keep_recipe = true) {
  return {.device = device ? std::optional(c10::Device(*device)) : std::nullopt,
          .dtype = dtype,
          .independent_streams = independent_streams,
          .keep_recipe = keep_recipe};
}

}  // namespace

void bind_deferred(py::module_& m) {
  py::class_<Deferred>(m, "Deferred")
      .def(py::init<const std::string&, const std::string&, std::optional<int>>(), py::arg("device"),
           py::arg("profile") = "", py::arg("device_count") = std::nullopt)
      .def("enter", &Deferred::enter)
      .def("finish", &Deferred::finish, py::call_guard<CppCall>())
      .def("abandon", &Deferred::abandon);
  m.def(
      "is_deferred", [](const at::Tensor& tensor) { return is_deferred(tensor); }, py::arg("tensor"));
  m.def("is_deferring", &is_deferring, "Whether deferred initialization is active on this thread.");
  m.def("deferred_value", &deferred_value, py::arg("tensor"), py::call_guard<CppCall>(),
        "The values of a deferred tensor as a new CPU tensor; None for other tensors and inside another mode.");
  m.def("check_recordable", &check_recordable, py::arg("tensor"), py::arg("what"), py::call_guard<CppCall>(),
        "Raises the error that an operator on the tensor would raise in deferred initialization.");
  m.def(
      "materialize_tensors",
      [](const std::vector<at::Tensor>& tensors, const std::optional<std::string>& device,
         std::optional<at::ScalarType> dtype, std::optional<uint64_t> independent_streams, bool keep_recipe) {
        const py::gil_scoped_release no_gil;
        materialize_tensors(tensors, options_of(device, dtype, independent_streams, keep_recipe));
      },
      py::arg("tensors"), py::arg("device") = std::nullopt, py::arg("dtype") = std::nullopt,
      py::arg("independent_streams") = std::nullopt, py::arg("keep_recipe") = true, py::call_guard<CppCall>());
  m.def(
      "materialize_shard",
      [](const at::Tensor& tensor, int64_t dim, int64_t start, int64_t length, bool never_whole,
         const std::optional<std::string>& device, std::optional<at::ScalarType> dtype,
         std::optional<uint64_t> independent_streams) {
        const py::gil_scoped_release no_gil;
        return materialize_shard(tensor, dim, start, length, options_of(device, dtype, independent_streams),
                                 never_whole);
      },
      py::arg("tensor"), py::arg("dim"), py::arg("start"), py::arg("length"), py::arg("never_whole") = false,
      py::arg("device") = std::nullopt, py::arg("dtype") = std::nullopt, py::arg("independent_streams") = std::nullopt,
      py::call_guard<CppCall>(),
      "Returns tensor.narrow(dim, start, length) as a new real tensor; `tensor` stays deferred. Allocates only the "
      "shard if the recorded operators allow it, else temporarily the full tensor (DeferredError if never_whole).");
  m.def(
      "dematerialize", [](const at::Tensor& tensor) { dematerialize(tensor); }, py::arg("tensor"),
      py::call_guard<CppCall>(),
      "Frees the data, so that the tensor is deferred again. Raises DeferredError without recorded operators.");
  m.def(
      "deferred_graph", [](const at::Tensor& tensor) { return std::make_shared<Graph>(clone(deferred_graph(tensor))); },
      py::arg("tensor"), py::call_guard<CppCall>(),
      "Returns a copy of the graph recorded by deferred initialization so far, for inspection. Raises DeferredError "
      "for a tensor that was not created by it.");
  m.def(
      "write_weights",
      [](const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
        const py::gil_scoped_release no_gil;
        const WrittenWeights written = write_weights(path, tensors);
        return std::tuple(written.tensors, written.bytes);
      },
      py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
