// Pointwise operators as TensorIterator configurations. Each row of register_elementwise names an operator and the
// types of its operands and result; the functional, in-place and out= forms follow from that.
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub.h>
#include <c10/core/InferenceMode.h>

#include "core/fake/rules/registry.h"
#include "core/fake/thread_state.h"

namespace shadowgraph::rules {
namespace {

constexpr Elementwise kSameDtype{.promote = false};
constexpr Elementwise kPromote{};
constexpr Elementwise kFloat{.integer_to_float = true};
constexpr Elementwise kBool{.output = c10::kBool};

// The three forms of an operator with one or two tensors; Extra arguments do not affect the result's metadata.
template <const Elementwise& how, class... Extra>
struct Unary {
  static Tensor functional(const Tensor& x, Extra...) { return elementwise({x}, how); }
  static Tensor& in_place(Tensor& x, Extra...) { return elementwise_into(x, {x}, how); }
  static Tensor& out(const Tensor& x, Extra..., Tensor& result) { return elementwise_into(result, {x}, how); }
};
template <const Elementwise& how, class... Extra>
struct Binary {
  static Tensor functional(const Tensor& x, const Tensor& y, Extra...) { return elementwise({x, y}, how); }
  static Tensor& in_place(Tensor& x, const Tensor& y, Extra...) { return elementwise_into(x, {x, y}, how); }
  static Tensor& out(const Tensor& x, const Tensor& y, Extra..., Tensor& result) {
    return elementwise_into(result, {x, y}, how);
  }
};

template <class Forms>
void add_forms(RuleRegistry& registry, const std::string& name) {
  registry.add("aten::" + name, &Forms::functional);
  registry.add("aten::" + name + "_", &Forms::in_place);
  registry.add("aten::" + name + ".out", &Forms::out);
}

ScalarType real_type(const Tensor& x) { return c10::toRealValueType(x.scalar_type()); }

void check_abs(const Tensor& x) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != c10::kBool || on_cuda(), "\"abs_cpu\" not implemented for 'Bool'");
}

// Complex: computed into an empty_like, which keeps the strides of size-1 dimensions that TensorIterator would choose.
Tensor abs(const Tensor& x) {
  check_abs(x);
  return x.is_complex() ? rules::empty_like(x, real_type(x)) : elementwise({x}, {.output = real_type(x)});
}

Tensor& abs_(Tensor& x) {
  check_abs(x);
  TORCH_CHECK(!x.is_complex(), "In-place abs is not supported for complex tensors.");
  return elementwise_into(x, {x}, kSameDtype);
}

Tensor& abs_out(const Tensor& x, Tensor& result) {
  check_abs(x);
  return elementwise_into(result, {x}, {.output = real_type(x)});
}

// Complex angles are computed in a complex tensor and copied to a contiguous real one.
Tensor angle(const Tensor& x) {
  return x.is_complex() ? rules::empty(x.sizes(), real_type(x)) : elementwise({x}, kFloat);
}

TwoTensors frexp(const Tensor& x) {
  TORCH_CHECK(x.is_floating_point(), "torch.frexp() only supports floating-point dtypes");
  return {rules::empty_like(x), rules::empty_like(x, c10::kInt)};
}

std::tuple<Tensor&, Tensor&> frexp_out(const Tensor& x, Tensor& mantissa, Tensor& exponent) {
  TORCH_CHECK(x.is_floating_point(), "torch.frexp() only supports floating-point dtypes");
  TORCH_CHECK(mantissa.scalar_type() == x.scalar_type(),
              "torch.frexp() expects mantissa to have the dtype of the input, but got ", mantissa.scalar_type());
  TORCH_CHECK(exponent.scalar_type() == c10::kInt, "torch.frexp() expects exponent to have int dtype but got ",
              exponent.scalar_type());
  elementwise_into(mantissa, {x}, kSameDtype);
  elementwise_into(exponent, {x}, {.output = c10::kInt});
  return {mantissa, exponent};
}

