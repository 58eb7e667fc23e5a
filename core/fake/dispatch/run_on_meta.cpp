#include "core/fake/dispatch/run_on_meta.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/_nested_tensor_from_mask_left_aligned.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <cstring>
#include <utility>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "core/fake/tensors_in_value.h"
#include "core/fake/thread_state.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_forms.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/capture/shape_rules.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using torch::jit::Stack;

// Returns the dtype that the iterator computes in. `result_dtype` shows whether the operator promotes integers to
// float.
c10::ScalarType common_dtype(const OperatorInfo& info, const Stack& arguments, c10::ScalarType result_dtype) {
  at::native::ResultTypeState state;
  const auto& formals = info.op.schema().arguments();
  for (size_t i = 0; i < formals.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (argument.isTensor() && argument.toTensor().defined()) {
      state = at::native::update_result_type_state(argument.toTensor(), state);
    } else if (argument.isScalar() && formals[i].name() == "other") {
      state = at::native::update_result_type_state(argument.toScalar(), state);
    }
  }
  const c10::ScalarType common = at::native::result_type(state);
  const bool promoted_to_float = c10::isIntegralType(common, /*includeBool=*/true) && c10::isFloatingType(result_dtype);
  return promoted_to_float ? c10::get_default_dtype_as_scalartype() : common;
}

// Replaces operands by the metadata of their copies; returns whether any is copied.
bool replace_operands(const OperatorInfo& info, Stack& arguments, c10::ScalarType common) {
  bool replaced = false;
  for (const uint16_t position : info.tensor_arguments) {
    c10::IValue& argument = arguments[position];
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& operand = argument.toTensor();
    if (operand.scalar_type() == common || operand.is_non_overlapping_and_dense()) continue;
    argument = rules::empty_like(operand, common);
    replaced = true;
  }
  return replaced;
}

// Runs a call with `out=`, which is checked and resized for the original operands. Only if it is resized do its strides
// depend on the operands; they are then those of the functional overload.
void run_with_out(const OperatorInfo& info, Stack* stack, MetaKernel kernel) {
  const size_t begin = stack->size() - info.argument_count;
  Stack functional;
  at::Tensor out;
  for (size_t i = 0; i < info.argument_count; ++i) {
    const bool written = i < 64 && ((info.written_arguments >> i) & 1) != 0;
    if (!written) {
      functional.push_back((*stack)[begin + i]);
    } else {
      out = (*stack)[begin + i].toTensor();
    }
  }
  const auto sizes = out.sizes().vec();
  kernel(info, stack);
  if (out.sizes() == sizes) return;
  const FreshForm* form = fresh_form(info.target);
  if (form == nullptr || form->arguments.size() != functional.size()) return;
  form->op.callBoxed(functional);
  out.unsafeGetTensorImpl()->set_sizes_and_strides(out.sizes(), functional[0].toTensor().strides());
}

}  // namespace

bool copies_operands_on_cpu(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const OperatorFact is = operator_row(toString(schema.operator_name())).is;
  if (is & OperatorFact::kOwnDtypes) return false;
  if (!op.hasTag(at::Tag::pointwise) && !(is & OperatorFact::kPromotes)) return false;
  size_t outs = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.is_out()) {
      ++outs;
    } else if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      return false;  // in place: the result has its strides already
    }
  }
  return outs < 2 && schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::TensorType;
}

void run_with_copied_operands(const OperatorInfo& info, Stack* stack, MetaKernel kernel) {
  if (info.writes) {
    run_with_out(info, stack, kernel);
    return;
  }
  const size_t begin = stack->size() - info.argument_count;
  Stack again(stack->begin() + static_cast<int64_t>(begin), stack->end());
  kernel(info, stack);
  const c10::ScalarType dtype = stack->back().toTensor().scalar_type();
  if (!replace_operands(info, again, common_dtype(info, again, dtype))) return;
  kernel(info, &again);
  const at::Tensor laid_out = again.back().toTensor();
  // mish_backward returns its input's dtype, which is the common one here.
  const bool keeps_dtype = laid_out.scalar_type() == dtype;
  stack->back() = keeps_dtype ? laid_out : rules::empty_strided(laid_out.sizes(), laid_out.strides(), dtype);
}

