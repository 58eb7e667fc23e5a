#include "core/fake/rules/registry.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

std::atomic<uint64_t> RuleRegistry::generation_{0};

RuleRegistry& RuleRegistry::global() {
  static RuleRegistry* registry = [] {
    auto* fresh = new RuleRegistry;  // leaked: fake tensors may outlive static destruction
    using namespace rules;
    for (Registration* const family :
         {&register_attention, &register_collectives, &register_common_cases, &register_convolution,
          &register_elementwise, &register_factories, &register_indexing, &register_linalg, &register_loss,
          &register_normalization, &register_pooling, &register_quantization, &register_recurrent, &register_reduction,
          &register_shape}) {
      family(*fresh);
    }
    return fresh;
  }();
  return *registry;
}

void RuleRegistry::insert_into(Table& table, const std::string& operator_name, ShapeRule rule,
                               std::source_location place) {
  const std::lock_guard lock(mutex_);
  table[operator_name] = {std::make_shared<const ShapeRule>(std::move(rule)), place};
  generation_.fetch_add(1, std::memory_order_release);
}

namespace {

c10::OperatorName parsed(const std::string& operator_name) {
  return {std::string(without_overload(operator_name)), std::string(overload_of(operator_name))};
}

// Calls a rule with some of an operator's arguments.
struct PartialRule : c10::OperatorKernel {
  PartialRule(c10::KernelFunction kernel, std::vector<size_t> ascending)
      : rule(std::move(kernel)), positions(std::move(ascending)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t begin = stack->size() - op.schema().arguments().size();
    for (size_t i = 0; i < positions.size(); ++i) {
      if (positions[i] != i) (*stack)[begin + i] = std::move((*stack)[begin + positions[i]]);
    }
    stack->resize(begin + positions.size());
    rule.callBoxed(op, keys, stack);
  }
  const c10::KernelFunction rule;
  const std::vector<size_t> positions;
};

}  // namespace

void RuleRegistry::insert_boxed(const char* operator_name, c10::KernelFunction kernel, std::source_location place) {
  const auto op = c10::Dispatcher::singleton().findSchema(parsed(operator_name));
  if (!op) return;
  insert(operator_name, {std::move(kernel), std::make_unique<c10::FunctionSchema>(op->schema())}, place);
}

void RuleRegistry::insert_partial(const char* operator_name, ShapeRule rule,
                                  std::initializer_list<const char*> arguments, std::source_location place) {
  const auto op = c10::Dispatcher::singleton().findSchema(parsed(operator_name));
  if (!op) return;
  const auto& taken_arguments = rule.inferred_schema->arguments();
  TORCH_INTERNAL_ASSERT(arguments.size() == 0 || arguments.size() == taken_arguments.size(), operator_name);
  std::vector<c10::Argument> all = op->schema().arguments();
  std::vector<size_t> positions;
  for (const c10::Argument& taken : taken_arguments) {
    const size_t i = positions.size();
    const auto position = arguments.size() == 0 ? std::optional(static_cast<int>(i))
                                                : op->schema().argumentIndexWithName(std::data(arguments)[i]);
    TORCH_INTERNAL_ASSERT(position, operator_name, " has no argument ", std::data(arguments)[i]);
    positions.push_back(static_cast<size_t>(*position));
    all.at(positions[i]) = all[positions[i]].cloneWithType(taken.real_type());
  }
  TORCH_INTERNAL_ASSERT(std::ranges::is_sorted(positions), operator_name);
  auto schema = std::make_unique<c10::FunctionSchema>(rule.inferred_schema->cloneWithArguments(std::move(all)));
  auto kernel = std::make_unique<PartialRule>(std::move(rule.kernel), std::move(positions));
  insert(operator_name, {c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)), std::move(schema)}, place);
}

RuleRegistry::Entry RuleRegistry::entry_in(const Table& table, const std::string& operator_name) const {
  const std::lock_guard lock(mutex_);
  const auto found = table.find(operator_name);
  return found == table.end() ? Entry() : found->second;
}

std::vector<std::string> RuleRegistry::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, rule] : rules_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::shared_ptr<const OperatorDevices> RuleRegistry::devices(const std::string& operator_name) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(operator_name);
  return found == devices_.end() ? nullptr : found->second;
}

void RuleRegistry::set_devices(const std::string& operator_name, OperatorDevices devices) {
  const std::lock_guard lock(mutex_);
  devices_[operator_name] = std::make_shared<const OperatorDevices>(std::move(devices));
  generation_.fetch_add(1, std::memory_order_release);
}

