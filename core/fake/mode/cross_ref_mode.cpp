#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ScopeExit.h>

#include <optional>

#include "core/fake/dispatch/operator_info.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode/modes.h"
#include "core/fake/simulated_devices.h"
#include "core/fake/tensors_in_value.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

std::string CrossRefDifference::to_string() const {
  return op + ", " + where + ": " + what + ": " + real + " real, " + fake + " fake";
}

namespace {

// A tensor of the call by name: "self", "tensors[1]", "result 0".
struct Named {
  std::string name;
  at::Tensor tensor;
};

void collect(const std::string& name, const c10::IValue& value, std::vector<Named>& tensors) {
  if (value.isTensor()) {
    tensors.push_back({name, value.toTensor()});
  } else if (value.isList()) {
    size_t i = 0;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) tensors.push_back({name + "[" + std::to_string(i) + "]", element.toTensor()});
      ++i;
    }
  }
}

c10::IValue faked(const c10::IValue& value, FakeTensorMode& mode) {
  return with_tensors(value, [&](const at::Tensor& real) {
    return real.unsafeGetTensorImpl()->is_wrapped_number() ? real : mode.from_real(real);
  });
}

// Returns the compared properties of a tensor; the first that differs is reported.
std::vector<std::pair<const char*, std::string>> facts(const std::vector<Named>& all, size_t index) {
  const at::Tensor& tensor = all[index].tensor;
  if (!tensor.defined()) return {{"defined", "no"}};
  std::vector<std::pair<const char*, std::string>> facts = {
      {"defined", "yes"},
      {"sizes", c10::str(tensor.sizes())},
      {"dtype", c10::toString(tensor.scalar_type())},
      {"device", tensor.device().str()},
      {"layout", c10::str(tensor.layout())},
  };
  if (tensor.layout() != c10::Layout::Strided) return facts;
  facts.emplace_back("strides", c10::str(tensor.strides()));
  facts.emplace_back("storage offset", std::to_string(tensor.storage_offset()));
  facts.emplace_back("conjugate bit", tensor.is_conj() ? "set" : "clear");
  facts.emplace_back("negative bit", tensor.is_neg() ? "set" : "clear");
  std::string same = "nothing else";
  std::string shares = "nothing else";
  for (size_t i = 0; i < index; ++i) {
    const at::Tensor& other = all[i].tensor;
    if (!other.defined() || !other.has_storage()) continue;
    if (same == "nothing else" && other.is_same(tensor)) same = all[i].name;
    if (shares == "nothing else" && other.is_alias_of(tensor)) shares = all[i].name;
  }
  facts.emplace_back("is", same);
  facts.emplace_back("shares memory with", shares);
  return facts;
}

}  // namespace

class CrossRefMode::Observer final : public CallObserver {
 public:
  explicit Observer(CrossRefOptions options) : options_(options) {}

  int64_t compared = 0;
  std::map<std::string, int64_t> refused;
  std::vector<CrossRefDifference> differences;

  void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) override {
    real_.clear();
    fake_.clear();
    error_.reset();
    comparable_ = true;
    torch::jit::Stack stack;
    for (const CallArgument& argument : arguments) stack.push_back(argument.value());
    const auto& formals = info.op.schema().arguments();
    for (size_t i = 0; i < stack.size(); ++i) collect(formals[i].name(), stack[i], real_);
    // The fake key is reserved for the observer's own calls.
    const auto restore =
        c10::make_scope_exit([outer = std::exchange(thread_state.mode, nullptr)] { thread_state.mode = outer; });
    const UntranslatedErrors caught_here;
    FakeTensorMode mode(with_all_devices());
    try {
      for (size_t i = 0; i < stack.size(); ++i) {
        stack[i] = faked(stack[i], mode);
        collect(formals[i].name(), stack[i], fake_);
      }
      info.op.redispatchBoxed(c10::DispatchKeySet(kFakeKey), &stack);
      for (size_t i = 0; i < stack.size(); ++i) collect("result " + std::to_string(i), stack[i], fake_);
    } catch (const DataDependentError&) {
      comparable_ = false;
    } catch (const NoRuleError&) {
      comparable_ = false;
    } catch (const UnsupportedError&) {
      comparable_ = false;  // sparse, quantized
    } catch (const c10::Error& error) {
      error_ = error.what_without_backtrace();
    } catch (const std::exception& error) {
      error_ = error.what();
    }
    if (!comparable_) ++refused[info.name];
  }

  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override {
    if (!comparable_) return;
    ++compared;
    if (error_) {
      report({info.name, "the call", "raised", "nothing", *error_});
      return;
    }
    for (size_t i = 0; i < results.size(); ++i) collect("result " + std::to_string(i), results[i].value(), real_);
    if (real_.size() != fake_.size()) {
      report({info.name, "the call", "tensors", std::to_string(real_.size()), std::to_string(fake_.size())});
      return;
    }
    for (size_t i = 0; i < real_.size(); ++i) {
      const auto real = facts(real_, i);
      const auto fake = facts(fake_, i);
      for (size_t f = 0; f < real.size() && f < fake.size(); ++f) {
        if (real[f].second == fake[f].second) continue;
        const bool result = real_[i].name.starts_with("result ");
        report({info.name, (result ? "" : "argument ") + real_[i].name, real[f].first, real[f].second, fake[f].second});
        return;
      }
    }
  }

  void abandon_call(const OperatorInfo& info) noexcept override {
    if (!comparable_ || error_) return;
    ++compared;
    // The real call is throwing, so this only records the difference.
    differences.push_back({info.name, "the call", "raised", "an error", "nothing"});
  }

 private:
  void report(CrossRefDifference difference) {
    differences.push_back(std::move(difference));
    if (!options_.throw_at_first) return;
    throw Error(differences.back().to_string() +
                ". Add or fix the shape rule of the operator: see docs/adding-an-operator.md");
  }

  CrossRefOptions options_;
  std::vector<Named> real_;
  std::vector<Named> fake_;
  std::optional<std::string> error_;
  bool comparable_ = true;
};

CrossRefMode::CrossRefMode(CrossRefOptions options) {
  if (thread_state.mode != nullptr) {
    throw Error(
        "a CrossRefMode compares a real program with fake tensors; enter it outside of any FakeTensorMode, or under an "
        "UnfakeGuard");
  }
  observer_ = std::make_unique<Observer>(options);
  mode_ = std::make_unique<ObserveMode>(*observer_);
}

CrossRefMode::~CrossRefMode() = default;

int64_t CrossRefMode::compared() const { return observer_->compared; }
const std::map<std::string, int64_t>& CrossRefMode::refused() const { return observer_->refused; }
const std::vector<CrossRefDifference>& CrossRefMode::differences() const { return observer_->differences; }

}  // namespace shadowgraph