// Rejects outputs whose elements share memory with each other or with an operand. A pointwise kernel may write to an
// operand.
static void check_overlap(const std::vector<at::Tensor>& outs, const torch::jit::Stack& operands, bool pointwise) {
  for (const at::Tensor& out : outs) {
    at::assert_no_internal_overlap(out);
    for (const c10::IValue& operand : operands) {
      if (!operand.isTensor() || !operand.toTensor().defined()) continue;
      if (pointwise) {
        at::assert_no_partial_overlap(out, operand.toTensor());
      } else {
        at::assert_no_overlap(out, operand.toTensor());
      }
    }
  }
}

const FreshForm* form_of_tensors(const Target& op) {
  size_t results = 0;
  for (const Formal& argument : op.signature().arguments) {
    if (!argument.out) continue;
    if (argument.type.type != TypeClass::kTensor || argument.type.optional) return nullptr;
    ++results;
  }
  return results != 0 && results == op.signature().returns.size() ? fresh_form(op) : nullptr;
}

void run_out_form(const c10::OperatorHandle& out_form, const FreshForm& fresh, torch::jit::Stack* stack) {
  const auto& formals = out_form.schema().arguments();
  const size_t begin = stack->size() - formals.size();
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < formals.size(); ++i) {
    if (formals[i].is_out()) outs.push_back((*stack)[begin + i].toTensor());
  }
  torch::jit::Stack inner;
  for (size_t i = 0; i < fresh.arguments.size(); ++i) {
    if (fresh.arguments[i] != FreshForm::kOfResult) {
      inner.push_back((*stack)[begin + fresh.arguments[i]]);
    } else if (fresh.op.schema().arguments()[i].name() == "dtype") {
      inner.emplace_back(outs[0].scalar_type());
    } else {
      inner.emplace_back();
    }
  }
  const bool pointwise = out_form.hasTag(at::Tag::pointwise);  // a TensorIterator: the result has its strides
  check_overlap(outs, inner, pointwise);
  fresh.op.callBoxed(inner);
  const std::string name = toString(out_form.operator_name());
  const OperatorFact is = operator_row(name).is;
  const bool always = is & OperatorFact::kNewStrides;
  const bool if_resized = pointwise || (is & OperatorFact::kNewStridesIfResized);
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& result = inner[i].toTensor();
    TORCH_CHECK(c10::canCast(result.scalar_type(), outs[i].scalar_type()), name, ": result type ", result.scalar_type(),
                " can't be cast to the desired output type ", outs[i].scalar_type());
    const bool resized = at::native::resize_output(outs[i], result.sizes());
    if (always || (if_resized && resized)) outs[i].as_strided_(result.sizes(), result.strides());
  }
  stack->erase(stack->begin() + static_cast<std::ptrdiff_t>(begin), stack->end());
  for (at::Tensor& out : outs) stack->emplace_back(std::move(out));
}

void throw_data_dependent(const OperatorInfo& info) {
  throw DataDependentError(
      info.name +
      ": the result depends on the data of a fake tensor, which has none. Compute the value from sizes or from tensors "
      "with known contents, pass it in as a number, or run this part on real tensors under an UnfakeGuard");
}

bool reads_data(const c10::Error& error) {
  const std::string_view words = error.what_without_backtrace();
  return words.find("its data is not allocated yet") != std::string_view::npos ||
         words.find(kPrintedFakeError) != std::string_view::npos;
}

