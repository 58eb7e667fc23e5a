#include <string_view>
#include <vector>

#include "codegen/cpp_call.h"

namespace shadowgraph {
namespace {

// A function that is copied into generated files that call it. It is C++ text, so it may only use libtorch's headers.
struct Helper {
  std::string_view name;                  // as in CppNeeds::helpers
  std::vector<std::string_view> needs;    // helpers that it calls
  std::vector<std::string_view> headers;  // "ATen/ops/as_strided.h"
  std::string_view text;
};

const std::vector<Helper>& all_helpers() {
  static const std::vector<Helper> helpers = {
      {"drop", {}, {}, R"(
// Releases tensors after their last use.
template <class... T>
void drop(T&... tensors) {
  (tensors.reset(), ...);
}
)"},
      {"number",
       {},
       {"ATen/ScalarOps.h"},
       R"(
// A number where an operator expects a tensor; it does not take part in type promotion.
at::Tensor number(const at::Scalar& value) {
  at::Tensor tensor = c10::scalar_to_tensor(value);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}
)"},
      {"shallow_copy", {}, {}, R"(
// Another tensor object over the same storage, which keeps its sizes and strides if the original's change.
at::Tensor shallow_copy(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}
)"},
      {"own", {"shallow_copy"}, {}, R"(
// An input that is changed in place: the caller's object keeps its sizes, and autograd sees the write.
at::Tensor own(const at::Tensor& given, bool written) {
  if (written && !given.is_inference()) given.unsafeGetTensorImpl()->bump_version();
  return shallow_copy(given);
}
)"},
      {"copy_of",
       {},
       {"ATen/ops/as_strided.h"},
       R"(
// The same tensor on a copy of its whole storage.
at::Tensor copy_of(const at::Tensor& tensor) {
  const auto elements = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  return at::as_strided(at::as_strided(tensor, {elements}, {1}, 0).clone(), tensor.sizes(), tensor.strides(),
                        tensor.storage_offset());
}
)"},
      {"alias_of", {}, {}, R"(
// Another tensor over the storage of `source`, starting `bytes` after its first element.
at::Tensor alias_of(const at::Tensor& source, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                    int64_t bytes) {
  auto impl = source.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
  const auto type = caffe2::TypeMeta::fromScalarType(dtype);
  const int64_t begin = source.storage_offset() * static_cast<int64_t>(source.itemsize()) + bytes;
  impl->set_storage_and_dtype(source.storage(), type);
  impl->set_sizes_and_strides(sizes, strides, begin / static_cast<int64_t>(type.itemsize()));
  return at::Tensor(std::move(impl));
}
)"},
      {"embedded",
       {},
       {"ATen/ops/as_strided.h", "ATen/ops/empty.h", "cstring", "initializer_list"},
       R"(
template <class T>
at::Tensor embedded(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                    std::initializer_list<T> content) {
  const size_t bytes = content.size() * sizeof(T);
  at::Tensor flat = at::empty({static_cast<int64_t>(bytes / c10::elementSize(dtype))}, dtype);
  if (bytes != 0) std::memcpy(flat.mutable_data_ptr(), content.begin(), bytes);
  return at::as_strided(flat, sizes, strides);
}
)"},
      {"call_operator",
       {},
       {"ATen/core/dispatch/Dispatcher.h", "ATen/core/ivalue.h"},
       R"(
// Calls an operator that ATen's headers do not declare, by its name.
std::vector<c10::IValue> call_operator(const char* name, const char* overload, std::vector<c10::IValue> arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(arguments);
  return arguments;
}
)"},
      {"functional_call",
       {"call_operator"},
       {"ATen/ops/_neg_view.h", "ATen/ops/as_strided.h"},
       R"(
// Runs an operator that writes its arguments on copies of the written storages. Returns its new results, followed by
// the written arguments.
std::vector<c10::IValue> functional_call(const char* name, const char* overload, const std::vector<size_t>& written,
                                         const std::vector<size_t>& fresh, std::vector<c10::IValue> arguments) {
  std::vector<std::pair<const void*, at::Tensor>> copies;
  const auto storage_of = [](const at::Tensor& tensor) -> const void* {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  const auto add = [&](at::Tensor tensor) {
    const void* storage = storage_of(tensor);
    for (const auto& copy : copies) {
      if (copy.first == storage) return;
    }
    if (tensor.is_conj()) tensor = tensor.conj();
    if (tensor.is_neg()) tensor = at::_neg_view(tensor);
    const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
    const auto item = static_cast<int64_t>(tensor.itemsize());
    // In bytes, if the size is not a multiple of the element size.
    if (bytes % item != 0) tensor = at::as_strided(tensor, {bytes < item ? 0 : 1}, {1}, 0).view(at::kByte);
    const int64_t elements = bytes % item != 0 ? bytes : bytes / item;
    copies.emplace_back(storage, at::as_strided(tensor, {elements}, {1}, 0).clone());
  };
  const auto seen_as = [](const at::Tensor& flat, at::ScalarType dtype) {
    if (flat.scalar_type() == dtype) return flat;
    const auto bytes = static_cast<int64_t>(flat.nbytes());
    const int64_t rest = bytes % static_cast<int64_t>(c10::elementSize(dtype));
    return (rest == 0 ? flat : flat.view(at::kByte).narrow(0, 0, bytes - rest)).view(dtype);
  };
  const auto moved = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (const auto& copy : copies) {
      if (copy.first != storage_of(tensor)) continue;
      const at::Tensor flat = seen_as(copy.second, tensor.scalar_type());
      at::Tensor result = at::as_strided(flat, tensor.sizes(), tensor.strides(), tensor.storage_offset());
      if (tensor.is_neg()) result = at::_neg_view(result);
      return tensor.is_conj() ? result.conj() : result;
    }
    return tensor;
  };
  for (const size_t position : written) {
    const c10::IValue& argument = arguments[position];
    if (argument.isTensor() && argument.toTensor().defined()) add(argument.toTensor());
    if (!argument.isTensorList()) continue;
    for (const at::Tensor& tensor : argument.toTensorVector()) {
      if (tensor.defined()) add(tensor);
    }
  }
  for (c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      argument = moved(argument.toTensor());
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(moved(tensor));
      argument = list;
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(moved(*tensor)) : std::nullopt);
      }
      argument = list;
    }
  }
  std::vector<c10::IValue> results;
  std::vector<c10::IValue> kept;
  for (const size_t position : written) kept.push_back(arguments[position]);
  const std::vector<c10::IValue> all = call_operator(name, overload, std::move(arguments));
  for (const size_t position : fresh) results.push_back(all[position]);
  results.insert(results.end(), kept.begin(), kept.end());
  return results;
}
)"},
      {"expect",
       {},
       {"stdexcept", "string", "c10/util/StringUtil.h"},
       R"(
// Throws std::invalid_argument unless an input has the dtype, device and geometry of the captured one.
void expect(const at::Tensor& tensor, const char* name, at::ScalarType dtype, at::Device device, at::IntArrayRef sizes,
            at::IntArrayRef strides) {
  if (!tensor.defined()) throw std::invalid_argument(std::string("missing tensor: ") + name);
  bool fits = tensor.scalar_type() == dtype && tensor.sizes() == sizes && tensor.device().type() == device.type();
  if (fits && tensor.layout() == at::kStrided && tensor.numel() != 0) {
    for (size_t i = 0; i < sizes.size(); ++i) fits &= sizes[i] == 1 || tensor.strides()[i] == strides[i];
  }
  if (fits) return;
  throw std::invalid_argument(c10::str(name, " is ", tensor.scalar_type(), tensor.sizes(), " on ", tensor.device(),
                                       ", but the code was generated for ", dtype, sizes, " with strides ", strides,
                                       " on ", device));
}
)"},
      {"draw_from",
       {},
       {"ATen/Context.h", "ATen/core/Generator.h", "mutex"},
       R"(
// While alive, makes operators use `given` instead of the default generator of its device.
class DrawFrom {
 public:
  explicit DrawFrom(const std::optional<at::Generator>& given) : given_(given) {
    if (!given_) return;
    default_ = at::globalContext().defaultGenerator(given_->device());
    before_ = exchange(state_of(*given_));
  }
  ~DrawFrom() {
    if (!given_) return;
    const at::Tensor after = exchange(before_);
    const std::lock_guard lock(given_->mutex());
    given_->set_state(after);
  }
  DrawFrom(const DrawFrom&) = delete;
  DrawFrom& operator=(const DrawFrom&) = delete;

 private:
  static at::Tensor state_of(at::Generator& from) {
    const std::lock_guard lock(from.mutex());
    return from.get_state();
  }
  at::Tensor exchange(const at::Tensor& state) {
    const std::lock_guard lock(default_.mutex());
    at::Tensor before = default_.get_state();
    default_.set_state(state);
    return before;
  }
  std::optional<at::Generator> given_;
  at::Generator default_;
  at::Tensor before_;
};
)"},
      {"random_state",
       {},
       {"ATen/Context.h", "ATen/core/Generator.h", "mutex"},
       R"(
// Returns the state of the default generator of a device.
at::Tensor random_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
)"},
      {"exchange_random_state",
       {},
       {"ATen/Context.h", "ATen/core/Generator.h", "mutex"},
       R"(
// Sets the state of the default generator of a device; returns the previous one.
at::Tensor exchange_random_state(const at::Tensor& state, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  at::Tensor before = generator.get_state();
  generator.set_state(state);
  return before;
}
)"},
      {"seed_generator",
       {},
       {"ATen/Context.h", "ATen/core/Generator.h", "mutex"},
       R"(
// Seeds the default generator of a device.
void seed_generator(int64_t seed, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(static_cast<uint64_t>(seed));
}
)"},
      {"load_constants", {}, {"fstream", "iterator", "stdexcept", "torch/csrc/jit/serialization/pickle.h"}, ""},
      {"checkpoint",
       {"drop"},
       {"ATen/Context.h", "functional", "mutex", "torch/csrc/autograd/autograd.h",
        "torch/csrc/autograd/custom_function.h"},
       R"(
// Activation checkpoint: saves only the inputs of `function`, and runs it again when backward needs its activations,
// with the same random numbers. `function` may call checkpoint itself. Inputs at the positions `statistics` are only
// written in the first run; the second one gets copies.
using Function = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// The states of the default generators that a function on these tensors may use.
std::vector<std::pair<at::Generator, at::Tensor>> random_states(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Device> devices = {at::kCPU};
  for (const at::Tensor& input : inputs) {
    if (input.defined() && std::find(devices.begin(), devices.end(), input.device()) == devices.end()) {
      devices.push_back(input.device());
    }
  }
  std::vector<std::pair<at::Generator, at::Tensor>> states;
  for (const at::Device device : devices) {
    if (!device.is_cpu() && !device.is_cuda()) continue;
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    states.emplace_back(generator, generator.get_state());
  }
  return states;
}

void set_random_states(const std::vector<std::pair<at::Generator, at::Tensor>>& states) {
  for (auto [generator, state] : states) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

struct Recomputed : torch::CustomClassHolder {
  Function function;
  std::vector<size_t> statistics;
  // parallel to `statistics`: autograd does not allow saved tensors to be written later
  std::vector<at::Tensor> written;
  std::vector<std::pair<at::Generator, at::Tensor>> states;
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const c10::intrusive_ptr<Recomputed>& recomputed,
                                                at::TensorList inputs) {
    recomputed->states = random_states(inputs.vec());
    context->saved_data["recomputed"] = c10::IValue::make_capsule(recomputed);
    std::vector<at::Tensor> kept = inputs.vec();
    for (const size_t i : recomputed->statistics) recomputed->written.push_back(std::exchange(kept[i], at::Tensor()));
    context->save_for_backward(kept);
    return recomputed->function(inputs.vec());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto recomputed = c10::static_intrusive_pointer_cast<Recomputed>(
        context->saved_data["recomputed"].toCapsule());
    torch::autograd::variable_list inputs;
    torch::autograd::variable_list differentiable;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.defined() ? saved.detach().set_requires_grad(saved.requires_grad()) : saved);
      if (saved.defined() && saved.requires_grad()) differentiable.push_back(inputs.back());
    }
    for (size_t i = 0; i < recomputed->statistics.size(); ++i) {
      inputs[recomputed->statistics[i]] = recomputed->written[i].clone();
    }
    const c10::AutoGradMode grad_mode(true);
    const auto now = random_states(inputs);
    set_random_states(recomputed->states);
    const torch::autograd::variable_list outputs = recomputed->function(inputs);
    set_random_states(now);
    torch::autograd::variable_list roots;
    torch::autograd::variable_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    const auto found = torch::autograd::grad(roots, differentiable, root_gradients, std::nullopt, false, true);
    torch::autograd::variable_list results(1);  // none for `recomputed`
    for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
      const bool has = inputs[i].defined() && inputs[i].requires_grad();
      results.push_back(has ? found[next++] : at::Tensor());
    }
    return results;
  }
};

std::vector<at::Tensor> checkpoint(Function function, std::vector<at::Tensor> inputs,
                                   std::vector<size_t> statistics = {}) {
  if (!c10::GradMode::is_enabled()) return function(std::move(inputs));
  auto recomputed = c10::make_intrusive<Recomputed>();
  recomputed->function = std::move(function);
  recomputed->statistics = std::move(statistics);
  return Checkpoint::apply(recomputed, at::TensorList(inputs));  // autograd only tracks this list
}
)"},
  };
  return helpers;
}

}  // namespace

std::string cpp_helpers(std::set<std::string> names, std::set<std::string>& headers) {
  // Helpers come before those that call them, so one walk from the end finds all.
  const auto& helpers = all_helpers();
  for (auto helper = helpers.rbegin(); helper != helpers.rend(); ++helper) {
    if (!names.contains(std::string(helper->name))) continue;
    for (const std::string_view needed : helper->needs) names.emplace(needed);
  }
  std::string text;
  for (const Helper& helper : helpers) {
    if (!names.contains(std::string(helper.name))) continue;
    for (const std::string_view header : helper.headers) headers.emplace(header);
    text += helper.text;
  }
  return text;
}

}  // namespace shadowgraph