void check_devices(const OperatorDevices& devices, const c10::FunctionSchema& schema) {
  const auto refuse = [&](const std::string& why) {
    throw Error("register_devices(\"" + toString(schema.operator_name()) + "\"): " + why + ": " + toString(schema));
  };
  if (!devices.results.empty() && devices.results.size() != schema.returns().size()) {
    refuse(c10::str("expected ", schema.returns().size(), " devices for the results, got ", devices.results.size()));
  }
  for (const ResultDevice& result : devices.results) {
    const auto* name = std::get_if<std::string>(&result);
    if (name == nullptr) continue;
    const auto position = schema.argumentIndexWithName(*name);
    if (!position) refuse("a result refers to argument '" + *name + "', which does not exist");
    const std::string type = schema.arguments()[static_cast<size_t>(*position)].type()->repr_str();
    if (type.find("Tensor") == std::string::npos && type.find("Device") == std::string::npos) {
      refuse("a result refers to argument '" + *name + "', which is neither a tensor nor a device");
    }
  }
}

void register_devices(const std::string& operator_name, OperatorDevices devices) {
  const size_t space = operator_name.find("::");
  if (space == std::string::npos || space == 0 || space + 2 == operator_name.size()) {
    throw Error("register_devices: '" + operator_name +
                "' is not an operator name; expected for example \"my::op\" or \"my::op.out\"");
  }
  if (namespace_of(operator_name) == "aten") {
    throw Error("register_devices: " + operator_name +
                " is one of libtorch's operators, whose devices are built in; only user-defined operators can be "
                "registered");
  }
  const auto op = c10::Dispatcher::singleton().findOp(parsed(operator_name));
  if (op && op->hasSchema()) check_devices(devices, op->schema());
  RuleRegistry::global().set_devices(operator_name, std::move(devices));
}

static std::atomic<HasFakeKernel> fake_kernel_finder{nullptr};

void set_fake_kernel_finder(HasFakeKernel finder) { fake_kernel_finder.store(finder, std::memory_order_release); }

bool has_fake_kernel(const std::string& operator_name) {
  const HasFakeKernel find = fake_kernel_finder.load(std::memory_order_acquire);
  return find != nullptr && find(operator_name);
}

void internal::add_rule(const std::string& operator_name, ShapeRule rule) {
  rule.sees_devices = true;
  RuleRegistry::global().insert(operator_name, std::move(rule), std::source_location());
}

void internal::add_composite_rule(const std::string& operator_name, ShapeRule rule) {
  RuleRegistry::global().insert_composite(operator_name, std::move(rule), std::source_location());
}

std::vector<std::string> operators_with_rule() { return RuleRegistry::global().names(); }

}  // namespace shadowgraph

namespace shadowgraph::rules {

c10::Device simulated_device() { return thread_state.kernel_device(); }

const DeviceProfile& device_profile() {
  static const DeviceProfile standard;
  return thread_state.mode != nullptr ? thread_state.mode->profile() : standard;
}

at::Tensor stand_in(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::Tensor& dtype_of) {
  const c10::Device device = simulated_device();
  const c10::DispatchKey key = device.is_cuda()  ? c10::DispatchKey::CUDA
                               : device.is_cpu() ? c10::DispatchKey::CPU
                                                 : c10::DispatchKey::Meta;
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::DispatchKeySet(key), dtype_of.dtype(), device);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

at::Tensor stand_in(const at::Tensor& like) { return stand_in(like.sizes(), like.strides(), like); }

static bool in_call() { return thread_state.kernel_depth != 0 || thread_state.in_user_kernel; }

at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::MemoryFormat format) {
  if (!in_call()) return at::detail::empty_meta(sizes, dtype, format);
  return FakeTensorImpl::empty(sizes, c10::scalarTypeToTypeMeta(dtype), format, simulated_device());
}

at::Tensor empty(c10::IntArrayRef sizes, const at::Tensor& dtype_of, c10::MemoryFormat format) {
  return empty(sizes, dtype_of.scalar_type(), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  if (!in_call()) return at::detail::empty_strided_meta(sizes, strides, dtype);
  return FakeTensorImpl::empty_strided(sizes, strides, c10::scalarTypeToTypeMeta(dtype), simulated_device());
}

at::Tensor alias(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  if (const FakeTensorImpl* fake = as_fake(base)) return fake->view(sizes, strides, offset);
  auto view = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                   base.dtype());
  view->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(view));
}

at::Tensor empty_like(const at::Tensor& like, c10::ScalarType dtype) {
  if (like.is_non_overlapping_and_dense()) return empty_strided(like.sizes(), like.strides(), dtype);
  return empty_strided(like.sizes(), at::infer_dense_strides(like.sizes(), like.strides()), dtype);
}

at::Tensor empty_like(const at::Tensor& like) { return rules::empty_like(like, like.scalar_type()); }

at::Tensor empty_like(const at::Tensor& like, c10::MemoryFormat format) {
  if (format == c10::MemoryFormat::Preserve) return rules::empty_like(like);
  return empty(like.sizes(), like.scalar_type(), format);
}

namespace {

struct LikeArguments : c10::OperatorKernel {
  LikeArguments(std::vector<size_t> positions, at::Tensor (*like)(const at::Tensor&))
      : arguments(std::move(positions)), empty_of(like) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t begin = stack->size() - op.schema().arguments().size();
    torch::jit::Stack results;
    for (const size_t argument : arguments) results.emplace_back(empty_of((*stack)[begin + argument].toTensor()));
    stack->resize(begin);
    stack->insert(stack->end(), results.begin(), results.end());
  }
  const std::vector<size_t> arguments;
  at::Tensor (*const empty_of)(const at::Tensor&);
};