namespace {

// Returns false if there is no functional form, or if it calls the out= form itself (linalg_lstsq).
bool run_as_out_form(const OperatorInfo& info, Stack* stack) {
  if (!info.writes || thread_state.run_as_functional == &info) return false;
  const FreshForm* fresh = form_of_tensors(info.target);
  if (fresh == nullptr) return false;
  struct Running {
    const OperatorInfo* outer;
    explicit Running(const OperatorInfo* now) : outer(std::exchange(thread_state.run_as_functional, now)) {}
    ~Running() { thread_state.run_as_functional = outer; }
  } const guard(&info);
  run_out_form(info.op, *fresh, stack);
  return true;
}

// Returns the value if it follows from assumed routing indices.
std::optional<HostReadValues::Assumed> assumed_number(const at::Tensor& tensor) {
  const Assumptions assumptions = assumptions_of(tensor);
  const auto value = assumptions.empty() ? std::nullopt : known_value(tensor);
  if (!value) return std::nullopt;
  note_read(assumptions);
  const RealCalls real;
  return HostReadValues::Assumed{value->item(), "assumed by " + names_of(assumptions)};
}

constexpr const char* kDenseEncoder =
    "; nn.TransformerEncoder keeps dense tensors with enable_nested_tensor=False, or if its mask is not left aligned "
    "(host_reads {\"left_aligned0\": False})";

// Returns whether nested tensors can be made from a mask with known contents: nn.TransformerEncoder asks for it.
std::optional<HostReadValues::Assumed> known_alignment(const at::Tensor& tensor, const at::Tensor& mask) {
  const auto known = known_value(mask);
  if (!known) return std::nullopt;
  note_read(assumptions_of(mask));
  const RealCalls real;
  const bool aligned = at::_nested_tensor_from_mask_left_aligned(at::zeros({1}).expand(tensor.sizes()), *known);
  return HostReadValues::Assumed{aligned, "of a mask with known contents"};
}

// Returns a user-provided value for a host read (item(), equal()). Returns false for other calls.
bool provide_host_read(const OperatorInfo& info, Stack* stack) {
  static const c10::OperatorHandle item =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_local_scalar_dense", "");
  static const c10::OperatorHandle equal = c10::Dispatcher::singleton().findSchemaOrThrow("aten::equal", "");
  static const c10::OperatorHandle aligned =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_nested_tensor_from_mask_left_aligned", "");
  const bool is_equal = info.key == OperatorInfo::of(equal).key;
  const bool is_aligned = info.key == OperatorInfo::of(aligned).key;
  if (!is_equal && !is_aligned && info.key != OperatorInfo::of(item).key) return false;
  static auto* none = new HostReadValues;  // outside a mode no values are provided
  ModeState* mode = thread_state.mode;
  HostReadValues& values = mode != nullptr ? mode->host_read_values : *none;
  const std::string source = mode != nullptr && mode->observer != nullptr ? mode->observer->location() : "";
  const at::Tensor self = (*stack)[stack->size() - info.argument_count].toTensor();
  std::optional<c10::Scalar> value;
  if (is_equal) {
    const at::Tensor other = stack->back().toTensor();
    if (!self.sizes().equals(other.sizes())) {
      value = false;
    } else if (self.is_alias_of(other) && self.storage_offset() == other.storage_offset() &&
               self.strides().equals(other.strides()) && self.dtype() == other.dtype() &&
               self.is_conj() == other.is_conj() && self.is_neg() == other.is_neg()) {
      value = self.is_floating_point() || self.is_complex()
                  ? values.assume("equal", true, "itself, assumed without NaN", source)
                  : c10::Scalar(true);
    }
  }
  if (is_aligned) {
    const at::Tensor mask = stack->back().toTensor();
    try {
      value = values.read(info.name, "left_aligned", mask, source, [&] { return known_alignment(self, mask); });
    } catch (const DataDependentError& error) {
      throw DataDependentError(std::string(error.what()) + kDenseEncoder);
    }
  } else if (!value) {
    value = values.read(info.name, is_equal ? "equal" : "item", self, source,
                        [&] { return is_equal ? std::nullopt : assumed_number(self); });
  }
  torch::jit::drop(*stack, info.argument_count);
  stack->push_back(is_equal || is_aligned ? c10::IValue(value->toBool()) : c10::IValue(*value));
  return true;
}

// Throws for operands of dtypes that eager's kernel refuses where the Meta kernel does not (OperatorRow::same_dtype).
void check_dtypes(const OperatorInfo& info, const Stack& stack) {
  const OperatorRow row = operator_row(info.name);
  const size_t begin = stack.size() - info.argument_count;
  std::optional<c10::ScalarType> first;
  bool empty = false;  // then no kernel runs
  for_each_tensor(stack, begin, info.tensor_arguments, [&](const at::Tensor& tensor) {
    if (first || !tensor.defined()) return;
    first = tensor.scalar_type();
    empty = tensor.numel() == 0;
  });
  if (!first) return;
  const bool integral = c10::isIntegralType(*first, /*includeBool=*/true);
  const bool refused = ((row.is & OperatorFact::kFloatingOnly) && integral) ||
                       ((row.is & OperatorFact::kFloatingOrBytes) && integral && *first != c10::kByte) ||
                       ((row.is & OperatorFact::kIntegersOnly) && !integral);
  TORCH_CHECK_NOT_IMPLEMENTED(!refused || empty, '"', info.name, "\" not implemented for '", *first, "'");
  std::optional<c10::ScalarType> common;
  const auto check = [&](std::string_view names, bool or_float) {
    for_each_name(names, [&](std::string_view name) {
      const auto position = info.op.schema().argumentIndexWithName(std::string(name));
      if (!position) return;
      for_each_tensor(stack[begin + static_cast<size_t>(*position)], [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return;
        const c10::ScalarType dtype = tensor.scalar_type();
        if (!common) common = dtype;
        const bool lower = *common == c10::kHalf || *common == c10::kBFloat16;
        if (dtype == *common || (or_float && lower && dtype == c10::kFloat)) return;
        TORCH_CHECK(false, info.name, ": operands must have one dtype, but got ", *common, " and, as '", name, "', ",
                    dtype);
      });
    });
  };
  check(row.same_dtype, /*or_float=*/false);
  check(row.same_dtype_or_float, !(row.is & OperatorFact::kMixedOnCpu) || thread_state.kernel_device().is_cpu());
}

}  // namespace

