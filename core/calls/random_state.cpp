#include "core/calls/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <array>
#include <mutex>

#include "shadowgraph/error.h"
#include "shadowgraph/functions.h"

namespace shadowgraph {
namespace {

constexpr int64_t kCudaStateBytes = 16;  // seed and offset, ATen/cuda/CUDAGeneratorImpl.cpp

at::Tensor empty_state(c10::Device device) {
  return at::empty({random_state_bytes(device)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

Target function(const char* schema) { return {TargetKind::kFunction, std::string(kRandomStateNamespace) + schema}; }

std::shared_ptr<const RegisteredFunction> registered(const Target& target, FunctionKernel rule, FunctionKernel kernel) {
  return std::make_shared<const RegisteredFunction>(
      RegisteredFunction{target.schema_text(), std::move(rule), std::move(kernel)});
}

}  // namespace

const Target& get_random_state() {
  static const Target target = function("::get_state(Device device) -> Tensor");
  return target;
}

const Target& exchange_random_state() {
  static const Target target = function("::exchange_state(Tensor state, Device device) -> Tensor");
  return target;
}

const Target& set_random_state() {
  static const Target target = function("::set_state(Tensor state, Device device) -> ()");
  return target;
}

int64_t random_state_bytes(c10::Device device) {
  if (device.is_cuda()) return kCudaStateBytes;
  if (!device.is_cpu()) throw Error("the random state of a generator on " + device.str() + " is not supported");
  static const int64_t bytes = at::detail::getDefaultCPUGenerator().get_state().numel();
  return bytes;
}

at::Tensor random_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

at::Tensor exchange_random_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  at::Tensor before = generator.get_state();
  generator.set_state(state);
  return before;
}

std::shared_ptr<const RegisteredFunction> random_state_function(const Target& target) {
  using Arguments = std::span<const c10::IValue>;
  static const std::array functions = {
      registered(
          get_random_state(), [](Arguments a) { return results(empty_state(a[0].toDevice())); },
          [](Arguments a) { return results(random_state(a[0].toDevice())); }),
      registered(
          exchange_random_state(), [](Arguments a) { return results(empty_state(a[1].toDevice())); },
          [](Arguments a) { return results(exchange_random_state(a[1].toDevice(), a[0].toTensor())); }),
      registered(
          set_random_state(), [](Arguments) { return std::vector<c10::IValue>(); },
          [](Arguments a) {
            exchange_random_state(a[1].toDevice(), a[0].toTensor());
            return std::vector<c10::IValue>();
          }),
  };
  for (const auto& function : functions) {
    if (function->schema_text == target.schema_text()) return function;
  }
  return nullptr;
}

}  // namespace shadowgraph