ScalarType complex_type_of(const Tensor& x, const Tensor& y) {
  TORCH_CHECK(x.is_floating_point() && y.is_floating_point() && x.scalar_type() != c10::kBFloat16 &&
                  y.scalar_type() != c10::kBFloat16,
              "Expected both inputs to be Half, Float or Double tensors but got ", x.scalar_type(), " and ",
              y.scalar_type());
  TORCH_CHECK(x.scalar_type() == y.scalar_type(), "Expected object of scalar type ", x.scalar_type(),
              " but got scalar type ", y.scalar_type(), " for second argument");
  return c10::toComplexType(x.scalar_type());
}

// Creates complex numbers from real and imaginary parts, or from magnitudes and angles.
Tensor complex_of(const Tensor& x, const Tensor& y) { return elementwise({x, y}, {.output = complex_type_of(x, y)}); }

Tensor& complex_of_out(const Tensor& x, const Tensor& y, Tensor& result) {
  const ScalarType dtype = complex_type_of(x, y);
  TORCH_CHECK(result.scalar_type() == dtype, "Expected object of scalar type ", dtype, " but got scalar type ",
              result.scalar_type(), " for argument 'out'");
  return elementwise_into(result, {x, y}, {.output = dtype});
}

// On every device the operands are copied to their common dtype first, a byte condition to bool.
struct WhereOperands {
  Tensor condition;
  Tensor x;
  Tensor y;
  ScalarType dtype;

  static WhereOperands of(const Tensor& condition, const Tensor& x, const Tensor& y) {
    TORCH_CHECK(condition.scalar_type() == c10::kBool || condition.scalar_type() == c10::kByte,
                "where expected condition to be a boolean tensor, but got a tensor with dtype ",
                condition.scalar_type());
    const ScalarType dtype = at::result_type(x, y);
    return {as_dtype(condition, c10::kBool), as_dtype(x, dtype), as_dtype(y, dtype), dtype};
  }

 private:
  static Tensor as_dtype(const Tensor& x, ScalarType dtype) {
    return x.scalar_type() == dtype || x.dim() == 0 ? x : rules::empty_like(x, dtype);
  }
};

Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  const WhereOperands choice = WhereOperands::of(condition, x, y);
  return elementwise({choice.condition, choice.x, choice.y}, {.output = choice.dtype});
}

Tensor& where_out(const Tensor& condition, const Tensor& x, const Tensor& y, Tensor& result) {
  const WhereOperands choice = WhereOperands::of(condition, x, y);
  TORCH_CHECK(result.scalar_type() == choice.dtype, "Expected out type to be ", choice.dtype, " but got ",
              result.scalar_type());
  return elementwise_into(result, {choice.condition, choice.x, choice.y}, {.output = choice.dtype});
}

// Fills elements that share memory: eager only warns.
Tensor& masked_fill_(Tensor& x, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_fill_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  const auto shape = at::infer_size(x.sizes(), mask.sizes());
  TORCH_CHECK(x.sizes().equals(shape), "output with shape ", x.sizes(), " doesn't match the broadcast shape ",
              IntArrayRef(shape));
  return x;
}

Tensor& masked_fill_scalar_(Tensor& x, const Tensor& mask, const Scalar& value) {
  masked_fill_(x, mask);
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(c10::kBool, c10::kHalf, c10::kBFloat16, x.scalar_type(), "masked_fill",
                                         [&] { (void)value.to<scalar_t>(); });  // throws if it overflows
  return x;
}

Tensor& masked_fill_tensor_(Tensor& x, const Tensor& mask, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  return masked_fill_(x, mask);
}

Tensor rsub(const Tensor& x, const Tensor& y, const Scalar& alpha) { return at::sub(y, x, alpha); }

Tensor with_number(const Tensor& x, const Scalar& number) {
  const Tensor wrapped = at::native::wrapped_scalar_tensor(number);
  return elementwise({x, wrapped});
}

Tensor number_with(const Scalar& number, const Tensor& x) { return with_number(x, number); }

Tensor relu(const Tensor& x) {
  TORCH_CHECK(x.scalar_type() != c10::kBool, "Boolean inputs not supported for relu");
  return elementwise({x}, kSameDtype);
}

Tensor& relu_(Tensor& x) {
  TORCH_CHECK(x.scalar_type() != c10::kBool, "Boolean inputs not supported for relu");
  return elementwise_into(x, {x}, kSameDtype);
}

