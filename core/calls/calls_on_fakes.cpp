#include "core/calls/calls_on_fakes.h"

#include "core/fake/data_dependent_values.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode/process_state.h"
#include "core/fake/mode_state.h"
#include "core/fake/simulated_devices.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

at::Tensor fake_of(const Graph& graph, ValueId id, const c10::Storage& storage) {
  const Value& value = graph.value(id);
  return fake_on(storage, value.dtype, graph.sizes(id), graph.strides(id), value.offset, value.device());
}

void check_is_strided_tensor(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (value.kind == ValueKind::kTensor && value.layout == c10::Layout::Strided && value.storage.valid()) return;
  throw Error("cannot create a fake tensor for a value of type " + type_text(graph, id) + ", produced by " +
              to_text(graph, value.producer) + ": only strided tensors are supported");
}

}  // namespace

int64_t allocated_bytes(const at::Tensor& fake) { return as_fake(fake)->allocated_bytes(); }

c10::Storage fake_storage(int64_t bytes) {
  // Resizable and without memory: resize_ and set_ work on it.
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)),
                      c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
}

at::Tensor fake_on(const c10::Storage& storage, c10::ScalarType dtype, std::span<const int64_t> sizes,
                   std::span<const int64_t> strides, int64_t offset, c10::Device device) {
  // Otherwise the first operator on this tensor would find no fake kernels.
  install_process_state();
  auto fake = c10::make_intrusive<FakeTensorImpl>(c10::Storage(storage), fake_key_set(device),
                                                  c10::scalarTypeToTypeMeta(dtype), device);
  fake->set_sizes_and_strides(c10::IntArrayRef(sizes.data(), sizes.size()),
                              c10::IntArrayRef(strides.data(), strides.size()), offset);
  return at::Tensor(std::move(fake));
}

at::Tensor fake_of(const Graph& graph, ValueId value) {
  check_is_strided_tensor(graph, value);
  return fake_of(graph, value, fake_storage(graph.storage(graph.value(value).storage).bytes));
}

const c10::Storage& FakeValues::of(StorageId id) {
  // Values on one storage share it here too, to preserve aliasing.
  c10::Storage& storage = storages_[id];
  if (!storage) storage = fake_storage(graph_.storage(id).bytes);
  return storage;
}

const at::Tensor& FakeValues::of(ValueId value) {
  at::Tensor& tensor = tensors_[value];
  if (!tensor.defined()) {
    check_is_strided_tensor(graph_, value);
    tensor = fake_of(graph_, value, of(graph_.value(value).storage));
  }
  return tensor;
}

namespace {

// Calls each(name, value) for guards on data: "nonzero0 = 17".
template <class Each>
void for_each_host_value(const Graph& captured, const Each& each) {
  for (const Guard& guard : captured.guards) {
    const size_t equals = guard.observed.find(" = ");
    if (guard.kind != Guard::Kind::kHostValue || equals == std::string::npos) continue;
    each(guard.observed.substr(0, equals), std::string_view(guard.observed).substr(equals + 3));
  }
}

// Returns whether a name is that of a size, not of an item() or equal() read or an evaluated operator.
bool is_of_size(const std::string& name) {
  return !name.starts_with("item") && !name.starts_with("equal") && name.find("::") == name.npos;
}

template <class Number>
std::optional<Number> number_at_front(std::string_view text) {
  Number number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) return std::nullopt;
  return number;
}

// Copies written operands shallowly: the values before the call must keep their geometry.
void copy_written_operands(const OperatorInfo& info, torch::jit::Stack& stack) {
  for (const uint16_t position : info.tensor_arguments) {
    c10::IValue& operand = stack[position];
    if (!is_in(info.written_arguments, position) || !operand.isTensor()) continue;
    const at::Tensor& tensor = operand.toTensor();
    if (!tensor.defined()) continue;
    operand = fake_on(tensor.storage(), tensor.scalar_type(), {tensor.sizes().data(), tensor.sizes().size()},
                      {tensor.strides().data(), tensor.strides().size()}, tensor.storage_offset(), tensor.device());
  }
}

}  // namespace

c10::Device indexed(c10::Device device) { return with_index(device); }

FakeCallRunner::FakeCallRunner(const Graph& graph, const FakeTensorOptions& options)
    : graph_(graph), calls_(graph), mode_(with_all_devices(options)), grad_mode_(c10::GradMode::is_enabled()) {}

void FakeCallRunner::add_sizes(const Graph& captured, const NamedDataSizes& given) {
  NamedDataSizes recorded;
  for_each_host_value(captured, [&](const std::string& name, std::string_view value) {
    if (!is_of_size(name)) return;
    if (value.find(", ") != value.npos) return;  // assumptions are made again
    const auto size = parse_number<int64_t>(value);
    if (!size || *size < 0) {
      throw Error(c10::str("invalid guard in the graph: \"", name, " = ", value, "\"; expected a non-negative size"));
    }
    recorded.emplace(name, *size);
  });
  state_of(mode_).data_sizes.add(given);
  state_of(mode_).data_sizes.add(recorded);
}

void FakeCallRunner::add_host_reads(const Graph& captured) {
  HostReadValues& values = state_of(mode_).host_read_values;
  // "item0 = 1.5, assumed finite", "equal0 = true"
  for_each_host_value(captured, [&](const std::string& name, std::string_view value) {
    if (!name.starts_with("item") && !name.starts_with("equal")) return;
    if (value.starts_with("true") || value.starts_with("false")) {
      values.add(name, value.starts_with("true"));
      return;
    }
    const std::string_view number = value.substr(0, value.find(','));
    if (const auto integer = parse_number<int64_t>(number)) {
      values.add(name, *integer);
    } else if (const auto real = number_at_front<double>(number)) {
      values.add(name, *real);
    }
  });
}

void FakeCallRunner::fill_assumed_mask(const Graph& captured, ValueId value, const at::Tensor& tensor) const {
  if (!tensor.defined()) return;
  for (const Guard& guard : captured.guards) {
    if (guard.value != value || guard.observed != kAssumedFull) continue;
    set_uniform_contents(tensor, 1);
    return;
  }
}

void FakeCallRunner::call(NodeId node, std::optional<c10::Device> device, torch::jit::Stack& stack) {
  if (graph_.target(node).kind() == TargetKind::kOperator) {
    const OperatorInfo& info = OperatorInfo::of(calls_.operator_of(node));
    if (device) {
      state_of(mode_).default_device = *device;
      // A trace contains the device that the program was traced on.
      if (info.device_argument >= 0) {
        c10::IValue& named = stack[static_cast<size_t>(info.device_argument)];
        if (named.isDevice()) named = *device;
      }
    }
    const OperatorFacts& facts = info.target.facts();
    if (info.writes && (facts.changes_objects || facts.is_out_variant)) copy_written_operands(info, stack);
    const bool grad_mode = graph_.node(node).flags.grad_mode;
    if (grad_mode != c10::GradMode::is_enabled()) c10::GradMode::set_enabled(grad_mode);
  }
  calls_.call(node, stack);
}

}  // namespace shadowgraph