void run_kernel(const OperatorInfo& info, Stack* stack) {
  if (info.checks_dtypes) check_dtypes(info, *stack);
  static const c10::DispatchKeySet meta_keys(c10::DispatchKey::Meta);
  switch (info.route) {
    case Route::kRule:
      info.rule->kernel.callBoxed(info.op, meta_keys, stack);
      return;
    case Route::kComposite:
    case Route::kMeta:
      if (info.meta_kernel != nullptr) {
        info.meta_kernel->callBoxed(info.op, meta_keys, stack);
      } else {
        info.op.redispatchBoxed(meta_keys, stack);
      }
      return;
    case Route::kDataDependent:
      if (run_as_out_form(info, stack) || provide_host_read(info, stack)) return;
      throw_data_dependent(info);
    case Route::kNone:
      if (info.makes_quantized) {
        throw NoRuleError(
            info.name +
            " creates a tensor of a quantized dtype, which fake tensors do not support. Use "
            "torch.fake_quantize_per_tensor_affine and similar operators for quantization-aware training, "
            "or int8 tensors with separate scales for quantized weights");
      }
      if (run_as_out_form(info, stack)) return;
      if (info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {  // registered later
        info.op.redispatchBoxed(meta_keys, stack);
        return;
      }
      if (info.name.find("nested_tensor") != std::string::npos) {
        throw NoRuleError(info.name + " creates a nested tensor, which fake tensors do not support" + kDenseEncoder);
      }
      throw NoRuleError(info.name +
                        " has no shape rule, no decomposition and no Meta kernel. Register a rule with "
                        "torch.library.register_fake in "
                        "Python, or shadowgraph::register_rule(\"" +
                        info.name +
                        "\", &function), where function has the operator's C++ signature and returns fake tensors; see "
                        "docs/adding-an-operator.md");
  }
}

void run_on_meta(const OperatorInfo& info, Stack* stack) {
  if (info.copies_operands && thread_state.kernel_device().is_cpu()) {
    OperandDtypes operands;
    for (const uint16_t position : info.tensor_arguments) {
      const c10::IValue& argument = (*stack)[stack->size() - info.argument_count + position];
      if (argument.isTensor()) operands.see(argument.toTensor());
    }
    if (operands.may_be_copied()) {
      run_with_copied_operands(info, stack, &run_kernel);
      return;
    }
  }
  run_kernel(info, stack);
}

namespace {

[[noreturn]] void refuse(const OperatorInfo& info, const std::string& why) {
  throw NoRuleError(info.name +
                    " has no shape rule, no decomposition and no C++ Meta kernel, and cannot run on zeros because " +
                    why + ". Register a rule; see docs/adding-an-operator.md");
}

at::Tensor zeros_of(const at::Tensor& fake) {
  at::Tensor real = at::detail::empty_strided_cpu(fake.sizes(), fake.strides(), fake.scalar_type());
  if (real.storage().nbytes() != 0) std::memset(real.storage().mutable_data(), 0, real.storage().nbytes());
  return real;
}

// Returns whether an operand is an index: an integer tensor among other tensors, or an operator with a telling name.
bool indexes(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) {
  for (const char* word : {"index", "gather", "scatter", "embedding", "take", "put_", "lookup", "select"}) {
    if (info.name.find(word) != std::string::npos) return true;
  }
  int tensors = 0;
  bool integers = false;
  for_each_tensor(stack, begin, info.tensor_arguments, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    ++tensors;
    integers = integers || c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  });
  return integers && tensors > 1;
}

}  // namespace