void check_hardtanh(const Tensor& x, const Scalar& low, const Scalar& high) {
  TORCH_CHECK(x.scalar_type() != c10::kBool, "Bool inputs not supported for hardtanh");
  TORCH_CHECK(x.scalar_type() != c10::kByte || (low.toDouble() >= 0 && high.toDouble() >= 0),
              "cannot do hardtanh on an unsigned type with negative limits");
}

Tensor hardtanh(const Tensor& x, const Scalar& low, const Scalar& high) {
  check_hardtanh(x, low, high);
  return rules::empty_like(x);
}

Tensor& hardtanh_(Tensor& x, const Scalar& low, const Scalar& high) {
  check_hardtanh(x, low, high);
  return elementwise_into(x, {x}, kSameDtype);
}

// Has the input's dtype, even if the gradient has another.
Tensor mish_backward(const Tensor& grad, const Tensor& x) {
  Tensor result = rules::empty({0}, x);
  return elementwise_into(result, {grad, x});
}

// The functional result copied into a contiguous one.
Tensor& mvlgamma_out(const Tensor& x, Tensor& result) {
  if (result.sizes() == x.sizes()) return elementwise_into(result, {x}, kFloat);
  const Tensor contiguous = rules::empty_contiguous_like(x);
  return elementwise_into(result, {contiguous}, kFloat);
}

Tensor glu_backward(const Tensor& x, int64_t dim) {
  TORCH_CHECK(x.dim() > 0, "glu does not support 0-dimensional tensors");
  const int64_t d = c10::maybe_wrap_dim(dim, x.dim());
  TORCH_CHECK(x.size(d) % 2 == 0, "Halving dimension must be even, but dimension ", d, " is size ", x.size(d));
  return rules::empty(x.sizes(), x);
}
// The CPU stores an intermediate result in the buffer; CUDA recomputes it and leaves the buffer empty.
TwoTensors log_sigmoid_forward(const Tensor& x) {
  if (on_cuda()) return {rules::empty_like(x), rules::empty({0}, x)};
  return {rules::empty(x.sizes(), x), rules::empty(x.sizes(), x)};
}

std::tuple<Tensor&, Tensor&> log_sigmoid_forward_out(const Tensor& x, Tensor& output, Tensor& buffer) {
  at::native::resize_output(output, x.sizes());
  if (!on_cuda()) buffer.resize_(x.sizes(), MemoryFormat::Contiguous);
  return {output, buffer};
}

Tensor prelu(const Tensor& x, const Tensor& weight) {
  Tensor result = rules::empty_like(x);
  return elementwise_into(result, {x, weight}, kSameDtype);
}

TwoTensors prelu_backward(const Tensor& grad, const Tensor& x, const Tensor& weight) {
  return {elementwise({x, weight, grad}, kSameDtype), elementwise({x, weight, grad}, kSameDtype)};
}

void check_rrelu(const Tensor& x, const Tensor& noise, const Scalar& lower, const Scalar& upper) {
  TORCH_CHECK(lower.to<double>() <= upper.to<double>(), "Lower bound should be less than or equal to the upper bound");
  TORCH_CHECK(x.sizes() == noise.sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", x.sizes(),
              " noise.shape = ", noise.sizes());
}

Tensor rrelu_with_noise(const Tensor& x, const Tensor& noise, const Scalar& lower, const Scalar& upper) {
  check_rrelu(x, noise, lower, upper);
  return rules::empty(x.sizes(), x);
}

Tensor& rrelu_with_noise_(Tensor& x, const Tensor& noise, const Scalar& lower, const Scalar& upper) {
  check_rrelu(x, noise, lower, upper);
  return x;
}

// ---- Backward kernels that exist for CPU and CUDA, with a decomposition for other devices

// A libtorch without CUDA has no CUDA kernel for these and would decompose them on a simulated GPU. One with CUDA runs
// the derivative formula above the kernel, which is compiled into both: call that.
template <const char* name>
Tensor as_one_operator(const Tensor& grad, const Tensor& input) {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  torch::jit::Stack stack{grad, input};
  op.callBoxedForDispatchKey(c10::InferenceMode::is_enabled() ? kFakeKey : c10::DispatchKey::Autograd, stack);
  return std::move(stack[0]).toTensor();
}
constexpr char kSiluBackward[] = "aten::silu_backward";
constexpr char kMishBackward[] = "aten::mish_backward";

