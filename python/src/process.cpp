// Process-wide setup for fake tensors, and queries used by the patches of torch's Python code.
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"
#include "shadowgraph/capture/language_bindings.h"

namespace shadowgraph::python {
namespace {

FakeTensorMode& active_mode() {
  FakeTensorMode* const mode = detect_fake_mode({});
  if (mode == nullptr) throw Error("no fake mode is active on this thread");
  return *mode;
}
const DeviceProfile& active_profile() { return active_mode().profile(); }

c10::Device cuda_device(int index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

const c10::impl::DeviceGuardImplInterface& cuda_guard() {
  return *c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
}

// Python function that returns whether torch.library.register_fake was called for an operator. Never destroyed, since
// it may be called during shutdown.
py::object& fake_kernel_finder() {
  static auto* finder = new py::object;
  return *finder;
}

bool has_fake_kernel_in_python(const std::string& operator_name) {
  const py::gil_scoped_acquire gil;
  return py::cast<bool>(fake_kernel_finder()(operator_name));
}

void register_devices_of(const std::string& name, const std::string& operands, const py::sequence& results) {
  OperatorDevices devices{.operands = parse<OperandPlaces>(operands, "register_devices('" + name + "'): operands")};
  for (const py::handle& result : results) {
    if (py::isinstance<py::str>(result)) {
      devices.results.emplace_back(py::cast<std::string>(result));
    } else if (THPDevice_Check(result.ptr())) {
      devices.results.emplace_back(py::cast<c10::Device>(result));
    } else {
      throw Error("register_devices('" + name + "'): results= must contain names of arguments and torch.devices, not " +
                  std::string(py::repr(result)));
    }
  }
  register_devices(name, std::move(devices));
}

void bind_addresses(py::module_& m) {
  m.def(
      "fake_address",
      [](const at::Tensor& tensor) {
        return tensor.numel() == 0 ? 0
                                   : fake_address(tensor.storage()) +
                                         static_cast<uintptr_t>(tensor.storage_offset()) * tensor.element_size();
      },
      "Returns a made-up data pointer, distinct for each storage. It must not be dereferenced.", py::arg("tensor"));
  m.def(
      "fake_storage_address",
      [](const c10::Storage& storage) -> std::optional<uintptr_t> {
        if (detect_fake_mode({}) == nullptr && !has_fake_address(storage)) return std::nullopt;
        return fake_address(storage);
      },
      "Returns the made-up data pointer of a meta storage, or None if no fake tensor is known to use it.",
      py::arg("storage"));
}

// Streams of torch.cuda are passed as ids; stream 0 is the default stream.
void bind_streams(py::module_& m) {
  const auto stream_of = [](int device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, cuda_device(device), id);
  };
  m.def("current_stream", [](int device) { return cuda_guard().getStream(cuda_device(device)).id(); });
  m.def("exchange_stream", [stream_of](int device, c10::StreamId stream) {
    return cuda_guard().exchangeStream(stream_of(device, stream)).id();
  });
  m.def(
      "record_stream",
      [stream_of](const at::Tensor& tensor, int device, c10::StreamId stream) {
        cuda_guard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream_of(device, stream));
      },
      "Records tensor.record_stream(stream) in a capture.");
}

// Properties of the active mode's simulated device.
void bind_devices(py::module_& m) {
  m.def("device_count", [] { return active_profile().device_count; });
  m.def("device_capability", [] { return py::make_tuple(active_profile().sm_major, active_profile().sm_minor); });
  m.def("device_name", [] { return active_profile().name; });
  m.def("device_multiprocessors", [] { return active_profile().multiprocessors; });
  m.def(
      "device_memory",
      [] {
        const std::string& name = active_profile().name;
        for (const std::string& spec_name : DeviceSpec::names()) {
          const DeviceSpec spec = DeviceSpec::named(spec_name);
          if (spec.title.starts_with(name)) return spec.memory;
        }
        throw Error("the memory of the device " + name +
                    " is unknown; simulate a device from `shadowgraph list devices`");
      },
      "Memory of the simulated device in bytes, from the first device spec with its name.");
  m.def("current_device", [] { return static_cast<int>(cuda_guard().getDevice().index()); });
  m.def(
      "set_current_device", [](int index) { cuda_guard().setDevice(cuda_device(index)); }, py::call_guard<CppCall>());
  m.def(
      "check_device", [](int index) { const c10::DeviceGuard there(cuda_device(index)); },
      "Raises Error for a CUDA device that the active mode does not simulate.", py::arg("index"),
      py::call_guard<CppCall>());
}

}  // namespace

