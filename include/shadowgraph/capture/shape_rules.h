// Shape rules: compute the outputs' metadata for custom operators, or operators with an incorrect Meta kernel. A rule
// runs in every call of its operator on fake tensors, so it should only use sizes and allocate nothing but results.
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

// A rule is a plain function with the operator's C++ signature (int64_t and IntArrayRef for SymInt arguments). Its
// arguments are fake tensors on the simulated device; it returns tensors with the sizes, dtype, strides, device and
// aliasing that eager would give there. It must not read data. In-place operators return self, resized if needed.
//
//     at::Tensor my_op(const at::Tensor& x, int64_t k) { return rules::empty({x.size(0), k}, x); }
//     shadowgraph::register_rule("my::op", &my_op);
//
// Results are on the device where the rule creates them: at::empty({3}, at::kCPU) is on the CPU. Results of
// rules::empty, and those on "meta", are on the device of register_devices, by default that of the operands. Calls made
// by a rule are not recorded. When called from another operator's Meta kernel, a rule gets that kernel's meta tensors.
//
// Rules take precedence over composite decompositions and Meta kernels, at any nesting depth. Registering replaces an
// earlier rule, including built-in ones, and is thread-safe, but a capture running on another thread may still use the
// old rule. Throws Error if `function` does not match the operator's schema (checked once the operator is registered).
//
// A composite rule replaces the decomposition of a composite operator, above autograd, for fakes on a simulated CUDA
// device. It is for composites that query the device: attention and fused recurrent layers (also on some others).

namespace internal {

struct ShapeRule {
  c10::KernelFunction kernel;
  // Types of the C++ function, to be checked against the operator's schema.
  std::unique_ptr<c10::FunctionSchema> inferred_schema;
  const std::type_info* function_type = nullptr;
  bool sees_devices = false;  // for user-defined rules: operands are on the simulated device, not on "meta"

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
// Returns the names of all operators with a rule, sorted.
std::vector<std::string> operators_with_rule();

// Devices of the operands and results of a custom operator.
//
//     // my::lookup(Tensor keys, Tensor table, Device? to) -> (Tensor, Tensor): keys on the CPU, the table anywhere
//     register_devices("my::lookup",
//                      {.operands = OperandPlaces::kAnywhere, .results = {"table", at::Device(at::kCPU)}});
//
// By default, all operands must be on one device, and so are the results. Python fake kernels
// (torch.library.register_fake) accept operands on any device by default, as in PyTorch's FakeTensorMode. A rule or
// fake kernel that creates a result on another device than specified here causes an Error. The name includes the
// overload. Registering again replaces the earlier specification. Thread-safe. Throws Error for operators of libtorch,
// and if the specification does not match the schema: immediately, or at the first call.

enum class OperandPlaces : uint8_t {
  kTogether,    // on one device; zero-dimensional CPU tensors are allowed with any
  kFirstOrCpu,  // on the device of the first tensor, or on the CPU
  kAnywhere,
};
constexpr auto enum_names(OperandPlaces) {
  return names_in_order<OperandPlaces>("together", "first or cpu", "anywhere");
}
// A device, or the name of the argument whose device is used. For a list of results, elements correspond to those of a
// list argument. If an optional argument is absent, the device of the first operand is used.
using ResultDevice = std::variant<std::string, c10::Device>;
struct OperatorDevices {
  OperandPlaces operands = OperandPlaces::kTogether;
  std::vector<ResultDevice> results;  // by position in the schema's returns; empty: device of the first operand
};
void register_devices(const std::string& operator_name, OperatorDevices devices);

// For language bindings: returns whether the operator's Meta kernel calls a fake kernel in that language, which is then
// called with fakes on the simulated device. nullptr: none. Thread-safe.
using HasFakeKernel = bool (*)(const std::string& operator_name);
void set_fake_kernel_finder(HasFakeKernel finder);

}  // namespace shadowgraph

namespace shadowgraph {
namespace SHADOWGRAPH_API rules {

// Building blocks of rules: new meta tensors, the simulated device, the elementwise rule.

// The simulated device of the outermost call on this thread, and its properties.
c10::Device simulated_device();
inline bool on_cuda() { return simulated_device().is_cuda(); }
const DeviceProfile& device_profile();

// To call libtorch's Meta kernel from a rule.
constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

// Returns a tensor without storage that has the geometry and dtype of `like` and the dispatch keys of the simulated
// device. For libtorch functions that choose a kernel without accessing data (select_conv_backend, ...).
at::Tensor stand_in(const at::Tensor& like);
at::Tensor stand_in(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::Tensor& dtype_of);

// Create new tensors without allocating memory: within a call, fakes on the simulated device. Sizes in elements.
at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype,
                 c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
at::Tensor empty(c10::IntArrayRef sizes, const at::Tensor& dtype_of,
                 c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
at::Tensor alias(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);
// Same as at::empty_like: preserves dense strides, otherwise uses TensorIterator's order of dimensions.
at::Tensor empty_like(const at::Tensor& like);
at::Tensor empty_like(const at::Tensor& like, c10::ScalarType dtype);
at::Tensor empty_like(const at::Tensor& like, c10::MemoryFormat format);
// Returns a contiguous tensor with the sizes and dtype of `like`.
inline at::Tensor empty_contiguous_like(const at::Tensor& like) { return rules::empty(like.sizes(), like); }

// The elementwise rule: broadcasting, type promotion and stride order as in at::TensorIterator.
struct Elementwise {
  bool promote = true;            // convert inputs to a common dtype
  bool integer_to_float = false;  // convert integral inputs to the default dtype
  bool cast_output = true;
  std::optional<c10::ScalarType> output;  // fixed result dtype, e.g. bool for comparisons
};
using Operands = std::initializer_list<std::reference_wrapper<const at::Tensor>>;
at::Tensor elementwise(Operands inputs, const Elementwise& how = {});
// For in-place and out= variants: checks that the result can be broadcast and cast to `output`, and resizes it.
at::Tensor& elementwise_into(at::Tensor& output, Operands inputs, const Elementwise& how = {});

// Returns the sizes of a reduction over `dims` (std::nullopt or empty: all).
c10::DimVector reduced_sizes(const at::Tensor& input, at::OptionalIntArrayRef dims, bool keepdim);

// Returns a data-dependent size given by the user (FakeTensorOptions::data_sizes), from 0 to `most`, for a query of
// kind `question` ("nonzero", named "nonzero0", "nonzero1", ...) about `tensor`. If none is given, throws
// DataDependentError, which names the option.
int64_t data_size(const std::string& op, const std::string& question, const at::Tensor& tensor, int64_t most);

using OptionalTensor = std::optional<at::Tensor>;
inline bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Rounds up to a multiple of `to`: kernels pad rows, libraries pad workspaces.
inline int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace rules
}  // namespace shadowgraph