// ---- Dtypes without a CPU kernel that the Meta kernel accepts. Lists (_foreach_frac) come here with each of their
// tensors. Found by running each operator for each dtype; those of GPU kernels differ and are not checked.

struct Refused {
  enum : int { kBool = 1, kIntegers = 2, kComplex = 4 };
};

bool refuses(int what, ScalarType dtype) {
  const int kind = dtype == at::kBool                  ? Refused::kBool
                   : c10::isIntegralType(dtype, false) ? Refused::kIntegers
                   : c10::isComplexType(dtype)         ? Refused::kComplex
                                                       : 0;
  return (what & kind) != 0;
}

// The kernel's dtype is the promoted one, which is unsupported if all operands' are. Other arguments do not matter.
bool is_refused(int what, const Tensor& operand) { return refuses(what, operand.scalar_type()); }
template <class T>
bool is_refused(int /*what*/, const T& /*argument*/) {
  return true;
}

template <class Operator, int what, class Signature = typename Operator::schema>
struct Checked;
template <class Operator, int what, class Result, class First, class... Rest>
struct Checked<Operator, what, Result(First, Rest...)> {
  static Result run(First first, Rest... rest) {
    if (refuses(what, first.scalar_type()) && simulated_device().is_cpu()) {
      TORCH_CHECK_NOT_IMPLEMENTED(!(is_refused(what, rest) && ...), '"', Operator::name, "\" not implemented for '",
                                  first.scalar_type(), "'");
    }
    return OnMeta<Operator>::call(first, rest...);
  }
};

template <int what, class... Operators>
void add(RuleRegistry& registry, std::source_location place = std::source_location::current()) {
  (add_for<Operators>(registry, &Checked<Operators, what>::run, place), ...);
}

// A number takes part in type promotion.
template <class Operator, class Result = Tensor, class X = const Tensor>
Result clamp(X& x, const Scalar& bound) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != at::kBool || !bound.isBoolean() || !simulated_device().is_cpu(), '"',
                              Operator::name, "\" not implemented for 'Bool'");
  return OnMeta<Operator>::call(x, bound);
}

// Without elements there is no multiplication and no error.
Tensor mm(const Tensor& x, const Tensor& y) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != at::kBool || x.numel() == 0 || y.numel() == 0 || on_cuda(),
                              "\"aten::mm\" not implemented for 'Bool'");
  return OnMeta<at::_ops::mm>::call(x, y);
}

// `added` must be expandable to the sizes of the product, which the Meta kernel does not check.
Tensor addmm(const Tensor& added, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
  Tensor result = OnMeta<at::_ops::addmm>::call(added, x, y, beta, alpha);
  at::inferExpandGeometry_dimvector(added.sizes(), added.strides(), result.sizes());
  return result;
}

}  // namespace

namespace op = at::_ops;

