#include "kernels/replay/list_calls.h"

#include <string>

#include "kernels/compiler/operator_table.h"

namespace shadowgraph {
namespace {

bool is_list(const c10::IValue& argument) { return argument.isList() && !argument.isIntList(); }

// Returns the overloads that one over lists may stand for. A list of numbers is a number for each element.
std::vector<std::string> element_overloads(const std::string& overload) {
  if (overload == "List" || overload == "Tensor") return {"Tensor", ""};
  if (overload == "Scalar" || overload == "ScalarList") return {"Scalar", "Tensor_Scalar", ""};
  if (overload.empty()) return {""};
  return {};
}

}  // namespace

std::optional<c10::OperatorHandle> element_operator(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  const std::string& overload = op.schema().overload_name();
  constexpr std::string_view kForeach = "aten::_foreach_";
  if (name.starts_with("aten::_fused_")) {
    const std::string full = overload.empty() ? name : name + "." + overload;
    const KernelRow* row = find_kernel_row(full);
    return row != nullptr && !row->writes.empty() ? std::optional(op) : std::nullopt;
  }
  if (!name.starts_with(kForeach)) return std::nullopt;
  const std::string single = "aten::" + name.substr(kForeach.size());
  // A tensor of numbers, one for each element.
  const bool numbers = overload == "Tensor" && single.starts_with("aten::addc");
  for (const std::string& candidate : numbers ? std::vector<std::string>() : element_overloads(overload)) {
    const auto found = c10::Dispatcher::singleton().findSchema({single, candidate});
    const std::string full = candidate.empty() ? single : single + "." + candidate;
    if (found && find_kernel_row(full) != nullptr) return found;
  }
  return std::nullopt;
}

int64_t list_length(std::span<const c10::IValue> arguments) {
  int64_t length = 0;
  for (const c10::IValue& argument : arguments) {
    if (!is_list(argument)) continue;
    const auto own = static_cast<int64_t>(argument.toListRef().size());
    if (own == 0 || own == length) continue;
    if (length != 0) return -1;
    length = own;
  }
  return length;
}

torch::jit::Stack element_arguments(const c10::OperatorHandle& element, std::span<const c10::IValue> arguments,
                                    int64_t i) {
  torch::jit::Stack out;
  out.reserve(element.schema().arguments().size());
  for (const c10::IValue& argument : arguments) {
    if (!is_list(argument)) {
      out.push_back(argument);
    } else if (argument.toListRef().empty()) {
      out.emplace_back();
    } else {
      out.push_back(argument.toListRef()[static_cast<size_t>(i)]);
    }
  }
  const auto& formals = element.schema().arguments();
  for (size_t k = out.size(); k < formals.size(); ++k) {
    out.push_back(formals[k].default_value() ? *formals[k].default_value() : c10::IValue());
  }
  return out;
}

}  // namespace shadowgraph