void run_on_zeros(const OperatorInfo& info, torch::jit::Stack& stack, size_t begin, c10::Device device) {
  if (!info.op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) refuse(info, "it has no CPU kernel");
  if (info.inplace_view) refuse(info, "it changes the geometry of its operand");
  if (info.is_view) refuse(info, "its results are views");
  if (indexes(info, stack, begin)) refuse(info, "it indexes with an operand, and zeros could be out of bounds");

  const torch::jit::Stack fakes(stack.begin() + static_cast<ptrdiff_t>(begin), stack.end());
  torch::jit::Stack real = fakes;
  std::vector<std::pair<at::Tensor, at::Tensor>> operands;  // real, fake
  const auto converted = [&](const at::Tensor& fake) {
    if (as_fake(fake) == nullptr) return fake;
    operands.emplace_back(zeros_of(fake), fake);
    return operands.back().first;
  };
  const auto faked = [&](const at::Tensor& result) {
    for (const auto& [zeros, fake] : operands) {
      if (zeros.is_same(result)) return fake;
      if (zeros.is_alias_of(result))
        refuse(info, "a result shares memory with an operand, which its schema does not declare");
    }
    return FakeTensorImpl::empty_strided(result.sizes(), result.strides(), result.dtype(), device);
  };
  const RealCalls calls;
  for (const uint16_t position : info.tensor_arguments) real[position] = with_tensors(real[position], converted);
  if (info.device_argument >= 0) real[static_cast<size_t>(info.device_argument)] = c10::Device(c10::DeviceType::CPU);
  info.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &real);
  stack.resize(begin);
  for (const c10::IValue& result : real) {
    if (!result.isTensor() && !result.isTensorList()) {
      throw DataDependentError(info.name + " returns a " + result.tagKind() +
                               " that depends on data; running it on zeros would give a wrong value");
    }
    stack.push_back(with_tensors(result, faked));
  }
}

}  // namespace shadowgraph
