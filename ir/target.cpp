#include "shadowgraph/graph/target.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "ir/operators/known_target.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

c10::FunctionSchema parse_schema(const std::string& text) {
  try {
    return torch::jit::parseSchema(text);
  } catch (const std::exception& error) {
    throw ParseError("not an operator schema: '" + text + "'", 0, 0);
  }
}

}  // namespace

Target::Target(TargetKind kind, const std::string& schema_text) : Target(kind, parse_schema(schema_text)) {}

Target::Target(TargetKind kind, c10::FunctionSchema schema)
    : kind_(kind), name_(full_name(schema)), known_(std::make_shared<KnownTarget>(std::move(schema))) {}

std::string Target::schema_text() const { return toString(schema()); }

std::optional<c10::OperatorHandle> Target::find_operator() const {
  if (kind_ != TargetKind::kOperator) return std::nullopt;
  auto found = c10::Dispatcher::singleton().findSchema(schema().operator_name());
  if (!found || toString(found->schema()) != schema_text()) return std::nullopt;
  return found;
}

const char* builtin_schema(Builtin builtin) {
  switch (builtin) {
    case Builtin::kParameter:
      return "sg::parameter(str name) -> Tensor";
    case Builtin::kBuffer:
      return "sg::buffer(str name) -> Tensor";
    case Builtin::kInput:
      return "sg::input(str name) -> Tensor";
    case Builtin::kConstant:
      return "sg::constant(Tensor data) -> Tensor";
    case Builtin::kAlias:
      return "sg::alias(Tensor source) -> Tensor";
    case Builtin::kOutput:
      return "sg::output(Tensor?[] values) -> ()";
    case Builtin::kGradient:
      return "sg::gradient(Tensor parameter, Tensor gradient) -> ()";
  }
  return "";
}

}  // namespace shadowgraph