void register_elementwise(RuleRegistry& registry) {
  using OptionalDouble = std::optional<double>;
  add_forms<Unary<kBool>>(registry, "logical_not");
  add_forms<Binary<kBool>>(registry, "logical_and");
  add_forms<Binary<kBool>>(registry, "logical_or");
  add_forms<Binary<kBool>>(registry, "logical_xor");
  add_forms<Unary<kSameDtype>>(registry, "hardswish");
  add_forms<Unary<kSameDtype, OptionalDouble, OptionalDouble, OptionalDouble>>(registry, "nan_to_num");
  add_forms<Unary<kFloat, OptionalDouble>>(registry, "logit");
  registry.add_partial({"aten::mvlgamma.out"}, &mvlgamma_out, {"self", "out"});
  registry.add("aten::isnan", &Unary<kBool>::functional);
  registry.add("aten::conj_physical_", &Unary<kSameDtype>::in_place);
  registry.add("aten::conj_physical.out", &Unary<kSameDtype>::out);
  registry.add("aten::floor_divide", &Binary<kPromote>::functional);
  registry.add("aten::floor_divide_.Tensor", &Binary<kPromote>::in_place);
  registry.add("aten::floor_divide.out", &Binary<kPromote>::out);
  registry.add("aten::hardswish_backward", &Binary<kPromote>::functional);
  registry.add(kMishBackward, &mish_backward);
  registry.add_composite(kMishBackward, &as_one_operator<kMishBackward>);
  registry.add_composite(kSiluBackward, &as_one_operator<kSiluBackward>);

  registry.add("aten::abs", &abs);
  registry.add("aten::abs_", &abs_);
  registry.add("aten::abs.out", &abs_out);
  registry.add("aten::angle", &angle);
  registry.add("aten::frexp.Tensor", &frexp);
  registry.add("aten::frexp.Tensor_out", &frexp_out);
  registry.add("aten::complex", &complex_of);
  registry.add("aten::complex.out", &complex_of_out);
  registry.add("aten::polar", &complex_of);
  registry.add("aten::polar.out", &complex_of_out);
  registry.add("aten::where.self", &where);
  registry.add("aten::where.self_out", &where_out);
  registry.add("aten::masked_fill_.Scalar", &masked_fill_scalar_);
  registry.add("aten::masked_fill_.Tensor", &masked_fill_tensor_);
  registry.add("aten::rsub.Tensor", &rsub);
  registry.add("aten::__lshift__.Tensor", &Binary<kPromote>::functional);
  registry.add("aten::__rshift__.Tensor", &Binary<kPromote>::functional);
  registry.add("aten::__lshift__.Scalar", &with_number);
  registry.add("aten::__rshift__.Scalar", &with_number);
  registry.add("aten::remainder.Scalar_Tensor", &number_with);

  registry.add("aten::relu", &relu);
  registry.add("aten::relu_", &relu_);
  registry.add("aten::hardtanh", &hardtanh);
  registry.add("aten::hardtanh_", &hardtanh_);
  registry.add("aten::hardtanh_backward", &Binary<kPromote, const Scalar&, const Scalar&>::functional);
  registry.add("aten::hardtanh_backward.grad_input", &Binary<kPromote, const Scalar&, const Scalar&>::out);
  registry.add_partial({"aten::glu_backward"}, &glu_backward, {"self", "dim"});
  registry.add("aten::log_sigmoid_forward", &log_sigmoid_forward);
  registry.add("aten::log_sigmoid_forward.output", &log_sigmoid_forward_out);
  registry.add("aten::_prelu_kernel", &prelu);
  registry.add("aten::_prelu_kernel_backward", &prelu_backward);
  registry.add_partial({"aten::rrelu_with_noise"}, &rrelu_with_noise);
  registry.add_partial({"aten::rrelu_with_noise_"}, &rrelu_with_noise_);
  add<Refused::kBool | Refused::kIntegers | Refused::kComplex, op::frac, op::frac_, op::frac_out>(registry);
  add<Refused::kBool | Refused::kComplex, op::round, op::round_, op::round_out>(registry);
  add<Refused::kBool, op::trunc, op::trunc_, op::trunc_out, op::floor, op::floor_, op::floor_out, op::ceil, op::ceil_,
      op::ceil_out, op::addcmul, op::addcmul_out, op::pow_Tensor_Tensor, op::pow__Tensor, op::pow_Tensor_Tensor_out>(
      registry);
  add<Refused::kComplex, op::lgamma, op::lgamma_, op::lgamma_out, op::erf, op::erf_, op::erf_out, op::erfc, op::erfc_,
      op::erfc_out, op::clamp_min_Tensor, op::clamp_min__Tensor, op::clamp_min_Tensor_out, op::clamp_max_Tensor,
      op::clamp_max__Tensor, op::clamp_max_Tensor_out>(registry);
  add<Refused::kBool | Refused::kIntegers, op::lerp_Scalar, op::lerp__Scalar, op::lerp_Scalar_out, op::lerp_Tensor,
      op::lerp__Tensor, op::lerp_Tensor_out>(registry);
  registry.add("aten::clamp_min", &clamp<op::clamp_min>);
  registry.add("aten::clamp_max", &clamp<op::clamp_max>);
  registry.add("aten::clamp_min_", &clamp<op::clamp_min_, Tensor&, Tensor>);
  registry.add("aten::clamp_max_", &clamp<op::clamp_max_, Tensor&, Tensor>);
  registry.add("aten::mm", &mm);
  registry.add("aten::addmm", &addmm);
  add_like(registry, {"aten::nan_to_num", "aten::glu_jvp", "aten::glu_backward_jvp", "aten::log_sigmoid_backward"},
           {0});
}

}  // namespace shadowgraph::rules
