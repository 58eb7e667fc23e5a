// Dtypes that the CPU's kernels are not compiled for, where the shape function takes them and Meta kernels, being the
// shape functions, therefore do, too. Lists (_foreach_frac) come here with each of their tensors. Found by running each
// operator for each dtype; a GPU's kernels have lists of their own, which are not known here.
#include <ATen/Operators.h>

#include "core/fake/meta_kernel.h"
#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Scalar;
using at::Tensor;

enum class Refused : uint8_t { kBool, kComplex, kBoolAndComplex, kIntegersAndBool, kAllButFloating };

bool refuses(Refused what, at::ScalarType dtype) {
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  switch (what) {
    case Refused::kBool:
      return dtype == at::kBool;
    case Refused::kComplex:
      return c10::isComplexType(dtype);
    case Refused::kBoolAndComplex:
      return dtype == at::kBool || c10::isComplexType(dtype);
    case Refused::kIntegersAndBool:
      return integral;
    case Refused::kAllButFloating:
      return integral || c10::isComplexType(dtype);
  }
  return false;
}

// The kernel's dtype is what operands are promoted to: that is refused if each of them is. Other arguments do not
// matter.
bool is_refused(Refused what, const Tensor& operand) { return refuses(what, operand.scalar_type()); }
template <class T>
bool is_refused(Refused /*what*/, const T& /*argument*/) {
  return true;
}

template <class Operator, Refused what, class Signature = typename Operator::schema>
struct Checked;
template <class Operator, Refused what, class Result, class First, class... Rest>
struct Checked<Operator, what, Result(First, Rest...)> {
  static Result run(First first, Rest... rest) {
    if (refuses(what, first.scalar_type()) && pretended_device().is_cpu()) {
      TORCH_CHECK_NOT_IMPLEMENTED(!(is_refused(what, rest) && ...), '"', Operator::name, "\" not implemented for '",
                                  first.scalar_type(), "'");
    }
    return OnMeta<Operator>::call(first, rest...);
  }
};

template <Refused what, class... Operators>
void add(RuleRegistry& registry) {
  const auto add_one = [&]<class Operator>(const Operator*) {
    const std::string overload = Operator::overload_name;
    registry.add(std::string(Operator::name) + (overload.empty() ? "" : "." + overload), &Checked<Operator, what>::run);
  };
  (add_one(static_cast<const Operators*>(nullptr)), ...);
}

// A number takes part in the promotion.
template <class Operator>
Tensor clamp(const Tensor& x, const Scalar& bound) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != at::kBool || !bound.isBoolean() || !pretended_device().is_cpu(), '"',
                              Operator::name, "\" not implemented for 'Bool'");
  return OnMeta<Operator>::call(x, bound);
}
template <class Operator>
Tensor& clamp_(Tensor& x, const Scalar& bound) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != at::kBool || !bound.isBoolean() || !pretended_device().is_cpu(), '"',
                              Operator::name, "\" not implemented for 'Bool'");
  return OnMeta<Operator>::call(x, bound);
}

// Without elements nothing is multiplied.
Tensor mm(const Tensor& x, const Tensor& y) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != at::kBool || x.numel() == 0 || y.numel() == 0 || on_cuda(),
                              "\"aten::mm\" not implemented for 'Bool'");
  return OnMeta<at::_ops::mm>::call(x, y);
}

}  // namespace

namespace op = at::_ops;

void register_kernel_dtypes(RuleRegistry& registry) {
  add<Refused::kAllButFloating, op::frac, op::frac_, op::frac_out>(registry);
  add<Refused::kBoolAndComplex, op::round, op::round_, op::round_out>(registry);
  add<Refused::kBool, op::trunc, op::trunc_, op::trunc_out, op::floor, op::floor_, op::floor_out, op::ceil, op::ceil_,
      op::ceil_out, op::addcmul, op::addcmul_out, op::pow_Tensor_Tensor, op::pow__Tensor, op::pow_Tensor_Tensor_out>(
      registry);
  add<Refused::kComplex, op::lgamma, op::lgamma_, op::lgamma_out, op::erf, op::erf_, op::erf_out, op::erfc, op::erfc_,
      op::erfc_out, op::clamp_min_Tensor, op::clamp_min__Tensor, op::clamp_min_Tensor_out, op::clamp_max_Tensor,
      op::clamp_max__Tensor, op::clamp_max_Tensor_out>(registry);
  add<Refused::kIntegersAndBool, op::lerp_Scalar, op::lerp__Scalar, op::lerp_Scalar_out, op::lerp_Tensor,
      op::lerp__Tensor, op::lerp_Tensor_out>(registry);
  registry.add("aten::clamp_min", &clamp<op::clamp_min>);
  registry.add("aten::clamp_max", &clamp<op::clamp_max>);
  registry.add("aten::clamp_min_", &clamp_<op::clamp_min_>);
  registry.add("aten::clamp_max_", &clamp_<op::clamp_max_>);
  registry.add("aten::mm", &mm);
}

}  // namespace shadowgraph::rules
