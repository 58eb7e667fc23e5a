#include "core/dispatch/run_on_meta.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

#include "core/dispatch/operand_copies.h"
#include "core/dispatch/out_form.h"
#include "core/fake/known_contents.h"
#include "core/fake/literals.h"
#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

void throw_data_dependent(const OperatorInfo& info) {
  throw DataDependentError(
      info.name +
      ": the result depends on the data of a fake tensor, which has none. Ways out: compute the value from sizes "
      "or from tensors whose contents are known instead, pass it in as a number, or run this part on real tensors "
      "under an UnfakeGuard");
}

bool reads_data(const c10::Error& error) {
  const std::string_view words = error.what_without_backtrace();
  return words.find("its data is not allocated yet") != std::string_view::npos ||
         words.find(kPrintedFake) != std::string_view::npos;
}

namespace {

using torch::jit::Stack;

// Returns false if there is no such form, or one that calls the out= form itself (linalg_lstsq).
bool run_as_out_form(const OperatorInfo& info, Stack* stack) {
  if (!info.writes || thread_state.run_as_functional == &info) return false;
  const FreshForm* fresh = form_of_tensors(info.target);
  if (fresh == nullptr) return false;
  struct Running {
    const OperatorInfo* outer;
    explicit Running(const OperatorInfo* now) : outer(std::exchange(thread_state.run_as_functional, now)) {}
    ~Running() { thread_state.run_as_functional = outer; }
  } const guard(&info);
  run_out_form(info.op, *fresh, stack);
  return true;
}

// Returns what follows from how indices are assumed to be dealt.
std::optional<HostAnswers::Assumed> assumed_number(const at::Tensor& tensor) {
  const Assumptions assumptions = assumptions_of(tensor);
  const auto value = assumptions.empty() ? std::nullopt : known_value(tensor);
  if (!value) return std::nullopt;
  note_read(assumptions);
  const RealCalls real;
  return HostAnswers::Assumed{value->item(), "assumed by " + names_of(assumptions)};
}

// Answers with a value that the program reads, as the user says it is. Returns false if this call reads none.
bool answer_host_read(const OperatorInfo& info, Stack* stack) {
  static const c10::OperatorHandle item =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_local_scalar_dense", "");
  static const c10::OperatorHandle equal = c10::Dispatcher::singleton().findSchemaOrThrow("aten::equal", "");
  const bool is_equal = info.key == OperatorInfo::of(equal).key;
  if (!is_equal && info.key != OperatorInfo::of(item).key) return false;
  static auto* nobody = new HostAnswers;  // outside a mode nothing is given
  ModeState* mode = thread_state.mode;
  HostAnswers& answers = mode != nullptr ? mode->host_answers : *nobody;
  const std::string source = mode != nullptr && mode->observer != nullptr ? mode->observer->location() : "";
  const at::Tensor self = (*stack)[stack->size() - info.argument_count].toTensor();
  std::optional<c10::Scalar> answer;
  if (is_equal) {
    const at::Tensor other = stack->back().toTensor();
    if (!self.sizes().equals(other.sizes())) {
      answer = false;
    } else if (self.is_alias_of(other) && self.storage_offset() == other.storage_offset() &&
               self.strides().equals(other.strides()) && self.dtype() == other.dtype() &&
               self.is_conj() == other.is_conj() && self.is_neg() == other.is_neg()) {
      answer = self.is_floating_point() || self.is_complex()
                   ? answers.assume("equal", true, "itself, assumed without NaN", source)
                   : c10::Scalar(true);
    }
  }
  if (!answer) {
    answer = answers.read(info.name, is_equal ? "equal" : "item", self, source,
                          [&] { return is_equal ? std::nullopt : assumed_number(self); });
  }
  torch::jit::drop(*stack, info.argument_count);
  if (is_equal) {
    stack->emplace_back(answer->toBool());
  } else {
    stack->emplace_back(*answer);
  }
  return true;
}

}  // namespace

void run_kernel(const OperatorInfo& info, Stack* stack) {
  static const c10::DispatchKeySet meta_keys(c10::DispatchKey::Meta);
  switch (info.route) {
    case Route::kRule:
      info.rule->kernel.callBoxed(info.op, meta_keys, stack);
      return;
    case Route::kComposite:
    case Route::kMeta:
      if (info.meta_kernel != nullptr) {
        info.meta_kernel->callBoxed(info.op, meta_keys, stack);
      } else {
        info.op.redispatchBoxed(meta_keys, stack);
      }
      return;
    case Route::kDataDependent:
      if (run_as_out_form(info, stack) || answer_host_read(info, stack)) return;
      throw_data_dependent(info);
    case Route::kNone:
      if (info.makes_quantized) {
        throw NoRuleError(info.name +
                          " makes a tensor of a quantised dtype, which a fake tensor cannot be. Ways out: "
                          "torch.fake_quantize_per_tensor_affine and its kin train for integers in floating point, and "
                          "int8 tensors with their scales beside them hold quantised weights");
      }
      if (run_as_out_form(info, stack)) return;
      if (info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {  // registered since
        info.op.redispatchBoxed(meta_keys, stack);
        return;
      }
      throw NoRuleError(
          info.name +
          " has no shape rule, no decomposition and no Meta kernel. Register a rule: torch.library.register_fake "
          "in Python, or shadowgraph::register_rule(\"" +
          info.name +
          "\", &function), where function has the "
          "operator's C++ signature and returns fake tensors; see docs/adding-an-operator.md");
  }
}

void run_on_meta(const OperatorInfo& info, Stack* stack) {
  if (info.copies_operands && thread_state.kernel_device().is_cpu()) {
    OperandDtypes operands;
    for (const uint16_t position : info.tensor_arguments) {
      const c10::IValue& argument = (*stack)[stack->size() - info.argument_count + position];
      if (argument.isTensor()) operands.see(argument.toTensor());
    }
    if (operands.may_be_copied()) {
      run_with_copied_operands(info, stack, &run_kernel);
      return;
    }
  }
  run_kernel(info, stack);
}

}  // namespace shadowgraph
