// Fake modes.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"
#include "shadowgraph/capture/language_bindings.h"

namespace shadowgraph::python {
namespace {

class Mode {
 public:
  Mode(const std::string& device, const py::dict& options) : options_(fake_options(device, options)) {}
  // Entered again, it is the same mode to tensors: they keep its id, and real ones their fakes.
  void enter() {
    if (mode_) throw Error("this mode is already active; create another one to nest them");
    mode_ = std::make_unique<FakeTensorMode>(options_);
    if (identity_) give_identity(*mode_, *identity_);
  }
  void leave() {
    if (mode_) identity_ = take_identity(*mode_);
    mode_.reset();
  }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(mode_.get()); }
  at::Tensor from_real(const at::Tensor& real, const std::optional<std::string>& device, bool with_gradient) {
    if (!mode_) throw Error("this mode is not active; enter it using `with`");
    return mode_->from_real(real, device ? std::optional(c10::Device(*device)) : std::nullopt, with_gradient);
  }

  void forget(uintptr_t tensor) {
    if (mode_) mode_->forget(reinterpret_cast<const c10::TensorImpl*>(tensor));
  }

 private:
  FakeTensorOptions options_;
  std::unique_ptr<FakeTensorMode> mode_;
  std::shared_ptr<ModeIdentity> identity_;
};

class CrossRef {
 public:
  explicit CrossRef(bool throw_at_first) : options_{.throw_at_first = throw_at_first} {}
  void enter() {
    if (mode_) throw Error("this CrossRefMode is already active");
    mode_ = std::make_unique<CrossRefMode>(options_);
  }
  void leave() {
    if (!mode_) return;
    compared_ = mode_->compared();
    refused_ = mode_->refused();
    differences_ = mode_->differences();
    mode_.reset();
  }
  int64_t compared() const { return mode_ ? mode_->compared() : compared_; }
  std::map<std::string, int64_t> refused() const { return mode_ ? mode_->refused() : refused_; }
  std::vector<CrossRefDifference> differences() const { return mode_ ? mode_->differences() : differences_; }

 private:
  CrossRefOptions options_;
  std::unique_ptr<CrossRefMode> mode_;
  int64_t compared_ = 0;
  std::map<std::string, int64_t> refused_;
  std::vector<CrossRefDifference> differences_;
};

c10::Scalar scalar_of(py::handle value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (PyComplex_Check(value.ptr())) return value.cast<c10::complex<double>>();
  if (PyFloat_Check(value.ptr())) return value.cast<double>();
  throw py::type_error("the value of a host read must be a bool, int, float or complex, not " +
                       std::string(py::str(py::type::of(value).attr("__name__"))));
}

// Looks up the ranks of a process group in torch.distributed, if the program has imported it.
bool describe_by_torch(ProcessGroupInfo& info) {
  const py::gil_scoped_acquire gil;
  const py::dict modules = py::module_::import("sys").attr("modules");
  constexpr const char* kModule = "shadowgraph._distributed";
  if (!modules.contains(kModule)) return false;
  const py::object ranks = modules[kModule].attr("ranks_of")(info.name);
  if (ranks.is_none()) return false;
  info.ranks = ranks.cast<std::vector<int64_t>>();
  return true;
}

}  // namespace

// Accepts a dict of values, a function, "finite", "mask full", or a list of these.
HostReads host_reads_of(const py::object& given) {
  HostReads reads;
  const std::function<void(py::handle)> add = [&](py::handle one) {
    if (one.is_none()) return;
    if (py::isinstance<py::str>(one)) {
      const auto policy = one.cast<std::string>();
      if (policy == "finite") {
        reads.finite = true;
      } else if (policy == "mask full") {
        reads.masks_full = true;
      } else {
        throw Error("host_reads='" + policy + "': expected \"finite\" or \"mask full\"");
      }
    } else if (py::isinstance<py::dict>(one)) {
      for (const auto& [name, value] : one.cast<py::dict>()) {
        reads.values.insert_or_assign(name.cast<std::string>(), scalar_of(value));
      }
    } else if (PyCallable_Check(one.ptr()) != 0) {
      const auto function = std::make_shared<py::object>(py::reinterpret_borrow<py::object>(one));
      reads.hint = [function](const HostReadQuery& question) -> std::optional<c10::Scalar> {
        const py::gil_scoped_acquire gil;
        const py::object value = (*function)(question.name, question.tensor, question.source);
        if (value.is_none()) return std::nullopt;
        return scalar_of(value);
      };
    } else if (py::isinstance<py::list>(one) || py::isinstance<py::tuple>(one)) {
      for (const py::handle each : one) add(each);
    } else {
      throw Error(
          "host_reads must be a dict of values by name, a function of (name, tensor, source), \"finite\", \"mask "
          "full\" or a list of these");
    }
  };
  add(given);
  return reads;
}

