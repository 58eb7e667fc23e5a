// Reads lines of sharding rules into data. docs/adding-an-operator.md has the grammar.
//
//     aten::addmm: +{m n}, m k, k n -> m n; linear self mat1 | self mat2
//     aten::convolution if !transposed: n (g ci) *_, (g co) ci *_, +(g co) -> n (g co) *_; g = groups
//     aten::relu: pointwise; monotone self
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/shard/layout.h"
#include "support/embedded_file.h"

namespace shadowgraph {

// A condition on an argument of the call: "if training", "if !training", "if reduction=1".
struct RuleCondition {
  std::string argument;  // "": always
  bool negated = false;
  std::optional<int64_t> equals;  // otherwise: a bool
};

// A dimension of a pattern, or a row of them.
struct DimPattern {
  std::vector<std::string> factors;  // outermost first; none: `_` or `1`, a dimension that nobody cuts
  bool star = false;                 // *name: any number of dimensions; *_: the same, none of them cut
  bool broadcast = false;            // `?`: may be of size 1, or (of a star, or in braces) be absent
  std::string anchor;                // @dim: stands where this argument says
  std::string length;                // =normalized_shape: as many as this argument has elements
};

struct TensorPattern {
  std::vector<DimPattern> dims;
  bool list = false;            // [..]: each tensor of a list
  bool added = false;           // +: a term of the result, so a partial sum wherever that is one
  bool same = false;            // `.`: the same on all devices, whatever is cut
  bool aligned = false;         // {..}: aligned with the others from the right, as in broadcasting
  std::vector<std::string> of;  // results: the arguments that it is made of; none: of all
};

struct RuleClause {
  enum class Kind {
    kWhole,     // these factors are not cut
    kEqual,     // these only where all dimensions that have them are of one size
    kReduce,    // results without these factors are partial by `op`
    kWholeAt,   // dimensions that the argument `argument` lists are not cut
    kLinear,    // groups of arguments in which the operator is linear together
    kMonotone,  // groups in which it is monotone: partial maxima and minima pass
    kAntitone,  // the same, maxima become minima
    kExtent,    // the factor's extent is the argument `argument`, and its local one that of the local call
    kLocal,     // `argument` is divided by the devices that cut the factors
    kSizes,     // `argument` is the sizes of the first result
    kRandom,    // draws random numbers
    kMasked,    // the factor is looked up by the indices in `argument`: what a device has not counts as nothing there
  };
  Kind kind;
  RuleCondition condition;
  PartialOp op = PartialOp::kSum;
  std::string argument;
  std::vector<std::vector<std::string>> groups;  // of names
};

struct RuleText {
  std::string name;  // "aten::add" for all overloads, "aten::add.Tensor" for one
  RuleCondition condition;
  std::string builder;             // "pointwise" and its like; "": patterns
  std::vector<std::string> words;  // of the builder
  std::vector<TensorPattern> operands;
  std::vector<TensorPattern> results;
  std::vector<RuleClause> clauses;
  std::string text;      // the line behind the names, for messages
  bool builtin = false;  // whether a misfit means that the call has no rule; with a user's rule it is an error
  int line = 0;
  int column = 0;
  std::string place;  // of a built-in one, in the source tree
};

std::span<const EmbeddedFile> sharding_rule_files();  // the built-in rules, sharding/rules/*.txt

// Throws ParseError. It does not ask whether builders exist.
std::vector<RuleText> parse_rules(std::string_view text, std::string_view name);

}  // namespace shadowgraph
