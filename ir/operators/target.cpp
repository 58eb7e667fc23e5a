// The graph's interface to libtorch: parsed schemas, operators looked up in the dispatcher, and constant tensors.
#include "shadowgraph/graph/target.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>

#include "ir/operators/known_target.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/graph/libtorch.h"
#include "support/hash.h"

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

// An operator of the same name with another schema is a different operator, as its argument positions may differ.
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
  if (!op) throw Error("operator not registered in this process: " + std::string(name));
  return shadowgraph::intern_operator(*this, *op);
}

ConstantId Graph::add_constant(at::Tensor tensor) {
  constants_.push_back(std::move(tensor));
  return ConstantId(static_cast<uint32_t>(constants_.size() - 1));
}

// Constants without data (a graph parsed from text without their bytes) have no geometry.
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

// These schemas are part of the text form but not declared in files, so changing one requires a new format version.
const char* builtin_schema(Builtin builtin) {
  static constexpr const char* kSchemas[kBuiltinCount] = {"sg::parameter(str name) -> Tensor",
                                                          "sg::buffer(str name) -> Tensor",
                                                          "sg::input(str name) -> Tensor",
                                                          "sg::constant(Tensor data) -> Tensor",
                                                          "sg::alias(Tensor source) -> Tensor",
                                                          "sg::output(Tensor?[] values) -> ()",
                                                          "sg::gradient(Tensor parameter, Tensor gradient) -> ()"};
  return kSchemas[static_cast<uint32_t>(builtin)];
}

namespace {

constinit std::atomic<uint64_t> registrations_seen = 0;

class RegistrationCounter final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override { registrations_seen.fetch_add(1); }
  void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override { registrations_seen.fetch_add(1); }
};

}  // namespace

uint64_t operator_generation() {
  // Never removed: the dispatcher notifies it of deregistrations until the process ends.
  static const auto* const listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<RegistrationCounter>()));
  static_cast<void>(listening);
  return registrations_seen.load();
}

namespace {

// Type classes of schema types. Symbolic ints and floats are numbers in a graph; types without a class are kAny, for
// which the verifier accepts anything.
constexpr std::pair<c10::TypeKind, TypeClass> kClasses[] = {
    {c10::TypeKind::TensorType, TypeClass::kTensor},
    {c10::TypeKind::NumberType, TypeClass::kNumber},
    {c10::TypeKind::IntType, TypeClass::kInt},
    {c10::TypeKind::SymIntType, TypeClass::kInt},
    {c10::TypeKind::ScalarTypeType, TypeClass::kDtype},
    {c10::TypeKind::LayoutType, TypeClass::kLayout},
    {c10::TypeKind::MemoryFormatType, TypeClass::kMemoryFormat},
    {c10::TypeKind::FloatType, TypeClass::kFloat},
    {c10::TypeKind::SymFloatType, TypeClass::kFloat},
    {c10::TypeKind::BoolType, TypeClass::kBool},
    {c10::TypeKind::SymBoolType, TypeClass::kBool},
    {c10::TypeKind::StringType, TypeClass::kString},
    {c10::TypeKind::DeviceObjType, TypeClass::kDevice},
    {c10::TypeKind::GeneratorType, TypeClass::kGenerator},
    {c10::TypeKind::ListType, TypeClass::kList},
};
TypeClass class_of(const c10::Type& type) {
  const auto* row = std::ranges::find(kClasses, type.kind(), &std::pair<c10::TypeKind, TypeClass>::first);
  return row != std::end(kClasses) ? row->second : TypeClass::kAny;
}

const c10::Type& without_optional(const c10::Type& type, bool& optional) {
  optional = type.kind() == c10::TypeKind::OptionalType;
  // NOLINTNEXTLINE(bugprone-return-const-ref-from-parameter): types outlive the schema walk
  return optional ? *static_cast<const c10::OptionalType&>(type).getElementType() : type;
}

// Empty for defaults that no Argument can represent. Defaults are stored outside any graph, with their strings and
// lists, since all graphs share a signature.
std::optional<DefaultArgument> default_argument(const c10::IValue& value) {
  DefaultArgument result;
  if (value.isNone()) return result;
  if (value.isBool()) {
    result.argument = Argument::of_bool(value.toBool());
  } else if (value.isInt()) {
    result.argument = Argument::of_int(value.toInt());
  } else if (value.isDouble()) {
    result.argument = Argument::of_float(value.toDouble());
  } else if (value.isComplexDouble()) {
    result.argument = Argument::of_run(ArgumentKind::kComplex, {});
    result.complex = {value.toComplexDouble().real(), value.toComplexDouble().imag()};
  } else if (value.isString()) {
    result.argument = Argument::of_string({});
    result.string = value.toStringRef();
  } else if (value.isDevice()) {
    result.argument = Argument::of_device(value.toDevice());
  } else if (value.isIntList()) {
    result.argument = Argument::of_run(ArgumentKind::kIntList, {});
    result.ints = value.toIntVector();
  } else if (value.isList()) {
    result.argument = Argument::of_run(ArgumentKind::kList, {});
    for (const c10::IValue& element : value.toListRef()) {
      // If one element cannot be represented, the whole default is unknown.
      auto converted = default_argument(element);
      if (!converted) return std::nullopt;
      result.elements.push_back(std::move(*converted));
    }
  } else {
    return std::nullopt;
  }
  return result;
}

// Includes the sets of a list's elements.
void collect_sets(const c10::AliasInfo& info, std::vector<std::string>& sets) {
  for (const c10::Symbol set : info.beforeSets()) sets.emplace_back(set.toUnqualString());
  for (const c10::AliasInfo& contained : info.containedTypes()) collect_sets(contained, sets);
}

Formal formal_of(const c10::Argument& argument) {
  // real_type distinguishes dtype, layout and memory format; the plain type calls all three int.
  Formal formal{.name = argument.name(), .type = formal_type(*argument.real_type())};
  formal.has_default = argument.default_value().has_value();
  if (formal.has_default) formal.default_value = default_argument(*argument.default_value());
  formal.type.length = argument.N().value_or(0);
  formal.keyword_only = argument.kwarg_only();
  formal.out = argument.is_out();
  if (const c10::AliasInfo* alias = argument.alias_info()) {
    formal.writes = alias->isWrite();
    collect_sets(*alias, formal.alias_sets);
  }
  return formal;
}

Signature signature_of(const c10::FunctionSchema& schema) {
  Signature signature{.name = schema.name(), .overload = schema.overload_name()};
  for (const c10::Argument& argument : schema.arguments()) signature.arguments.push_back(formal_of(argument));
  for (const c10::Argument& returned : schema.returns()) signature.returns.push_back(formal_of(returned));
  signature.variadic_arguments = schema.is_vararg();
  signature.variadic_returns = schema.is_varret();
  return signature;
}

}  // namespace

