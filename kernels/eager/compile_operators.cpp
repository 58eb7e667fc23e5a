// Eager calls through compiled kernels: which operators, and what is asked in their slots.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorOptions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>

#include "kernels/compiler/operator_table.h"
#include "kernels/eager/slots.h"
#include "kernels/replay/call_graph.h"
#include "shadowgraph/kernels/kernel.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {
namespace {

bool is_compilable(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::_foreach_") || name.starts_with("aten::_fused_adam") ||
      name.starts_with("aten::_fused_sgd")) {
    return element_operator(op).has_value();
  }
  return find_kernel_row(name_with_overload(op.operator_name())) != nullptr;
}

// Calls of chosen operators, each through the kernel that is compiled for it.
class CompiledKernels final : public AskedKernel {
 public:
  CompiledKernels(std::shared_ptr<KernelCache> cache, const CompileOperatorsOptions& options, bool measures)
      : kernels(std::move(cache), options.kernels, options.measure), measures_(measures) {}
  OperatorKernels::Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                OperatorKernels::OriginalCall& original) override {
    return kernels.call(op, stack, measures_ ? &original : nullptr);
  }

  OperatorKernels kernels;

 private:
  const bool measures_;
};

c10::OperatorHandle find_operator(const std::string& name) {
  const auto op = operator_of_name(name);
  if (!op) throw UnsupportedError(fmt::format("compile_operators: there is no operator {}", name));
  if (!is_compilable(*op)) {
    throw UnsupportedError(fmt::format(
        "compile_operators: no kernel is made of {}: {}; compilable_operators() lists what they are made of", name,
        why_no_kernel(Target(TargetKind::kOperator, op->schema()))));
  }
  if (is_made_of_others(*op)) {
    throw UnsupportedError(fmt::format("compile_operators: libtorch makes {} of other operators; name those", name));
  }
  return *op;
}

// A back end for host memory serves the CPU, and a device of one's own, whose memory may be the host's.
void check_device(c10::DispatchKey key, const KernelBackend& backend) {
  const c10::DispatchKey own = c10::computeDispatchKey(std::nullopt, c10::kStrided, c10::Device(backend.device()));
  if (key == own || (backend.device() == c10::kCPU && key == c10::DispatchKey::PrivateUse1)) return;
  std::string wanted = c10::toString(key);
  std::ranges::transform(wanted, wanted.begin(), [](unsigned char c) { return std::tolower(c); });
  throw UnsupportedError(fmt::format(
      "compile_operators: the back end makes kernels for {}, not for {}; give CompileOperatorsOptions::cache one that "
      "does (KernelBackend::device)",
      c10::DeviceTypeName(backend.device(), /*lower_case=*/true), wanted));
}

}  // namespace

class CompiledOperators::State {
 public:
  State(std::shared_ptr<CompiledKernels> kernels, const std::vector<c10::OperatorHandle>& operators,
        c10::DispatchKey key)
      : kernels_(std::move(kernels)), slots_(kernels_, operators, key) {}
  const OperatorKernels& kernels() const { return kernels_->kernels; }

 private:
  const std::shared_ptr<CompiledKernels> kernels_;
  const AskingSlots slots_;
};

CompiledOperators::CompiledOperators(std::unique_ptr<State> state) : state_(std::move(state)) {}
CompiledOperators::CompiledOperators(CompiledOperators&&) noexcept = default;
CompiledOperators& CompiledOperators::operator=(CompiledOperators&&) noexcept = default;
CompiledOperators::~CompiledOperators() = default;

std::vector<OperatorKernels::Report> CompiledOperators::report() const { return state_->kernels().report(); }
KernelCache& CompiledOperators::cache() const { return state_->kernels().cache(); }

CompiledOperators compile_operators(const std::vector<std::string>& operators, c10::DispatchKey key,
                                    const CompileOperatorsOptions& options) {
  const auto& cache = options.cache ? options.cache : KernelCache::shared();
  check_device(key, cache->backend());
  std::vector<c10::OperatorHandle> handles;
  for (const std::string& name : operators) handles.push_back(find_operator(name));
  // Another device may have nothing else to run, or only copies to the host and back.
  auto kernels = std::make_shared<CompiledKernels>(cache, options, key == c10::DispatchKey::CPU);
  return CompiledOperators(std::make_unique<CompiledOperators::State>(std::move(kernels), handles, key));
}

std::vector<std::string> compilable_operators() {
  std::vector<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    std::string text = name_with_overload(name);
    if (!text.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && is_compilable(*op) && !is_made_of_others(*op)) names.push_back(std::move(text));
  }
  std::ranges::sort(names);
  return names;
}

std::map<std::string, std::string> operators_without_kernels() {
  std::map<std::string, std::string> reasons;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string text = name_with_overload(name);
    const auto op = text.starts_with("aten::") ? c10::Dispatcher::singleton().findSchema(name) : std::nullopt;
    if (!op) continue;
    const bool compilable = is_compilable(*op);
    if (compilable && !is_made_of_others(*op)) continue;
    const std::string_view why = why_no_kernel(Target(TargetKind::kOperator, op->schema()));
    reasons[text] = compilable || (why == kNoRow && is_made_of_others(*op)) ? "libtorch makes it of other operators"
                                                                            : std::string(why);
  }
  return reasons;
}

}  // namespace shadowgraph
