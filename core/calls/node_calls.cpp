#include "core/calls/node_calls.h"

#include <ATen/Context.h>
#include <ATen/ScalarOps.h>

#include "core/fake/process_groups.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/capture/functions.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

// Returns the element type at run time: symbolic ints, dtypes and layouts are ints.
c10::TypePtr runtime_type(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return c10::IntType::get();
    case c10::TypeKind::SymFloatType:
      return c10::FloatType::get();
    case c10::TypeKind::SymBoolType:
      return c10::BoolType::get();
    case c10::TypeKind::OptionalType:
      return c10::OptionalType::create(runtime_type(type->expectRef<c10::OptionalType>().getElementType()));
    default:
      return type;
  }
}

// Returns the element type of a list argument; Any if the schema has none.
c10::TypePtr element_type_of(const c10::FunctionSchema& schema, size_t position) {
  if (position >= schema.arguments().size()) return c10::AnyType::get();
  c10::TypePtr type = schema.arguments()[position].type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  if (type->kind() != c10::TypeKind::ListType) return c10::AnyType::get();
  return runtime_type(type->expectRef<c10::ListType>().getElementType());
}

at::Tensor wrapped_number(const at::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);  // a real CPU tensor, even inside a fake mode
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace

void CallTemplates::clear() {
  templates_.clear();
  patches_.clear();
  lists_.clear();
}

c10::IValue CallTemplates::ivalue_of(const Argument& argument, TypeClass type, bool optional,
                                     const Options& options) const {
  const bool is_tensor = type == TypeClass::kTensor;
  switch (argument.kind) {
    case ArgumentKind::kNone:
      return is_tensor && !optional ? c10::IValue(at::Tensor()) : c10::IValue();
    case ArgumentKind::kInt:
      if (type == TypeClass::kFloat) return static_cast<double>(argument.i);
      return is_tensor ? c10::IValue(wrapped_number(argument.i)) : c10::IValue(argument.i);
    case ArgumentKind::kFloat:
      return is_tensor ? c10::IValue(wrapped_number(argument.d)) : c10::IValue(argument.d);
    case ArgumentKind::kBool:
      return is_tensor ? c10::IValue(wrapped_number(argument.b)) : c10::IValue(argument.b);
    case ArgumentKind::kComplex: {
      const auto parts = graph_.complex_parts(argument);
      const c10::complex<double> number(parts[0], parts[1]);
      return is_tensor ? c10::IValue(wrapped_number(number)) : c10::IValue(number);
    }
    case ArgumentKind::kString:
      return graph_.text(argument.string);
    case ArgumentKind::kDevice:
      return options.device(argument.device());
    case ArgumentKind::kIntList: {
      const auto ints = graph_.ints(argument);
      return c10::IValue(c10::IntArrayRef(ints.data(), ints.size()));
    }
    case ArgumentKind::kConstant:
      return graph_.constant(argument.constant);
    case ArgumentKind::kGenerator:
      if (optional) return {};
      return at::globalContext().defaultGenerator(options.device(argument.device()));
    case ArgumentKind::kOpaque:
      options.problem("its argument is an object that a graph cannot hold (" + graph_.text(argument.string) +
                      "); replace the node, or run it in a subclass of Interpreter with defer_errors");
      return {};
    case ArgumentKind::kValue:
    case ArgumentKind::kList:
      break;
  }
  return {};
}

// Lists nest no deeper than kMaxListDepth (shadowgraph/graph/types.h).
c10::IValue CallTemplates::list_of(const Argument& argument, const c10::TypePtr& element_type, List* values,
                                   const Options& options) const {
  const bool optional = element_type->kind() == c10::TypeKind::OptionalType;
  const FormalType formal = formal_type(*element_type);
  c10::impl::GenericList list(element_type);
  uint32_t index = 0;
  for (const Argument& element : graph_.list(argument)) {
    if (element.kind == ArgumentKind::kList) {
      list.push_back(list_of(element, c10::AnyType::get(), nullptr, options));
    } else if (element.kind != ArgumentKind::kValue) {
      list.push_back(ivalue_of(element, formal.type, optional || formal.optional, options));
    } else if (values != nullptr) {
      list.push_back(optional || formal.type != TypeClass::kTensor ? c10::IValue() : c10::IValue(at::Tensor()));
      values->patches.push_back({index, element.ref.value, 0});
    } else {
      options.problem("nested lists of tensors cannot be replayed; run the node in a subclass of Interpreter");
    }
    ++index;
  }
  if (values != nullptr && !values->patches.empty()) {
    for (size_t i = 0; i < list.size(); ++i) values->elements.push_back(list.get(i));
    values->element_type = element_type;
  }
  return list;
}

