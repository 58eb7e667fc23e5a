// Shape rules: what an operator's outputs look like, for operators of your own or with a Meta kernel that is wrong.
//
// For authors of operators, and for core/rules/. A rule runs inside every call of its operator on fakes, so it should
// look at sizes alone and allocate nothing but results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/infer_schema.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/DimVector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <typeinfo>
#include <variant>
#include <vector>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/export.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Shape rules: what an operator's outputs look like, for operators whose C++ Meta kernel is missing or wrong.
//
// A rule is a plain function with the operator's C++ signature (SymInt arguments as int64_t and IntArrayRef). It gets
// fake tensors, which say the pretended device, and returns tensors with the sizes, dtype, strides, device and aliasing
// that eager gives there. It must not read data. In-place operators return their (possibly resized) self.
//
//     at::Tensor my_op(const at::Tensor& x, int64_t k) { return rules::empty({x.size(0), k}, x); }
//     shadowgraph::register_rule("my::op", &my_op);
//
// A result is where the rule makes it: at::empty({3}, at::kCPU) is on the CPU. What rules::empty makes, and what the
// rule makes on "meta", is where register_devices says, by default where the operands are. Calls that the rule makes
// are no part of a capture. Within another operator's Meta kernel a rule gets that kernel's meta tensors.
//
// Rules are looked up before composite decompositions and Meta kernels, at every depth. Registering replaces an earlier
// rule, built-in ones included. It is safe at any time, but a capture that runs meanwhile on another thread may still
// see the old rule. Throws Error if `function` does not fit the operator's schema (checked when the operator is known).
//
// A composite rule runs in place of a composite operator's decomposition, above autograd, on fake tensors that pretend
// to be on a CUDA device. It is for composites that pick a kernel by asking the device: attention, fused recurrent
// layers (these two on some other devices too).

namespace internal {

// A rule as the registry keeps it.
struct ShapeRule {
  c10::KernelFunction kernel;
  // Types of the C++ function, to be checked against the operator.
  std::unique_ptr<c10::FunctionSchema> inferred_schema;
  const std::type_info* function_type = nullptr;
  bool sees_devices = false;  // operands say the pretended device, not "meta": rules of users

  template <class Return, class... Args>
  static ShapeRule of(Return (*function)(Args...)) {
    return {c10::KernelFunction::makeFromUnboxedRuntimeFunction(function),
            std::make_unique<c10::FunctionSchema>(c10::inferFunctionSchemaFlattenedReturns<Return(Args...)>()),
            &typeid(Return(Args...))};
  }
};
void add_rule(const std::string& operator_name, ShapeRule rule);
void add_composite_rule(const std::string& operator_name, ShapeRule rule);

}  // namespace internal

template <class Return, class... Args>
void register_rule(const std::string& operator_name, Return (*function)(Args...)) {
  internal::add_rule(operator_name, internal::ShapeRule::of(function));
}
template <class Return, class... Args>
void register_composite_rule(const std::string& operator_name, Return (*function)(Args...)) {
  internal::add_composite_rule(operator_name, internal::ShapeRule::of(function));
}
// Names of all operators with a rule, sorted.
std::vector<std::string> operators_with_rule();

// ---------------------------------------------------------------------------------------------------------------------
// Devices of an operator of your own: where its operands may be, and where its results are.
//
//     // my::lookup(Tensor keys, Tensor table, Device? to) -> (Tensor, Tensor): keys on the CPU, the table anywhere
//     register_devices("my::lookup", {.operands = OperandPlaces::kAnywhere, .results = {"table", at::Device(at::kCPU)}});
//
// Without it the operands must be on one device, and the results are there too. Fake kernels of Python
// (torch.library.register_fake) take operands from anywhere, as in PyTorch's FakeTensorMode, unless this says
// otherwise. A rule or fake kernel that makes a result on another device than this says is an Error. The name carries
// the overload. Registering again replaces what was said. Thread-safe. Throws Error for an operator of libtorch. Throws
// Error too for what does not fit the schema: at once, or at the first call of an operator not known yet.

