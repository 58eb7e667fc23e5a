#include "core/dispatch/out_form.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "ir/operators/operator_facts.h"

namespace shadowgraph {
namespace {

// What is not pointwise and still gives results the strides of new ones: whatever they were, or those that were resized.
enum class Restrided : uint8_t { kAlways, kIfResized };
constexpr std::pair<std::string_view, Restrided> kRestrided[] = {
    {"aten::adaptive_avg_pool2d.out", Restrided::kAlways}, {"aten::max_pool3d_with_indices.out", Restrided::kAlways},
    {"aten::reflection_pad3d.out", Restrided::kAlways},    {"aten::replication_pad2d.out", Restrided::kAlways},
    {"aten::replication_pad3d.out", Restrided::kAlways},   {"aten::nonzero.out", Restrided::kIfResized},
};

// An argument that only the functional form of a factory has.
bool describes_result(const std::string& name) {
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory";
}

bool is_result(const c10::Argument& argument) { return argument.kwarg_only() && is_written(argument); }

// Whether `functional` takes what `out_form` does, save for the results, and gives as many.
bool is_functional_form(const c10::FunctionSchema& functional, const c10::FunctionSchema& out_form) {
  if (functional.returns().size() != out_form.returns().size()) return false;
  auto formal = functional.arguments().begin();
  const auto end = functional.arguments().end();
  for (const auto& argument : out_form.arguments()) {
    if (is_result(argument)) continue;
    while (formal != end && formal->name() != argument.name() && describes_result(formal->name())) ++formal;
    if (formal == end || formal->name() != argument.name() || *formal->real_type() != *argument.real_type() ||
        is_written(*formal) != is_written(argument)) {
      return false;
    }
    ++formal;
  }
  return std::all_of(formal, end, [](const c10::Argument& rest) { return describes_result(rest.name()); });
}

// Nothing unless all that `op` returns are tensors given to it by name.
std::optional<c10::OperatorHandle> find_functional_form(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  size_t results = 0;
  for (const auto& argument : schema.arguments()) {
    if (!is_result(argument)) continue;
    if (argument.type()->kind() != c10::TypeKind::TensorType) return std::nullopt;
    ++results;
  }
  if (results == 0 || results != schema.returns().size()) return std::nullopt;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name != schema.name() || name.overload_name == schema.overload_name()) continue;
    const auto candidate = dispatcher.findSchema(name);
    if (candidate && is_functional_form(candidate->schema(), schema)) return candidate;
  }
  return std::nullopt;
}

// Results whose elements share memory, with each other or with an operand's, are refused; a pointwise kernel may write to
// an operand.
void check_overlap(const std::vector<at::Tensor>& outs, const torch::jit::Stack& operands, bool pointwise) {
  for (const at::Tensor& out : outs) {
    at::assert_no_internal_overlap(out);
    for (const c10::IValue& operand : operands) {
      if (!operand.isTensor() || !operand.toTensor().defined()) continue;
      if (pointwise) {
        at::assert_no_partial_overlap(out, operand.toTensor());
      } else {
        at::assert_no_overlap(out, operand.toTensor());
      }
    }
  }
}

}  // namespace

std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& op) {
  static auto* known = new std::unordered_map<c10::OperatorName, std::optional<c10::OperatorHandle>>;
  static auto* mutex = new std::mutex;
  {
    const std::lock_guard lock(*mutex);
    const auto found = known->find(op.operator_name());
    if (found != known->end()) return found->second;
  }
  const auto functional = find_functional_form(op);  // asks the dispatcher, which has locks of its own
  const std::lock_guard lock(*mutex);
  return known->emplace(op.operator_name(), functional).first->second;
}

void run_out_form(const c10::OperatorHandle& out_form, const c10::OperatorHandle& functional,
                  torch::jit::Stack* stack) {
  const auto& formals = out_form.schema().arguments();
  const size_t begin = stack->size() - formals.size();
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < formals.size(); ++i) {
    if (is_result(formals[i])) outs.push_back((*stack)[begin + i].toTensor());
  }
  torch::jit::Stack inner;
  for (const c10::Argument& formal : functional.schema().arguments()) {
    const auto given = std::find_if(formals.begin(), formals.end(),
                                    [&](const c10::Argument& mine) { return mine.name() == formal.name(); });
    if (given != formals.end()) {
      inner.push_back((*stack)[begin + static_cast<size_t>(given - formals.begin())]);
    } else if (formal.name() == "dtype") {
      inner.emplace_back(outs[0].scalar_type());
    } else {
      inner.emplace_back();
    }
  }
  const bool pointwise = out_form.hasTag(at::Tag::pointwise);  // a TensorIterator: new results have its strides
  check_overlap(outs, inner, pointwise);
  functional.callBoxed(inner);
  const std::string name = toString(out_form.operator_name());
  const auto* const row = std::find_if(std::begin(kRestrided), std::end(kRestrided),
                                       [&](const auto& restrided) { return restrided.first == name; });
  const bool always = row != std::end(kRestrided) && row->second == Restrided::kAlways;
  const bool if_resized = pointwise || row != std::end(kRestrided);
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& result = inner[i].toTensor();
    TORCH_CHECK(c10::canCast(result.scalar_type(), outs[i].scalar_type()), name, ": result type ", result.scalar_type(),
                " can't be cast to the desired output type ", outs[i].scalar_type());
    const bool resized = at::native::resize_output(outs[i], result.sizes());
    if (always || (if_resized && resized)) outs[i].as_strided_(result.sizes(), result.strides());
  }
  stack->erase(stack->begin() + static_cast<std::ptrdiff_t>(begin), stack->end());
  for (at::Tensor& out : outs) stack->emplace_back(std::move(out));
}

}  // namespace shadowgraph
