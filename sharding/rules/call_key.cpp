#include "sharding/rules/call_key.h"

namespace shadowgraph {

const std::string& CallKey::of(NodeId node) {
  key_ = graph_.target(node).name();
  add(graph_.arguments(node));
  key_ += '>';
  add(graph_.results(node));
  return key_;
}

void CallKey::add(int64_t number) { key_.append(reinterpret_cast<const char*>(&number), sizeof number); }

void CallKey::add(std::span<const Argument> arguments) {
  for (const Argument& argument : arguments) add(argument);
}

void CallKey::add(const Argument& argument) {
  key_ += static_cast<char>(argument.kind);
  switch (argument.kind) {
    case ArgumentKind::kValue: {
      const Value& value = graph_.value(argument.ref.value);
      key_ += static_cast<char>(value.kind);
      key_ += static_cast<char>(value.dtype);
      add(value.rank);
      for (const int64_t size : graph_.sizes(argument.ref.value)) add(size);
      for (const int64_t stride : graph_.strides(argument.ref.value)) add(stride);
      break;
    }
    case ArgumentKind::kConstant: {
      const auto constant = graph_.constant_meta(argument.constant);
      add(constant ? static_cast<int64_t>(constant->sizes.size()) : -1);
      if (!constant) break;
      for (const int64_t size : constant->sizes) add(size);
      break;
    }
    case ArgumentKind::kInt:
    case ArgumentKind::kFloat:
      add(argument.i);
      break;
    case ArgumentKind::kBool:
      add(int64_t{argument.b});
      break;
    case ArgumentKind::kIntList:
      add(static_cast<int64_t>(graph_.ints(argument).size()));
      for (const int64_t value : graph_.ints(argument)) add(value);
      break;
    case ArgumentKind::kList:
      add(static_cast<int64_t>(graph_.list(argument).size()));
      add(graph_.list(argument));
      break;
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque:
      key_ += graph_.text(argument.string);
      key_ += '\0';
      break;
    case ArgumentKind::kNone:
    case ArgumentKind::kComplex:
    case ArgumentKind::kDevice:
    case ArgumentKind::kGenerator:
      break;
  }
}

}  // namespace shadowgraph
