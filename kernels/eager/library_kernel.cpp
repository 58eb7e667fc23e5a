// Calls a C function of a shared library as an operator's kernel.
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <dlfcn.h>
#include <limits>

#include "kernels/eager/expected_results.h"
#include "shadowgraph/kernels/c_kernel.h"
#include "shadowgraph/kernels/own.h"

namespace shadowgraph {
namespace {

// What the C function is given of a call. Lists of sizes lie in the tensors.
class CArguments {
 public:
  // Returns false for an argument that has no place there.
  bool add(const c10::IValue& argument, bool takes_tensor) {
    if (argument.isTensor() || (takes_tensor && argument.isNone())) {
      if (argument.isTensor() && argument.toTensor().defined()) return add_tensor(argument.toTensor(), inputs);
      inputs.push_back({.data = nullptr, .dtype = 0, .dims = -1, .sizes = nullptr, .strides = nullptr});
      return true;
    }
    if (argument.isNone()) {
      numbers.push_back(std::numeric_limits<double>::quiet_NaN());
    } else if (argument.isInt()) {
      numbers.push_back(static_cast<double>(argument.toInt()));
    } else if (argument.isDouble()) {
      numbers.push_back(argument.toDouble());
    } else if (argument.isBool()) {
      numbers.push_back(argument.toBool() ? 1 : 0);
    } else if (argument.isIntList()) {
      for (const int64_t i : argument.toIntVector()) numbers.push_back(static_cast<double>(i));
    } else if (argument.isDoubleList()) {
      for (const double d : argument.toDoubleVector()) numbers.push_back(d);
    } else if (argument.isBoolList()) {
      for (const bool flag : argument.toBoolList()) numbers.push_back(flag ? 1 : 0);
    } else {
      return false;
    }
    return true;
  }

  static bool add_tensor(const at::Tensor& tensor, std::vector<shadowgraph_tensor>& to) {
    if (tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg()) return false;
    to.push_back({.data = const_cast<void*>(tensor.const_data_ptr()),
                  .dtype = static_cast<int32_t>(tensor.scalar_type()),
                  .dims = static_cast<int32_t>(tensor.dim()),
                  .sizes = tensor.sizes().data(),
                  .strides = tensor.strides().data()});
    return true;
  }

  std::vector<shadowgraph_tensor> inputs, outputs;
  std::vector<double> numbers;
};

bool is_of_tensors(const c10::Argument& formal) {
  c10::TypePtr type = formal.type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  return type->kind() == c10::TypeKind::TensorType;
}

OwnKernel::Results call_library(shadowgraph_kernel function, KnownResults& known, const c10::OperatorHandle& op,
                                std::span<const c10::IValue> arguments) {
  const ExpectedResults expected = known.of(op, arguments);
  if (expected == nullptr) return std::nullopt;
  CArguments given;
  std::optional<c10::Device> device;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (!given.add(argument, is_of_tensors(op.schema().arguments()[i]))) return std::nullopt;
    if (argument.isTensor() && argument.toTensor().defined() && !device) device = argument.toTensor().device();
    if (argument.isDevice()) device = argument.toDevice();
  }
  std::vector<c10::IValue> results;
  for (const ExpectedResult& like : *expected) {
    if (!like.tensor) return std::nullopt;
    if (like.argument >= 0) {
      results.push_back(arguments[static_cast<size_t>(like.argument)]);
      // It is written, as the operator's own kernel would say.
      static_cast<void>(results.back().toTensor().mutable_data_ptr());
    } else {
      results.emplace_back(at::empty_strided(like.sizes, like.strides,
                                             at::TensorOptions().dtype(like.dtype).device(device.value_or(c10::kCPU))));
    }
    if (!CArguments::add_tensor(results.back().toTensor(), given.outputs)) return std::nullopt;
  }
  const int outcome = function(given.inputs.data(), static_cast<int32_t>(given.inputs.size()), given.outputs.data(),
                               static_cast<int32_t>(given.outputs.size()), given.numbers.data(),
                               static_cast<int32_t>(given.numbers.size()));
  return outcome == 0 ? OwnKernel::Results(std::move(results)) : std::nullopt;
}

}  // namespace

OwnKernel library_kernel(const std::string& op, const std::string& library, const std::string& symbol) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw KernelError(fmt::format("cannot load '{}': {}", library, ::dlerror()));
  void* const found = ::dlsym(handle, symbol.c_str());
  if (found == nullptr) {
    ::dlclose(handle);
    throw KernelError(fmt::format("'{}' has no function {}", library, symbol));
  }
  const auto function = reinterpret_cast<shadowgraph_kernel>(found);
  return {.op = op,
          .run = [function, known = std::make_shared<KnownResults>()](const c10::OperatorHandle& handle_of_op,
                                                                      std::span<const c10::IValue> arguments) {
            return call_library(function, *known, handle_of_op, arguments);
          }};
}

}  // namespace shadowgraph
