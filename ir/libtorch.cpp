// Holds all that a graph asks of libtorch: schemas are parsed, operators are looked up in the dispatcher, and constants
// are tensors. Sources of ir/ that do not need these are compiled without ATen.
//
// A target keeps its schema as text and is looked up when somebody asks. So a graph with a user's operator opens in a
// process that does not have it.
#include "shadowgraph/graph/libtorch.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "ir/operators/known_target.h"
#include "ir/operators/operator_name.h"

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

Target::Target(TargetKind kind, const c10::FunctionSchema& schema)
    : kind_(kind), name_(full_name(schema)), known_(std::make_shared<KnownTarget>(schema)) {}

std::string Target::schema_text() const { return toString(function_schema(*this)); }

const c10::FunctionSchema& function_schema(const Target& target) { return KnownTarget::of(target).schema; }

// An operator of the same name with another schema is another operator: its arguments may stand elsewhere.
std::optional<c10::OperatorHandle> find_operator(const Target& target) {
  if (target.kind() != TargetKind::kOperator) return std::nullopt;
  auto found = c10::Dispatcher::singleton().findSchema(function_schema(target).operator_name());
  if (!found || toString(found->schema()) != target.schema_text()) return std::nullopt;
  return found;
}

std::optional<c10::OperatorHandle> find_operator(std::string_view name) {
  return c10::Dispatcher::singleton().findSchema(operator_name(name));
}

bool has_another_schema(const Target& target) {
  const bool here = c10::Dispatcher::singleton().findSchema(function_schema(target).operator_name()).has_value();
  return here && !find_operator(target);
}

TargetId intern_operator(Graph& graph, const c10::OperatorHandle& op) {
  return graph.intern_target(Target(TargetKind::kOperator, op.schema()));
}

TargetId Graph::intern_operator(std::string_view name) {
  const auto op = find_operator(name);
  if (!op) throw Error("this process has no operator " + std::string(name));
  return shadowgraph::intern_operator(*this, *op);
}

ConstantId Graph::add_constant(at::Tensor tensor) {
  constants_.push_back(std::move(tensor));
  return ConstantId(static_cast<uint32_t>(constants_.size() - 1));
}

// Constants that were lost on the way (a graph from a text without their bytes) have no geometry.
std::optional<TensorMeta> Graph::constant_meta(ConstantId id) const {
  const at::Tensor& tensor = constant(id);
  if (!tensor.defined()) return std::nullopt;
  TensorMeta meta{.dtype = tensor.scalar_type(), .device = tensor.device(), .layout = tensor.layout()};
  meta.sizes = {tensor.sizes().data(), tensor.sizes().size()};
  if (meta.layout == c10::Layout::Strided) {
    meta.strides = {tensor.strides().data(), tensor.strides().size()};
    meta.offset = tensor.storage_offset();
  }
  meta.requires_grad = tensor.requires_grad();
  return meta;
}

bool is_written(const c10::Argument& formal) {
  return formal.alias_info() != nullptr && formal.alias_info()->isWrite();
}

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

c10::OperatorName operator_name(std::string_view name) {
  return {std::string(without_overload(name)), std::string(overload_of(name))};
}

// These schemas are part of the text form: they are not declared in a file, so changing one needs a new format version.
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
