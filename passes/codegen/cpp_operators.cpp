// Finds an operator in the table of libtorch's C++ functions. scripts/make_cpp_operators.py writes the table from
// libtorch's own headers, sorted by name; what is not in it is called through the dispatcher.
#include "passes/codegen/cpp_operators.h"

#include <algorithm>

#include "ir/operators/operator_name.h"

namespace shadowgraph {
namespace {

constexpr CppOperator kOperators[] = {
#include "passes/codegen/cpp_operators.inc"
};

}  // namespace

std::string CppOperator::function() const { return std::string(short_name(name)); }

std::string CppOperator::record() const {
  std::string text(without_namespace(name));
  std::replace(text.begin(), text.end(), '.', '_');
  return text;
}

std::string CppOperator::header_name() const {
  if (form == 'o') return (header.empty() ? function() : std::string(header)) + "_ops";
  if (!header.empty()) return std::string(header);
  return std::string(without_underscore(short_name(name)));
}

const CppOperator* find_cpp_operator(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kOperators, name, {}, &CppOperator::name);
  return found != std::end(kOperators) && found->name == name ? found : nullptr;
}

}  // namespace shadowgraph