at::Tensor iterate(const at::Tensor& output, Operands inputs, const Elementwise& how) {
  at::TensorIteratorConfig config;
  config.allow_cpu_scalars(true).set_check_mem_overlap(output.defined());
  if (how.output) {
    config.check_all_same_dtype(false);
    if (!output.defined()) config.declare_static_dtype_and_device(*how.output, c10::Device(c10::DeviceType::Meta));
  } else if (how.promote) {
    config.promote_inputs_to_common_dtype(true)
        .promote_integer_inputs_to_float(how.integer_to_float)
        .cast_common_dtype_to_outputs(how.cast_output)
        .enforce_safe_casting_to_output(true);
  }
  config.add_owned_output(output);
  for (const at::Tensor& input : inputs) config.add_const_input(input);
  const bool own = thread_state.in_user_kernel && thread_state.kernel_depth == 0;
  // TensorIterator allocates on the device of its operands.
  const KernelDepth depth;
  at::Tensor result = config.build().output();
  if (own && !is_fake(result)) {
    result = FakeTensorImpl::wrap(*result.unsafeGetTensorImpl(), simulated_device());
    as_fake(result)->mark_fresh();
  }
  return result;
}

}  // namespace

void add_like(RuleRegistry& registry, std::initializer_list<const char*> names, const std::vector<size_t>& arguments,
              at::Tensor (*empty_of)(const at::Tensor&), std::source_location place) {
  for (const char* name : names) {
    auto rule = std::make_unique<LikeArguments>(arguments, empty_of);
    registry.insert_boxed(name, c10::KernelFunction::makeFromBoxedFunctor(std::move(rule)), place);
  }
}

at::Tensor elementwise(Operands inputs, const Elementwise& how) { return iterate({}, inputs, how); }

at::Tensor& elementwise_into(at::Tensor& output, Operands inputs, const Elementwise& how) {
  iterate(output, inputs, how);
  return output;
}

c10::DimVector reduced_sizes(const at::Tensor& input, at::OptionalIntArrayRef dims, bool keepdim) {
  const auto reduced = at::dim_list_to_bitset(dims.value_or(c10::IntArrayRef{}), static_cast<size_t>(input.dim()));
  const bool all = !dims.has_value() || dims->empty();
  c10::DimVector sizes;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (!all && !reduced[static_cast<size_t>(d)]) {
      sizes.push_back(input.size(d));
    } else if (keepdim) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

}  // namespace shadowgraph::rules

namespace shadowgraph {
namespace {

// The dispatcher has no API for hidden kernels, but an explicit instantiation may name private members:
// OperatorHandle's pointer to its definition, and OperatorEntry's kernels by dispatch key, newest first (libtorch
// 2.13.0).
template <class Name, auto member>
struct PrivateMember {
  friend constexpr auto private_member(Name) { return member; }
};
struct Definition {
  friend constexpr auto private_member(Definition);
};
struct Kernels {
  friend constexpr auto private_member(Kernels);
};
template struct PrivateMember<Definition, &c10::OperatorHandle::operatorDef_>;
template struct PrivateMember<Kernels, &c10::impl::OperatorEntry::kernels_>;

const c10::KernelFunction* cpp_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  const auto& kernels = (op.*private_member(Definition()))->op.*private_member(Kernels());
  const auto found = kernels.find(key);
  if (found == kernels.end()) return nullptr;
  for (const auto& annotated : found->second) {
    const c10::KernelFunction& kernel = annotated.kernel;
    // Kernels from Python are boxed only.
    if (!kernel.isFallthrough() && (kernel.isValidUnboxed() || kernel.isValidSymUnboxed())) return &kernel;
  }
  return nullptr;
}

// Returns whether the environment selects Python's kernels, so that a test can compare the two.
bool uses_python_kernels() {
  static const char* const kernels = std::getenv("SHADOWGRAPH_META_KERNELS");
  static const bool python = kernels != nullptr && std::string_view(kernels) == "python";
  return python;
}

}  // namespace

const c10::KernelFunction* cpp_meta_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (uses_python_kernels() && op.hasKernelForDispatchKey(DispatchKey::Meta)) return nullptr;
  for (const auto key : {DispatchKey::Meta, DispatchKey::CompositeExplicitAutogradNonFunctional,
                         DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeImplicitAutograd}) {
    if (const auto* kernel = cpp_kernel(op, key)) return kernel;
    // For user-defined operators, Python's kernel takes precedence over composite kernels.
    if (key == DispatchKey::Meta && has_dedicated_meta_kernel(op)) return nullptr;
  }
  return nullptr;
}

bool has_dedicated_meta_kernel(const c10::OperatorHandle& op) {
  const auto space = op.schema().getNamespace();
  if (space && *space == "aten") return cpp_kernel(op, c10::DispatchKey::Meta) != nullptr;
  return op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

}  // namespace shadowgraph