// Elements of nested lists have the class kAny and are not checked.
FormalType formal_type(const c10::Type& type) {
  FormalType result;
  const c10::Type& inner = without_optional(type, result.optional);
  result.type = class_of(inner);
  if (result.type == TypeClass::kList) {
    const c10::Type& element =
        without_optional(*static_cast<const c10::ListType&>(inner).getElementType(), result.element_optional);
    result.element = class_of(element);
    // The IValue is a list of ints in all of these cases.
    if (result.element == TypeClass::kDtype || result.element == TypeClass::kLayout ||
        result.element == TypeClass::kMemoryFormat) {
      result.element = TypeClass::kInt;
    }
    if (result.element == TypeClass::kList) result.element = TypeClass::kAny;
  }
  return result;
}

// Returns whether an argument equals the schema's default, so that the text omits it.
bool DefaultArgument::equals(const Graph& graph, const Argument& actual) const {
  if (actual.kind != argument.kind) return false;
  switch (actual.kind) {
    case ArgumentKind::kNone:
      return true;
    case ArgumentKind::kInt:
      return actual.i == argument.i;
    // Compared by bits: NaN equals itself here, and -0.0 is not 0.0.
    case ArgumentKind::kFloat:
      return same_bits(actual.d, argument.d);
    case ArgumentKind::kBool:
      return actual.b == argument.b;
    case ArgumentKind::kComplex: {
      const auto parts = graph.complex_parts(actual);
      return parts.size() == 2 && same_bits(parts[0], complex[0]) && same_bits(parts[1], complex[1]);
    }
    case ArgumentKind::kString:
      return actual.string.index < graph.string_count() && graph.text(actual.string) == string;
    case ArgumentKind::kDevice:
      return actual.device() == argument.device();
    case ArgumentKind::kIntList:
      return std::ranges::equal(graph.ints(actual), ints);
    case ArgumentKind::kList:
      return std::ranges::equal(graph.list(actual), elements,
                                [&](const Argument& a, const DefaultArgument& d) { return d.equals(graph, a); });
    default:
      return false;
  }
}

// Strings and lists are stored in the pools of the graph, so a default is created for each graph.
Argument DefaultArgument::make(Graph& graph) const {
  switch (argument.kind) {
    case ArgumentKind::kComplex:
      return graph.complex_argument(complex[0], complex[1]);
    case ArgumentKind::kString:
      return graph.string_argument(string);
    case ArgumentKind::kIntList:
      return graph.int_list(ints);
    case ArgumentKind::kList: {
      std::vector<Argument> made;
      for (const DefaultArgument& element : elements) made.push_back(element.make(graph));
      return graph.make_list(made);
    }
    default:
      return argument;
  }
}

std::optional<size_t> Signature::position_of(std::string_view argument) const {
  const auto found = std::ranges::find(arguments, argument, &Formal::name);
  if (found == arguments.end()) return std::nullopt;
  return static_cast<size_t>(found - arguments.begin());
}

// Computed on first use, under a lock; afterwards readers take the pointer without one.
const Signature& Target::compute_signature() const {
  KnownTarget& known = KnownTarget::of(*this);
  const std::lock_guard lock(known.mutex);
  if (!known.final_signature) {
    known.final_signature = std::make_unique<const Signature>(signature_of(known.schema));
    known.signature.store(known.final_signature.get(), std::memory_order_release);
  }
  return *known.final_signature;
}

}  // namespace shadowgraph