CallTemplates::Call CallTemplates::add(NodeId node, const Signature& formals, const Options& options) {
  const auto arguments = graph_.arguments(node);
  const c10::FunctionSchema& schema = function_schema(graph_.target(node));
  Call call;
  call.arguments = {static_cast<uint32_t>(templates_.size()), static_cast<uint32_t>(arguments.size())};
  call.patches.begin = static_cast<uint32_t>(patches_.size());
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    const FormalType type = i < formals.arguments.size() ? formals.arguments[i].type : FormalType{};
    if (argument.kind == ArgumentKind::kValue) {
      patches_.push_back({i, argument.ref.value, 0});
      templates_.emplace_back();
    } else if (argument.kind == ArgumentKind::kList) {
      List list;
      c10::IValue value = list_of(argument, element_type_of(schema, i), &list, options);
      if (list.patches.empty()) {
        templates_.push_back(std::move(value));
      } else {
        patches_.push_back({i, ValueId(), static_cast<uint32_t>(lists_.size())});
        lists_.push_back(std::move(list));
        templates_.emplace_back();
      }
    } else if (argument.kind == ArgumentKind::kIntList && type.type == TypeClass::kList && !type.is_int_list()) {
      // The schema's elements are not the graph's ints: int?[], float[].
      c10::impl::GenericList list(element_type_of(schema, i));
      for (const int64_t element : graph_.ints(argument)) {
        list.push_back(ivalue_of(Argument::of_int(element), type.element, type.element_optional, options));
      }
      templates_.emplace_back(std::move(list));
    } else if (argument.kind == ArgumentKind::kString && i < schema.arguments().size() &&
               is_named_object(*schema.arguments()[i].type())) {
      std::string problem;
      templates_.push_back(object_named(*schema.arguments()[i].type(), graph_.text(argument.string), problem));
      if (!problem.empty()) options.problem(problem);
    } else {
      templates_.push_back(ivalue_of(argument, type.type, type.optional, options));
    }
  }
  call.patches.size = static_cast<uint32_t>(patches_.size()) - call.patches.begin;
  return call;
}

BelowAutograd::BelowAutograd()
    : guard_(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
             c10::DispatchKeySet(kCompositeKey)) {}

const c10::OperatorHandle& NodeCalls::operator_of(NodeId node) {
  const TargetId target = graph_.node(node).target;
  // Cached per target, because find_operator compares schemas.
  if (target.index >= operators_.size()) operators_.resize(target.index + 1);
  auto& handle = operators_[target.index];
  if (!handle) {
    handle = find_operator(graph_.target(target));
    if (!handle) {
      throw Error("cannot run " + graph_.target(target).name() +
                  ": this process has no operator with that schema. Load the library that registers it; node: " +
                  to_text(graph_, node));
    }
  }
  return *handle;
}

void NodeCalls::push_arguments(NodeId node, TensorOf tensor_of, torch::jit::Stack& stack) {
  const Signature& formals = formals_of(node);
  if (formals.variadic_arguments || graph_.arguments(node).size() != formals.arguments.size()) {
    throw Error("cannot run a node whose arguments do not match its schema: " + to_text(graph_, node));
  }
  const auto own_device = [](c10::Device device) { return device; };
  const auto refuse = [&](const std::string& what) {
    throw Error("cannot run a node: " + what + "; node: " + to_text(graph_, node));
  };
  const auto content = [&](ValueId v) -> c10::IValue {
    if (graph_.value(v).kind != ValueKind::kTensor) refuse("an argument is a number that another node computes");
    return tensor_of(v);
  };
  arguments_.clear();
  const CallTemplates::Call call = arguments_.add(node, formals, {.device = own_device, .problem = refuse});
  arguments_.push(call, content, stack);
}

void NodeCalls::call(NodeId node, torch::jit::Stack& stack) {
  if (graph_.target(node).kind() != TargetKind::kFunction) {
    operator_of(node).callBoxed(stack);
    return;
  }
  const auto function = find_function(graph_.target(node));
  if (!function) {
    throw Error("cannot run " + graph_.target(node).name() +
                ": no function with that schema is registered in this process; call register_function (see "
                "shadowgraph/capture/replay.h)");
  }
  // User-defined functions have no kernel for fake tensors, only a shape rule.
  stack = function->shape_rule(stack);
}

}  // namespace shadowgraph
