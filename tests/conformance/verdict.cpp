#include "tests/conformance/verdict.h"

#include <ATen/ops/clone.h>

#include "shadowgraph/error.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::conformance {
namespace {

using shadowgraph::testing::Backward;
using shadowgraph::testing::Outcome;
using shadowgraph::testing::Tensors;

struct Run {
  Outcome outcome;
  std::vector<std::string> numbers;  // results that are not tensors, and storage bytes of those that are
};

void collect(const c10::IValue& result, Tensors& tensors, std::vector<std::string>& numbers) {
  if (result.isTensor()) {
    tensors.push_back(result.toTensor());
    const at::Tensor& tensor = tensors.back();
    if (tensor.defined() && tensor.has_storage()) numbers.push_back(c10::str(tensor.storage().nbytes(), " bytes"));
  } else if (result.isTensorList() || (result.isList() && !result.toListRef().empty())) {
    for (const c10::IValue& element : result.toListRef()) collect(element, tensors, numbers);
  } else {
    numbers.push_back(c10::str(result));
  }
}

void run_into(Run& run, const Samples& samples, size_t index, const c10::OperatorHandle& op, const Arguments& arguments,
              const Tensors& inputs) {
  at::manual_seed(0);
  const bool backward = std::any_of(inputs.begin(), inputs.end(), [](const auto& t) { return t.requires_grad(); });
  shadowgraph::testing::run_into(
      run.outcome, inputs,
      [&](const Tensors& given) {
        Tensors passed = given;
        for (size_t i = 0; i < passed.size(); ++i) {
          if (arguments.not_leaf[i]) passed[i] = passed[i].clone();
        }
        torch::jit::Stack stack = *samples.stack(index, passed);
        op.callBoxed(stack);
        Tensors results;
        for (const c10::IValue& result : stack) collect(result, results, run.numbers);
        for (size_t i = 0; i < passed.size(); ++i) {
          if (arguments.not_leaf[i]) results.push_back(passed[i]);
        }
        return results;
      },
      backward ? Backward::kOfInputs : Backward::kNo);
}

Run run_real(const Samples& samples, size_t index, const c10::OperatorHandle& op, const Fault& fault) {
  Run run;
  Arguments arguments = samples.arguments(index, Contents::kCopied);
  fault.apply(arguments);
  run_into(run, samples, index, op, arguments, arguments.tensors);
  return run;
}

Run run_fake(const Samples& samples, size_t index, const c10::OperatorHandle& op, const Fault& fault) {
  Run run;
  Arguments arguments = samples.arguments(index, Contents::kShared);
  fault.apply(arguments);
  FakeTensorMode mode({.device = at::kCPU});
  Tensors fakes;
  for (const at::Tensor& tensor : arguments.tensors) fakes.push_back(mode.from_real(tensor));
  run_into(run, samples, index, op, arguments, fakes);
  for (const at::Tensor& result : run.outcome.tensors) {
    if (result.defined() && !is_fake(result)) run.numbers.push_back("a result is not a fake tensor");
  }
  return run;
}

Verdict verdict_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const DataDependentError&) {
    return Verdict::kDataDependent;
  } catch (const Error&) {
    return Verdict::kTypedError;
  } catch (...) {
    return Verdict::kWrong;
  }
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : "; ") + text;
  return all;
}

// Compares lists of descriptions and notes the first entry that differs.
void note(std::string& difference, const char* what, const std::vector<std::string>& real,
          const std::vector<std::string>& fake) {
  if (real == fake) return;
  if (!difference.empty()) difference += " / ";
  if (real.size() != fake.size()) {
    difference += c10::str(what, ": eager ", joined(real), ", fake ", joined(fake));
    return;
  }
  for (size_t i = 0; i < real.size(); ++i) {
    if (real[i] == fake[i]) continue;
    difference += c10::str(what, " ", i, ": eager ", real[i], ", fake ", fake[i]);
    return;
  }
}

}  // namespace

Result judge(const Samples& samples, size_t index, const std::function<void(bool real)>& entering, const Fault& fault) {
  const Sample sample = samples.sample(index);
  const auto op = Samples::find(sample.op);
  if (!op) return {Verdict::kWrong, "this libtorch has no such operator"};
  if (Arguments arguments = samples.arguments(index, Contents::kShared); !fault.apply(arguments)) return {};
  entering(/*real=*/true);
  const Run real = run_real(samples, index, *op, fault);
  entering(/*real=*/false);
  const Run fake = run_fake(samples, index, *op, fault);
  const bool real_threw = real.outcome.thrown != nullptr;
  const bool fake_threw = fake.outcome.thrown != nullptr;
  const auto phase = [](const Run& run) { return run.outcome.results.empty() ? "" : "in backward: "; };
  if (fake_threw) {
    const Verdict verdict = verdict_of(fake.outcome.thrown);
    if (verdict != Verdict::kDataDependent && real_threw &&
        real.outcome.results.empty() == fake.outcome.results.empty()) {
      return {.compared = kRaised};
    }
    return {verdict, c10::str("fake raises ", phase(fake), fake.outcome.error)};
  }
  if (real_threw) return {Verdict::kWrong, c10::str("eager raises ", phase(real), real.outcome.error)};
  std::string difference;
  note(difference, "result", real.outcome.results, fake.outcome.results);
  note(difference, "number", real.numbers, fake.numbers);
  note(difference, "argument", real.outcome.inputs, fake.outcome.inputs);
  note(difference, "gradient", real.outcome.gradients, fake.outcome.gradients);
  if (!difference.empty()) return {Verdict::kWrong, difference};
  const auto& inputs = real.outcome.inputs;
  const bool writes =
      std::any_of(inputs.begin(), inputs.end(), [](const std::string& input) { return !input.ends_with(" writes 0"); });
  return {.compared = static_cast<uint8_t>((real.outcome.gradients.empty() ? 0 : kGradients) | (writes ? kWrites : 0))};
}

}  // namespace shadowgraph::conformance
