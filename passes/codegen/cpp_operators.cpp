#include "passes/codegen/cpp_operators.h"

#include <algorithm>

namespace shadowgraph {
namespace {

constexpr CppOperator kOperators[] = {
#include "passes/codegen/cpp_operators.inc"
};

}  // namespace

std::string CppOperator::function() const {
  std::string_view base = name.substr(name.find("::") + 2);
  return std::string(base.substr(0, base.find('.')));
}

std::string CppOperator::record() const {
  std::string text(name.substr(name.find("::") + 2));
  std::replace(text.begin(), text.end(), '.', '_');
  return text;
}

std::string CppOperator::header_name() const {
  if (form == 'o') return (header.empty() ? function() : std::string(header)) + "_ops";
  if (!header.empty()) return std::string(header);
  std::string base = function();
  if (base.ends_with('_') && !base.ends_with("__")) base.pop_back();
  return base;
}

const CppOperator* find_cpp_operator(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kOperators, name, {}, &CppOperator::name);
  return found != std::end(kOperators) && found->name == name ? found : nullptr;
}

}  // namespace shadowgraph
