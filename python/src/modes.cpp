// Fake modes: entered and left by Python's `with`.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"

namespace shadowgraph::python {
namespace {

class Mode {
 public:
  explicit Mode(FakeTensorOptions options) : options_(std::move(options)) {}
  void enter() {
    if (mode_) throw Error("this mode is active already; make another one to nest them");
    mode_ = std::make_unique<FakeTensorMode>(options_);
  }
  void leave() { mode_.reset(); }
  at::Tensor from_real(const at::Tensor& real, const std::optional<std::string>& device) {
    if (!mode_) throw Error("the mode is not active: call it inside `with`");
    return mode_->from_real(real, device ? std::optional(c10::Device(*device)) : std::nullopt);
  }

 private:
  FakeTensorOptions options_;
  std::unique_ptr<FakeTensorMode> mode_;
};

class Unfake {
 public:
  void enter() { guard_ = std::make_unique<UnfakeGuard>(); }
  void leave() { guard_.reset(); }

 private:
  std::unique_ptr<UnfakeGuard> guard_;
};

}  // namespace

FakeTensorOptions fake_options(const std::optional<std::string>& device, const std::string& profile,
                               const std::string& real_tensors, NamedDataSizes sizes) {
  FakeTensorOptions options;
  if (device) options.device = c10::Device(*device);
  if (profile == "h100") {
    options.profile = DeviceProfile::h100();
  } else if (profile == "a100") {
    options.profile = DeviceProfile::a100();
  } else if (!profile.empty()) {
    throw Error("no device profile '" + profile + "'; there are h100 and a100");
  }
  if (real_tensors == "convert") {
    options.real_tensors = RealTensors::kConvert;
  } else if (real_tensors == "refuse") {
    options.real_tensors = RealTensors::kRefuse;
  } else if (real_tensors == "constant") {
    options.real_tensors = RealTensors::kConstant;
  } else {
    throw Error("real_tensors='" + real_tensors + "'; it is convert, refuse or constant");
  }
  options.data_sizes = std::move(sizes);
  return options;
}

void bind_modes(py::module_& m) {
  py::class_<Mode>(m, "Mode")
      .def(py::init([](const std::optional<std::string>& device, const std::string& profile,
                       const std::string& real_tensors, NamedDataSizes sizes) {
             return std::make_unique<Mode>(fake_options(device, profile, real_tensors, std::move(sizes)));
           }),
           py::arg("device") = std::nullopt, py::arg("profile") = "", py::arg("real_tensors") = "constant",
           py::arg("data_sizes") = NamedDataSizes())
      .def("enter", &Mode::enter)
      .def("leave", &Mode::leave)
      .def("from_real", &Mode::from_real, py::arg("tensor"), py::arg("device") = std::nullopt,
           py::call_guard<CppCall>());
  py::class_<Unfake>(m, "Unfake").def(py::init<>()).def("enter", &Unfake::enter).def("leave", &Unfake::leave);
}

}  // namespace shadowgraph::python
