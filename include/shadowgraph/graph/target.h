// What a node calls: an operator, one of the sg:: built-ins, or a function the user registered.
//
// A target is kept as name and schema text, so that a graph with somebody's own operator opens in a tool that does not
// have it; the schema is parsed (without registration) when first asked for, the operator handle looked up likewise.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <memory>
#include <optional>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/ids.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class TargetKind : uint8_t {
  kOperator,  // a dispatcher operator: "aten::add.Tensor"
  kBuiltin,   // "sg::parameter" and its siblings, below
  kFunction,  // a user-registered function with a shape rule
};

class Target {
 public:
  // `schema_text` is the full schema, "aten::mm(Tensor self, Tensor mat2) -> Tensor".
  // Throws ParseError if it is not a schema.
  Target(TargetKind kind, const std::string& schema_text);
  Target(TargetKind kind, c10::FunctionSchema schema);

  TargetKind kind() const { return kind_; }
  // Operator name with overload: "aten::add.Tensor".
  const std::string& name() const { return name_; }
  const c10::FunctionSchema& schema() const { return *schema_; }
  std::string schema_text() const;
  // The operator in this process' dispatcher, if it is there with the very same schema.
  std::optional<c10::OperatorHandle> find_operator() const;

 private:
  TargetKind kind_;
  std::string name_;
  std::shared_ptr<const c10::FunctionSchema> schema_;
};

// Built-in targets. Every graph has them at these TargetIds.
//   sg::parameter(str name) -> Tensor      a parameter of the captured module; likewise sg::buffer, sg::input
//   sg::constant(Tensor data) -> Tensor    a real tensor met from outside, held by the graph
//   sg::alias(Tensor source) -> Tensor     a tensor met that shares a known storage without an operator that made it
//   sg::output(Tensor?[] values) -> ()     what the program returned; the last node, at most one
//   sg::gradient(Tensor parameter, Tensor gradient) -> ()   where .grad of a parameter ended
enum class Builtin : uint32_t { kParameter, kBuffer, kInput, kConstant, kAlias, kOutput, kGradient };
constexpr uint32_t kBuiltinCount = 7;
constexpr TargetId target_of(Builtin builtin) { return TargetId(static_cast<uint32_t>(builtin)); }
const char* builtin_schema(Builtin builtin);
// sg::parameter, sg::buffer, sg::input, sg::constant: what stands for something from outside, and comes first.
constexpr bool is_placeholder(TargetId target) { return target.index <= target_of(Builtin::kConstant).index; }
// sg::output, sg::gradient: what is handed out, and comes last.
constexpr bool is_end(TargetId target) {
  return target == target_of(Builtin::kOutput) || target == target_of(Builtin::kGradient);
}

}  // namespace shadowgraph
