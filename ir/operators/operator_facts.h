// Table of operator properties that their schemas do not express.
//
//     {.names = "fill_ zero_", .is = kOverwrites | kFills | kPointwise}
//     {.names = "_unsafe_view", .alias_of = "self", .why = "a view that is not registered with autograd"}
//
// OperatorFacts (shadowgraph/graph/target.h) combine the rows with the schema and describe the effects of a call on its
// operands; operator_row returns the other columns.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Boolean properties of an operator.
enum class OperatorFact : uint32_t {
  kNoFact = 0,
  // ---- Effects. The first three apply only to overloads that read no other tensor: linspace, not .Tensor_Tensor
  kOverwrites = 1U << 0,     // overwrites every element of what it writes, without reading it
  kFills = 1U << 1,          // OperatorFacts::fills
  kGeometryOnly = 1U << 2,   // reads only sizes, strides, dtype and device of `self`
  kUninitialized = 1U << 3,  // returns uninitialized memory
  kPointwise = 1U << 4,      // pointwise, without PyTorch's `pointwise` tag
  kHostRead = 1U << 5,       // copies tensor contents to the host
  kResizes = 1U << 6,
  kTakesStorage = 1U << 7,
  kConjugates = 1U << 8,
  kNegates = 1U << 9,
  kMaybeAlias = 1U << 10,  // aliases, annotated or not, may also be newly allocated tensors
  // ---- Contents
  kNotEvaluable = 1U << 11,       // cannot be evaluated: its effect is not a result, or the result has no memory
  kReadsOperands = 1U << 12,      // a composite that reads integer operands on the host: lengths, split points
  kPrefersUserValues = 1U << 13,  // a user-provided value takes precedence over assumed contents
  kUniform = 1U << 14,            // besides pointwise ones: a result is constant everywhere if its operands are
  kUniformFill = 1U << 15,        // returns one number everywhere
  // ---- Kernels and dtypes
  kRefusesMeta = 1U << 16,     // the Meta kernel of this out= form fails, or keeps strides that eager does not
  kMakesQuantized = 1U << 17,  // results have a quantized dtype; fake tensors have no quantizer
  kNoCpuScalars = 1U << 18,    // CPU scalars cannot be mixed with tensors on other devices
  kDirectOnCpu = 1U << 19,     // a composite whose CPU kernel, without gradients, calls no other operator
  kPromotes = 1U << 20,        // uses TensorIterator with type promotion, but lacks the tag `pointwise`
  kOwnDtypes = 1U << 21,       // tagged `pointwise`, but handles mixed dtypes itself; see its shape rule
  kNewStrides = 1U << 22,      // an out= form, not pointwise: results get the strides of a newly allocated tensor
  kNewStridesIfResized = 1U << 23,
  // ---- Kinds
  kInfersSizes = 1U << 24,  // its size argument may contain -1, inferred from the other sizes
  kFused = 1U << 25,        // fuses two steps in one kernel, not apparent from its name
  kCublas = 1U << 26,
  kActivation = 1U << 27,  // listed for the plain form; foreach, in-place and backward forms inherit it
  // ---- Dtypes that eager kernels accept for the first tensor
  kFloatingOnly = 1U << 28,     // floating or complex
  kFloatingOrBytes = 1U << 29,  // floating, complex or uint8
  kIntegersOnly = 1U << 30,     // integers or bool
  kMixedOnCpu = 1U << 31,       // same_dtype_or_float: float32 beside half types on the CPU only
};
constexpr OperatorFact operator|(OperatorFact a, OperatorFact b) {
  return static_cast<OperatorFact>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr bool operator&(OperatorFact a, OperatorFact b) {
  return (static_cast<uint32_t>(a) & static_cast<uint32_t>(b)) != 0;
}

// Device of the outputs.
enum class DeviceRule : uint8_t {
  kCommon,          // all operands have the same device, except 0-dim CPU tensors
  kFirst,           // the device of the first tensor; others may be on any device: copy_, slice_scatter, ...
  kFirstOrCpu,      // the device of the first tensor; others may also be on the CPU: index
  kIndexedWrite,    // as kFirst; the values must be on its device or have one element; indices may be anywhere
  kPerSlot,         // element i of every list has the same device, independent of other elements: _foreach_*
  kDeviceArgument,  // an explicit device argument, otherwise as kCommon, otherwise the mode's default device
};

// Known contents of results when the operands' are not known (core/fake/dispatch/contents_of_call.h).
enum class ContentsRule : uint8_t {
  kNone,
  kAbsorbedByFalse,  // logical_and: false wherever an operand is false
  kAbsorbedByTrue,
  // With HostReads::finite:
  kFalseIfFinite,  // isnan, isinf
  kEqual,          // true unless infinite; equal to itself
  kNotEqual,
  kLeavesUnchanged,  // writes its second argument only if it finds an infinity or NaN
  // Unknown indices are assumed evenly distributed (core/fake/data_dependent_values.h):
  kCounts,   // bincount, histc: the count of each index
  kRouting,  // scatter of a number along the indices
};

// Numeric types for which a pointwise kernel is bitwise identical in every layout; vectorized and scalar loops may
// round differently. Integers are never rounded. Measured with 100,003 elements, contiguous and every second one, AVX2.
enum class LayoutFree : uint8_t {
  kIntegers,
  kWide,     // several operations, the same in both loops; with bf16 and f16 only one loop rounds in between
  kReal,     // one operation, rounded once, of real numbers
  kComplex,  // also one operation of complex numbers, where a product rounds several times
};

struct OperatorRow {
  // "add sub.Tensor": a name without overload applies to all overloads, one with overload to that one, "add." to the
  // default overload only (operator_name.h). Several rows may apply to an overload. Rows are sorted by their first
  // name.
  std::string_view names;
  OperatorFact is = OperatorFact::kNoFact;

  // ---- Corrections of the schema
  std::string_view writes;    // names of written arguments, space separated
  std::string_view when;      // name of the bool argument; when false, nothing in `writes` is written
  std::string_view alias_of;  // name of the argument that the first result may alias
  std::string_view why;       // reason; required for these and kMaybeAlias

  // The operator that returns what this one writes, if its name cannot be derived from this one's (operator_forms.h).
  std::string_view functional;
  // The argument `spares` is annotated as written, but is written only if the argument `unless` is given. Kernels of
  // fused optimizer steps (FusedAdamKernel.cpp and .cu, and similar) unscale gradients in place if there is a gradient
  // scaler; otherwise they only read them.
  std::string_view spares, unless;

  DeviceRule devices = DeviceRule::kCommon;  // kCommon: derived from the schema
  ContentsRule contents = ContentsRule::kNone;
  LayoutFree layout_free = LayoutFree::kIntegers;  // listed for the plain form; in-place forms inherit it
  // Names of tensors that must have one dtype, and of others that must have that dtype or be float32 beside a half type.
  std::string_view same_dtype, same_dtype_or_float;
  // Names of arguments in which a negative dimension is relative to the rank of self or of the result.
  std::string_view dimensions, dimensions_of_result;

  // Returns whether the row describes effects of a call on its operands.
  constexpr bool describes_effects() const;
};
constexpr bool OperatorRow::describes_effects() const {
  constexpr uint32_t kOfEffects = (static_cast<uint32_t>(OperatorFact::kMaybeAlias) << 1) - 1;
  return (is & static_cast<OperatorFact>(kOfEffects)) || !writes.empty() || !alias_of.empty() || !functional.empty();
}

constexpr std::string_view kOperatorTableFile = "ir/operators/operator_table.cpp";
std::span<const OperatorRow> operator_table();

// Merges all rows that apply to an operator, without `names`. Thread-safe; two hash lookups.
OperatorRow operator_row(std::string_view name);

// Operator families, recognized by parts of names: "attention". Costs, colors and kernel classes depend on them.
enum class OperatorFamily : uint8_t {
  kNone,
  kAttention,
  kConvolution,
  kRecurrent,
  kOptimizer,
  kSoftmax,
  kNormalization,
  kVectorNorm,  // of elements, not a layer
  kPooling,     // and resampling
  kDropout,
  kLoss,
  kEmbedding,
};
OperatorFamily operator_family(std::string_view name);

// Namespaces whose operators are all collectives: "c10d".
std::span<const std::string_view> collective_namespaces();

// Effects of an operator on its arguments, derived from its schema, the rows of the table, and its tags in this
// process. Callers use Target::facts() or Graph::facts(), which cache the result.

// Returns whether the conditional write of `facts.written` happens at this node.
bool writes_now(const Graph& graph, NodeId node, const OperatorFacts& facts);

// Returns whether the argument at `position` is fully overwritten, without its contents being read.
bool is_overwritten(const OperatorFacts& facts, size_t position);

// Returns whether this call writes the argument at `position`, one of OperatorFacts::written, provided that it writes
// at all (writes_now). For example, _fused_adamw_ writes its gradients only if a gradient scaler is given.
bool writes_argument(const Graph& graph, NodeId node, size_t position);

}  // namespace shadowgraph
