#include "ir/analysis/schema_fit.h"

#include <algorithm>

namespace shadowgraph {
namespace {

bool fits_schema(const Graph& graph, const Argument& a, TypeClass type, bool optional) {
  if (a.kind == ArgumentKind::kNone) return optional || type == TypeClass::kTensor || type == TypeClass::kAny;
  if (a.kind == ArgumentKind::kOpaque || type == TypeClass::kAny) return true;
  const bool is_value = a.kind == ArgumentKind::kValue;
  const ValueKind value = is_value ? graph.value(a.ref.value).kind : ValueKind::kTensor;
  switch (type) {
    case TypeClass::kTensor:
      // A number where a tensor is due is one that the C++ API wrapped (0-dimensional, on the CPU).
      return (is_value && value == ValueKind::kTensor) || a.kind == ArgumentKind::kConstant ||
             a.kind == ArgumentKind::kInt || a.kind == ArgumentKind::kFloat || a.kind == ArgumentKind::kBool ||
             a.kind == ArgumentKind::kComplex;
    case TypeClass::kNumber:
      return (is_value && value != ValueKind::kTensor) || a.kind == ArgumentKind::kInt ||
             a.kind == ArgumentKind::kFloat || a.kind == ArgumentKind::kBool || a.kind == ArgumentKind::kComplex;
    case TypeClass::kInt:
      return a.kind == ArgumentKind::kInt || (is_value && value == ValueKind::kInt);
    case TypeClass::kDtype:
    case TypeClass::kLayout:
    case TypeClass::kMemoryFormat:
      return a.kind == ArgumentKind::kInt;
    case TypeClass::kFloat:
      return a.kind == ArgumentKind::kFloat || (is_value && value == ValueKind::kFloat);
    case TypeClass::kBool:
      return a.kind == ArgumentKind::kBool || (is_value && value == ValueKind::kBool);
    case TypeClass::kString:
      return a.kind == ArgumentKind::kString;
    case TypeClass::kDevice:
      return a.kind == ArgumentKind::kDevice;
    case TypeClass::kGenerator:
      return a.kind == ArgumentKind::kGenerator;
    default:
      return false;
  }
}

}  // namespace

bool fits_schema(const Graph& graph, const Argument& a, const FormalType& type) {
  if (type.type != TypeClass::kList) return fits_schema(graph, a, type.type, type.optional);
  switch (a.kind) {
    case ArgumentKind::kNone:
      return type.optional;
    case ArgumentKind::kOpaque:
      return true;
    case ArgumentKind::kIntList:
      return type.element == TypeClass::kInt || type.element == TypeClass::kNumber || type.element == TypeClass::kAny;
    case ArgumentKind::kList: {
      const auto list = graph.list(a);
      return std::all_of(list.begin(), list.end(), [&](const Argument& element) {
        return type.element == TypeClass::kAny || fits_schema(graph, element, type.element, type.element_optional);
      });
    }
    default:
      return false;
  }
}

bool result_fits_schema(const Graph& graph, const Argument& a, TypeClass type) {
  if (a.kind == ArgumentKind::kNone) return true;
  if (a.kind == ArgumentKind::kList) return type == TypeClass::kList || type == TypeClass::kAny;
  if (a.kind != ArgumentKind::kValue) return false;
  const bool tensor = graph.value(a.ref.value).kind == ValueKind::kTensor;
  if (type == TypeClass::kTensor) return tensor;
  if (type == TypeClass::kAny) return true;
  return !tensor && fits_schema(graph, a, type, false);
}

}  // namespace shadowgraph