void bind_process(py::module_& m) {
  m.def(
      "install",
      [] {
        // Constructing the first mode installs everything. Threads of the autograd engine may need the GIL.
        const py::gil_scoped_release no_gil;
        const FakeTensorMode first;
      },
      "Installs process-wide support for fake tensors, once.");
  m.def(
      "set_requires_device_init",
      [](const std::string& device, bool value) {
        torch::utils::set_requires_device_init(c10::Device(device).type(), value);
      },
      "Sets whether torch calls torch.cuda._lazy_init() (or that of `device`) before it creates a tensor on it.");
  m.def(
      "is_active", [] { return detect_fake_mode({}) != nullptr; }, "Whether a fake mode is active on this thread.");
  bind_devices(m);
  bind_streams(m);
  m.def(
      "default_generator", [](int index) { return at::globalContext().defaultGenerator(cuda_device(index)); },
      "Returns the default generator of a simulated CUDA device.", py::arg("index"), py::call_guard<CppCall>());
  m.def("watch_generator", &watch_generator, py::arg("generator"), py::call_guard<CppCall>(),
        "Must be called before the program seeds, saves or restores a generator.");
  m.def(
      "set_type_attribute",
      [](const py::type& type, const std::string& name, const py::object& value) {
        auto* const object = reinterpret_cast<PyTypeObject*>(type.ptr());
        if (PyDict_SetItemString(object->tp_dict, name.c_str(), value.ptr()) != 0) throw py::error_already_set();
        PyType_Modified(object);
      },
      "Sets an attribute of a class that is defined in C, which Python code cannot do.", py::arg("type"),
      py::arg("name"), py::arg("value"));
  m.def("assume_equal_on_all_ranks", &assume_equal_on_all_ranks, py::arg("tensor"),
        "Lets collectives assume that every rank sends the contents of this fake tensor.");
  m.def(
      "write_file", [](const std::string& path, const std::string& content) { write_file(path, content); },
      "Writes a file atomically. Raises FileError.", py::arg("path"), py::arg("content"));
  m.def("resize_storage", &resize_storage, py::arg("storage"), py::arg("size"),
        "Resizes the storage of a fake tensor and records it in a capture.", py::call_guard<CppCall>());
  m.def(
      "is_fake", [](const at::Tensor& tensor) { return is_fake(tensor); }, "Returns True if the tensor is fake.",
      py::arg("tensor"));
  m.def(
      "from_real",
      [](const at::Tensor& real, const std::optional<std::string>& device) {
        return active_mode().from_real(real, device ? std::optional(c10::Device(*device)) : std::nullopt);
      },
      "Returns the fake tensor of a real one in the active mode, on `device` or its own.", py::arg("tensor"),
      py::arg("device") = std::nullopt, py::call_guard<CppCall>());
  m.def(
      "known_contents", [](const at::Tensor& tensor) { return known_contents(tensor); },
      "Returns the values of a fake tensor as a CPU tensor, or None if they are data dependent. Raises "
      "DataDependentError if computing them exceeds the mode's contents_budget.",
      py::arg("tensor"), py::call_guard<CppCall>());
  m.def("data_size", &rules::data_size,
        "Returns the mode's size for a result that depends on the data of `tensor`, by the names question0, question1, "
        "... Raises DataDependentError with the option to set if there is none.",
        py::arg("op"), py::arg("question"), py::arg("tensor"), py::arg("most"));
  m.def(
      "set_fake_kernel_finder",
      [](py::object finder) {
        fake_kernel_finder() = std::move(finder);
        set_fake_kernel_finder(&has_fake_kernel_in_python);
      },
      "Sets the function that returns whether an operator, given by name, has a fake kernel in Python.",
      py::arg("finder"));
  m.def(
      "register_devices", &register_devices_of, py::arg("name"), py::kw_only(), py::arg("operands") = "together",
      py::arg("results") = py::tuple(),
      "Registers the devices of operands and results of a custom operator.\n\n"
      "name: \"mylib::op\", or \"mylib::op.out\" for one overload.\n"
      "operands: \"together\" (on one device, except for CPU scalar tensors), \"first or cpu\" or \"anywhere\".\n"
      "results: for each result, a torch.device or the name of an argument on the same device. By default, the device "
      "of the first operand.\n\n"
      "An unregistered operator with a fake kernel (torch.library.register_fake) accepts operands on any device, and "
      "its results are on the devices where the kernel creates them. For a registered one, a kernel that creates a "
      "result on another device makes the call raise Error.\n\n"
      "Raises Error for an operator of libtorch, or if the arguments do not match the operator's schema.");
  m.def(
      "describe", [](const at::Tensor& tensor) { return to_string(tensor); },
      "Returns a description such as \"fake Float[2, 3] on cuda:0, requires_grad\".", py::arg("tensor"));
  bind_addresses(m);
}

}  // namespace shadowgraph::python
