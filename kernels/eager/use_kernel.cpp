// A caller's kernel in an operator's slot, and what is asked of its results.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "kernels/eager/expected_results.h"
#include "kernels/eager/slots.h"
#include "shadowgraph/kernels/own.h"

namespace shadowgraph {
namespace {

class OwnCalls final : public AskedKernel {
 public:
  OwnCalls(OwnKernel kernel, c10::DispatchKey key) : kernel_(std::move(kernel)), key_(key) {}

  OperatorKernels::Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                OperatorKernels::OriginalCall& /*original*/) override {
    using Outcome = OperatorKernels::Outcome;
    if (std::ranges::find(under_way, this) != under_way.end()) return Outcome::kUnsupported;
    const size_t count = op.schema().arguments().size();
    const std::span<const c10::IValue> arguments(stack.data() + stack.size() - count, count);
    ExpectedResults expected;
    try {
      expected = known_.of(op, arguments);
    } catch (const c10::Error&) {  // the operator itself says what is wrong with the call
      ++passed_on_;
      return Outcome::kUnsupported;
    }
    OwnKernel::Results results;
    {
      const UnderWay call(*this);
      results = kernel_.run(op, arguments);
    }
    if (!results) {
      ++passed_on_;
      return Outcome::kUnsupported;
    }
    check(op, arguments, expected.get(), *results);
    ++(expected ? ran_ : unchecked_);
    stack.erase(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    std::ranges::move(*results, std::back_inserter(stack));
    return Outcome::kRan;
  }

  UsedKernel::Report report() const {
    return {.op = kernel_.op, .ran = ran_ + unchecked_, .passed_on = passed_on_, .unchecked = unchecked_};
  }

 private:
  struct UnderWay {
    explicit UnderWay(const OwnCalls& calls) { under_way.push_back(&calls); }
    ~UnderWay() { under_way.pop_back(); }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;
  };

  void check(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
             const std::vector<ExpectedResult>* expected, std::vector<c10::IValue>& results) const {
    const size_t wanted = op.schema().returns().size();
    if (results.size() != wanted)
      refuse(fmt::format("{} results, where the operator gives {}", results.size(), wanted));
    for (size_t i = 0; i < wanted; ++i) {
      const bool is_tensor = results[i].isTensor() && results[i].toTensor().defined();
      if (is_tensor && !results[i].toTensor().key_set().has_backend(c10::toBackendComponent(key_))) {
        refuse(fmt::format("result {} on {}, where the operator runs on {}", i, results[i].toTensor().device().str(),
                           c10::toString(key_)));
      }
      if (expected == nullptr) continue;
      const ExpectedResult& like = (*expected)[i];
      if (like.argument >= 0) {
        const at::Tensor& argument = arguments[static_cast<size_t>(like.argument)].toTensor();
        if (!is_tensor || !results[i].toTensor().is_same(argument)) {
          refuse(fmt::format("another result {} than the argument that the operator writes", i));
        }
        continue;
      }
      if (like.tensor != is_tensor) refuse(fmt::format("result {} that is {}a tensor", i, is_tensor ? "" : "not "));
      if (!like.tensor) continue;
      const at::Tensor& tensor = results[i].toTensor();
      if (tensor.scalar_type() != like.dtype || tensor.sizes() != c10::IntArrayRef(like.sizes)) {
        refuse(c10::str("result ", i, " of ", tensor.scalar_type(), tensor.sizes(), ", where the operator gives ",
                        like.dtype, c10::IntArrayRef(like.sizes)));
      }
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw KernelError("the kernel given for " + kernel_.op + " gave " + what);
  }

  static thread_local std::vector<const OwnCalls*> under_way;

  const OwnKernel kernel_;
  const c10::DispatchKey key_;
  KnownResults known_;
  std::atomic<int64_t> ran_ = 0, unchecked_ = 0, passed_on_ = 0;
};

thread_local std::vector<const OwnCalls*> OwnCalls::under_way;

}  // namespace

class UsedKernel::State {
 public:
  State(OwnKernel kernel, const c10::OperatorHandle& op, c10::DispatchKey key)
      : calls_(std::make_shared<OwnCalls>(std::move(kernel), key)), slots_(calls_, {op}, key) {}
  Report report() const { return calls_->report(); }

 private:
  const std::shared_ptr<OwnCalls> calls_;
  const AskingSlots slots_;
};

UsedKernel::UsedKernel(std::unique_ptr<State> state) : state_(std::move(state)) {}
UsedKernel::UsedKernel(UsedKernel&&) noexcept = default;
UsedKernel& UsedKernel::operator=(UsedKernel&&) noexcept = default;
UsedKernel::~UsedKernel() = default;
UsedKernel::Report UsedKernel::report() const { return state_->report(); }

UsedKernel use_kernel(OwnKernel kernel, c10::DispatchKey key) {
  const auto op = operator_of_name(kernel.op);
  if (!op) throw KernelError("use_kernel: there is no operator " + kernel.op);
  if (is_made_of_others(*op)) {
    throw KernelError("use_kernel: libtorch makes " + kernel.op + " of other operators; give kernels for those");
  }
  if (key == c10::DispatchKey::Meta) throw KernelError("use_kernel: meta tensors have no data for a kernel");
  if (c10::toBackendComponent(key) == c10::BackendComponent::InvalidBit || !op->hasComputedKernelForDispatchKey(key)) {
    throw KernelError(fmt::format("use_kernel: {} has no kernel for {} that could run where yours does not", kernel.op,
                                  c10::toString(key)));
  }
  return UsedKernel(std::make_unique<UsedKernel::State>(std::move(kernel), *op, key));
}

}  // namespace shadowgraph
