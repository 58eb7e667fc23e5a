// The table of what is known of operators beyond their schemas: their names and every fact about them that is data.
//
//     {.names = "fill_ zero_", .is = kOverwrites | kFills | kPointwise}
//     {.names = "_unsafe_view", .alias_of = "self", .why = "a view that autograd is told nothing of"}
//
// A fact is stated here once, whoever needs it. What a layer knows as a function (a shape rule, a FLOP formula, a
// decomposition, a kernel, a sharding rule) it attaches by name. What a call does to its operands is asked of
// OperatorFacts (shadowgraph/graph/target.h), which join the rows with the schema; the other columns of operator_row.
//
// tests/ir/operator_facts_test.cpp runs the operator of every row that says what a call does on real tensors and holds
// it against what happened: such a row is two lines, one here and one call in tests/ir/operator_calls.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// What holds of an operator or does not.
enum class OperatorFact : uint32_t {
  // ---- What a call does. The first three only for overloads that read no other tensor: linspace, not .Tensor_Tensor
  kOverwrites = 1U << 0,     // of what it writes, every element, reading none of it
  kFills = 1U << 1,          // OperatorFacts::fills
  kGeometryOnly = 1U << 2,   // reads of `self` sizes, strides, dtype and device alone
  kUninitialised = 1U << 3,  // gives memory as it was found
  kPointwise = 1U << 4,      // without PyTorch's tag of that name
  kHostRead = 1U << 5,       // gives the host what is in a tensor
  kResizes = 1U << 6,
  kTakesStorage = 1U << 7,
  kConjugates = 1U << 8,
  kNegates = 1U << 9,
  kMaybeAlias = 1U << 10,  // aliases, annotated or not, may also be fresh tensors
  // ---- Contents
  kNotEvaluable = 1U << 11,   // not run for real: what it does is no result, or gives a tensor without memory
  kReadsOperands = 1U << 12,  // a composite that reads integers behind a pointer: lengths, places to split at
  kAsksUserFirst = 1U << 13,  // asks the user for what it reads, so that what is assumed comes second
  kUniform = 1U << 14,        // beside pointwise ones: gives one number everywhere if its operands have one everywhere
  kUniformFill = 1U << 15,    // gives one number everywhere
  // ---- Kernels and dtypes
  kRefusesMeta = 1U << 16,     // the Meta kernel of this out= form refuses or keeps strides that eager does not
  kMakesQuantized = 1U << 17,  // results are of a quantised dtype, which a fake has no quantizer for
  kNoCpuScalars = 1U << 18,    // numbers on the CPU do not go with tensors elsewhere
  kDirectOnCpu = 1U << 19,     // a composite whose CPU kernel without gradients calls no other
  kPromotes = 1U << 20,        // iterates over operands that are promoted, without the tag `pointwise`
  kOwnDtypes = 1U << 21,       // tagged so, but deals with operands of other dtypes itself, as its rule knows
  kNewStrides = 1U << 22,      // an out= form, not pointwise: results get the strides of new ones
  kNewStridesIfResized = 1U << 23,
  // ---- Kinds
  kInfersSizes = 1U << 24,  // its size argument may hold -1 for what follows from the others
  kFused = 1U << 25,        // two steps in one kernel, by no prefix of its name
  kCublas = 1U << 26,
  kActivation = 1U << 27,  // said of the plain form; foreach, in-place and backward forms follow it
  // ---- Dtypes that eager's kernels take, of the first tensor
  kFloatingOnly = 1U << 28,     // floating or complex
  kFloatingOrBytes = 1U << 29,  // uint8, too
  kIntegersOnly = 1U << 30,     // and bool
  kMixedOnCpu = 1U << 31,       // OperatorRow::same_dtype_or_float: float32 beside half types on the CPU alone
};
constexpr OperatorFact operator|(OperatorFact a, OperatorFact b) {
  return static_cast<OperatorFact>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr bool operator&(OperatorFact a, OperatorFact b) {
  return (static_cast<uint32_t>(a) & static_cast<uint32_t>(b)) != 0;
}

// Says where the outputs live.
enum class DeviceRule : uint8_t {
  kCommon,          // all operands agree; 0-dim CPU tensors go with anything
  kFirst,           // the first tensor decides and the others may live anywhere: copy_, slice_scatter, ...
  kFirstOrCpu,      // the first tensor decides, the others may live on the CPU as well: index
  kIndexedWrite,    // ... which its values agree with, of one number or not on its device; the indices live anywhere
  kPerSlot,         // element i of every list agrees, apart from the others: _foreach_*
  kDeviceArgument,  // an explicit device argument, otherwise as kCommon, otherwise the mode's default device
};

// Says what is known of results although the operands are not (core/fake/dispatch/contents_of_call.h).
enum class ContentsRule : uint8_t {
  kNone,
  kAbsorbedByFalse,  // logical_and: false wherever an operand is
  kAbsorbedByTrue,
  // With HostReads::finite:
  kFalseIfFinite,  // isnan, isinf
  kEqual,          // not an infinity; itself
  kNotEqual,
  kFindsNothing,  // writes to its second argument only if it finds an infinity or NaN
  // Indices that nobody knows are dealt evenly (core/fake/data_dependent_values.h):
  kCounts,  // bincount, histc: how many of each there are
  kDeals,   // scatter of a number along them
};

// For which numbers a pointwise kernel gives the same bits in every layout, where vector and scalar loops may round
// differently. Integers are never rounded. Measured: 100,003 elements, contiguous and every second, AVX2.
enum class LayoutFree : uint8_t {
  kIntegers,
  kWide,     // several operations, the same ones in both loops; with bf16 and f16 only one of them rounds in between
  kReal,     // one operation, rounded once, of real numbers
  kComplex,  // ... and of complex ones, where a product is several
};

struct OperatorRow {
  // "add sub.Tensor": without overload for all overloads, with it for one, "add." for the default one alone
  // (operator_name.h). Several rows may speak of an overload. Rows are sorted by their first name.
  std::string_view names;
  OperatorFact is{};

  // ---- Where the schema lies
  std::string_view writes;    // names of written arguments, space separated
  std::string_view when;      // name of the bool argument without which nothing in `writes` is written
  std::string_view alias_of;  // name of the argument that the first result may alias
  std::string_view why;       // needed for these and kMaybeAlias

  // The operator that gives what this one writes, if its name does not follow from this one's (operator_forms.h).
  std::string_view functional;
  // The argument `spares` is annotated as written, but is written only where the argument `unless` is given. Kernels of
  // fused optimizer steps (FusedAdamKernel.cpp and .cu, and their like) divide gradients by the scaler's factor and keep
  // that. Without a scaler they read them.
  std::string_view spares, unless;

  DeviceRule devices = DeviceRule::kCommon;  // kCommon: what follows from the schema
  ContentsRule contents = ContentsRule::kNone;
  LayoutFree layout_free = LayoutFree::kIntegers;  // said of the plain form; in-place forms follow it
  // Names of tensors that must have one dtype, and of others that must have it, or be float32 beside a half type.
  std::string_view same_dtype, same_dtype_or_float;
  // Names of arguments in which a negative number counts from the end, in the rank of self or of the result.
  std::string_view dimensions, dimensions_of_result;

  // Whether it says what a call does to its operands.
  constexpr bool is_of_effects() const;
};
constexpr bool OperatorRow::is_of_effects() const {
  constexpr uint32_t kOfEffects = (static_cast<uint32_t>(OperatorFact::kMaybeAlias) << 1) - 1;
  return (is & static_cast<OperatorFact>(kOfEffects)) || !writes.empty() || !alias_of.empty() || !functional.empty();
}

constexpr std::string_view kOperatorTableFile = "ir/operators/operator_table.cpp";
std::span<const OperatorRow> operator_table();

// What the rows of an operator say together, without `names`. Thread-safe; two searches by hash.
OperatorRow operator_row(std::string_view name);

// Kinds of work that names tell, as parts: "attention". Costs, colours and classes of kernels follow from them.
enum class OperatorFamily : uint8_t {
  kNone,
  kAttention,
  kConvolution,
  kRecurrent,
  kOptimizer,
  kSoftmax,
  kNormalization,
  kVectorNorm,  // of the numbers, not of a layer
  kPooling,     // and resampling
  kDropout,
  kLoss,
  kEmbedding,
};
OperatorFamily operator_family(std::string_view name);

// All of whose operators are collectives: "c10d".
std::span<const std::string_view> collective_namespaces();

// What an operator does to its arguments, worked out: its schema, the rows of the table, the tags that it has in
// this process. Everybody asks Target::facts() or Graph::facts(), which keep the answer.

// Whether the write of `facts.written` happens at this node.
bool writes_now(const Graph& graph, NodeId node, const OperatorFacts& facts);

// Whether the argument at `position` is written as a whole, whatever it held.
bool is_overwritten(const OperatorFacts& facts, size_t position);

// Says whether this call writes the argument at `position`, one of OperatorFacts::written, if it writes anything
// (writes_now, ir/operators/operator_facts.h). The gradients of _fused_adamw_ are written where a scaler is given.
bool writes_argument(const Graph& graph, NodeId node, size_t position);

}  // namespace shadowgraph