enum class OperandPlaces : uint8_t {
  kTogether,    // on one device; CPU tensors without dimensions go with any
  kFirstOrCpu,  // where the first tensor is, or on the CPU
  kAnywhere,
};
constexpr auto enum_names(OperandPlaces) {
  return names_in_order<OperandPlaces>("together", "first or cpu", "anywhere");
}
// The device of the argument of that name, or this one. A list's elements are for those of a list. Where an optional
// argument is absent, results are where the first operand is.
using ResultDevice = std::variant<std::string, c10::Device>;
struct OperatorDevices {
  OperandPlaces operands = OperandPlaces::kTogether;
  std::vector<ResultDevice> results;  // by place in the schema's returns; none: where the first operand is
};
void register_devices(const std::string& operator_name, OperatorDevices devices);

// Serves bindings to other languages: says whether an operator has a fake kernel there, behind its Meta kernel. That
// kernel then gets fakes that say the pretended device. nullptr: none has. Thread-safe.
using HasFakeKernel = bool (*)(const std::string& operator_name);
void set_fake_kernel_finder(HasFakeKernel finder);

}  // namespace shadowgraph

namespace shadowgraph {
namespace SHADOWGRAPH_API rules {

// ---------------------------------------------------------------------------------------------------------------------
// What rules are written with: fresh meta tensors, the pretended device, the elementwise rule.

// The device that the outermost call of this thread pretends to run on, and what it can do.
c10::Device pretended_device();
inline bool on_cuda() { return pretended_device().is_cuda(); }
const DeviceProfile& device_profile();

// Where a rule leaves a call to libtorch's Meta kernel.
constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

// Returns a tensor without storage that has `like`'s geometry and dtype and the pretended device's dispatch keys. It is
// for functions of libtorch that choose a kernel by looking at their operands (select_conv_backend, ...) and never
// touch data.
at::Tensor stand_in(const at::Tensor& like);
at::Tensor stand_in(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::Tensor& dtype_of);

// Fresh tensors (nothing is allocated): during a call, fakes on the pretended device at once. Sizes and strides in
// elements.
at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype,
                 c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
at::Tensor empty(c10::IntArrayRef sizes, const at::Tensor& dtype_of,
                 c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
// A view of `base`.
at::Tensor alias(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);
// As at::empty_like: dense strides are kept, otherwise TensorIterator's order of dimensions.
at::Tensor empty_like(const at::Tensor& like);
at::Tensor empty_like(const at::Tensor& like, c10::ScalarType dtype);
at::Tensor empty_like(const at::Tensor& like, c10::MemoryFormat format);
// Its sizes and dtype, contiguous whatever its strides.
inline at::Tensor empty_contiguous_like(const at::Tensor& like) { return rules::empty(like.sizes(), like); }

// The elementwise rule: broadcasting, type promotion and stride order exactly as at::TensorIterator gives them.
struct Elementwise {
  bool promote = true;            // inputs to a common dtype
  bool integer_to_float = false;  // and integral ones to the default dtype
  bool cast_output = true;
  std::optional<c10::ScalarType> output;  // a fixed result dtype, e.g. bool for comparisons
};
using Operands = std::initializer_list<std::reference_wrapper<const at::Tensor>>;
at::Tensor elementwise(Operands inputs, const Elementwise& how = {});
// In-place and out= variants: checks that the result may be broadcast and cast into `output`, resizes it as eager does.
at::Tensor& elementwise_into(at::Tensor& output, Operands inputs, const Elementwise& how = {});

// The sizes of a reduction over `dims` (none or empty: all of them).
c10::DimVector reduced_sizes(const at::Tensor& input, at::OptionalIntArrayRef dims, bool keepdim);

// Returns how many elements a result has that the data of `tensor` decides, as the user says
// (FakeTensorOptions::data_sizes). It is the answer to `question` ("nonzero", asked as "nonzero0", "nonzero1", ...),
// from 0 to `most`. Throws DataDependentError, which names the option, without one.
int64_t data_size(const std::string& op, const std::string& question, const at::Tensor& tensor, int64_t most);

// A tensor argument that may be absent.
using OptionalTensor = std::optional<at::Tensor>;
inline bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// What rules with several results return.
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The next multiple of `to`: kernels pad rows, libraries pad workspaces.
inline int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace rules
}  // namespace shadowgraph