void add_data_sizes(FakeTensorOptions& options, py::handle given) {
  if (given.is_none()) return;
  if (py::isinstance<py::dict>(given)) {
    for (const auto& [name, size] : given.cast<py::dict>()) {
      options.data_sizes.insert_or_assign(name.cast<std::string>(), size.cast<int64_t>());
    }
  } else if (PyCallable_Check(given.ptr()) != 0) {
    const auto function = std::make_shared<py::object>(py::reinterpret_borrow<py::object>(given));
    options.data_size_hint = [function](const DataSizeQuery& question) -> std::optional<int64_t> {
      const py::gil_scoped_acquire gil;
      const py::object size = (*function)(question.name, question.op, question.tensor, question.most);
      if (size.is_none()) return std::nullopt;
      return size.cast<int64_t>();
    };
  } else if (py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given)) {
    for (const py::handle each : given) add_data_sizes(options, each);
  } else {
    throw Error(
        "data_sizes must be a dict of sizes by name, a function of (name, op, tensor, most) or a list of these");
  }
}

DeviceProfile device_profile_named(const std::string& name) {
  if (name.empty()) return {};
  if (name == "h100") return DeviceProfile::h100();
  if (name == "a100") return DeviceProfile::a100();
  throw Error("unknown device profile '" + name + "'; expected h100 or a100");
}

FakeTensorOptions fake_options(const std::string& device, const py::dict& given) {
  FakeTensorOptions options;
  options.device = c10::Device(device);
  const auto profile = keyword<std::string>(given, "profile");
  const auto count = keyword<std::optional<int>>(given, "device_count");
  if (!profile.empty() || count) options.profile = device_profile_named(profile);
  if (count) options.profile->device_count = *count;
  options.allow_fallback_kernels = keyword<bool>(given, "allow_fallback_kernels");
  options.real_tensors = parse<RealTensors>(keyword<std::string>(given, "real_tensors"), "real_tensors");
  add_data_sizes(options, given["data_sizes"]);
  options.host_reads = host_reads_of(given["host_reads"]);
  if (const auto budget = keyword<std::optional<std::pair<int64_t, double>>>(given, "contents_budget")) {
    options.contents_budget = ContentsBudget{.bytes = budget->first, .seconds = budget->second};
  }
  return options;
}

void bind_modes(py::module_& m) {
  set_describe_process_group(&describe_by_torch);
  py::class_<Mode>(m, "Mode")
      .def(py::init<const std::string&, const py::dict&>(), py::arg("device"), py::arg("options"))
      .def("enter", &Mode::enter)
      .def("leave", &Mode::leave)
      .def("address", &Mode::address, "Id of the mode, as returned by detect_fake_mode().")
      .def("from_real", &Mode::from_real, py::arg("tensor"), py::arg("device") = std::nullopt,
           py::arg("with_gradient") = true, py::call_guard<CppCall>())
      .def("forget", &Mode::forget, py::arg("tensor"),
           "Frees the fake tensors of a real tensor that is being freed, given its _cdata.");
  m.def(
      "fake_mode_id", [](const at::Tensor& tensor) { return fake_mode_id(tensor); }, py::arg("tensor"),
      "Returns the id of the mode that created a fake tensor, also after the mode has ended; 0 for a real tensor.");
  m.def(
      "active_mode_id", [] { return fake_mode_id(); }, "Returns the id of this thread's innermost mode, or 0.");
  m.def(
      "exchange_default_device",
      [](const std::string& device) { return exchange_default_device(c10::Device(device)).str(); }, py::arg("device"),
      "Sets the device of factory calls of C++ code that name none, in this thread's innermost mode; returns the one "
      "before.");
  m.def(
      "detect_fake_mode",
      [](const std::vector<at::Tensor>& tensors) { return reinterpret_cast<uintptr_t>(detect_fake_mode(tensors)); },
      py::arg("tensors"), py::call_guard<CppCall>());
  py::class_<CrossRefDifference>(m, "CrossRefDifference",
                                 "A mismatch between the results of an operator on real and on fake tensors.")
      .def_readonly("op", &CrossRefDifference::op, "\"aten::gelu\"")
      .def_readonly("where", &CrossRefDifference::where, "\"result 0\", \"argument self\", \"the call\"")
      .def_readonly("what", &CrossRefDifference::what, "\"strides\", \"dtype\", \"raised\", ...")
      .def_readonly("real", &CrossRefDifference::real)
      .def_readonly("fake", &CrossRefDifference::fake)
      .def("__str__", &CrossRefDifference::to_string)
      .def("__repr__", [](const CrossRefDifference& d) { return "<CrossRefDifference " + d.to_string() + ">"; });
  py::class_<CrossRef>(m, "CrossRef")
      .def(py::init<bool>(), py::arg("throw_at_first") = true)
      .def("enter", &CrossRef::enter)
      .def("leave", &CrossRef::leave)
      .def_property_readonly("compared", &CrossRef::compared)
      .def_property_readonly("refused", &CrossRef::refused)
      .def_property_readonly("differences", &CrossRef::differences);
}

}  // namespace shadowgraph::python
