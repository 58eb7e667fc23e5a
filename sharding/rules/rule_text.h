// Parses sharding rules. docs/adding-an-operator.md has the grammar.
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
  std::string argument;  // empty: unconditional
  bool negated = false;
  std::optional<int64_t> equals;  // if empty, a bool is tested
};

// A dimension of a pattern, or a sequence of dimensions.
struct DimPattern {
  std::vector<std::string> factors;  // outermost first; empty: `_` or `1`, a dimension that is not sharded
  bool star = false;                 // *name: any number of dimensions; *_: the same, not sharded
  bool broadcast = false;            // `?`: may have size 1, or (for a star, or in braces) be absent
  std::string anchor;                // @dim: position given by this argument
  std::string length;                // =normalized_shape: as many as this argument has elements
};

struct TensorPattern {
  std::vector<DimPattern> dims;
  bool list = false;            // [..]: applies to each tensor of a list
  bool added = false;           // +: a term of the result, so a partial sum if the result is one
  bool same = false;            // `.`: always replicated
  bool aligned = false;         // {..}: aligned with the others from the right, as in broadcasting
  std::vector<std::string> of;  // results: the arguments it depends on; empty: all
};

struct RuleClause {
  enum class Kind {
    kWhole,     // these factors are not sharded
    kEqual,     // these only if all their dimensions have the same size
    kReduce,    // results without these factors are partial with `op`
    kWholeAt,   // dimensions listed in `argument` are not sharded
    kLinear,    // groups of arguments in which the operator is jointly linear
    kMonotone,  // groups in which it is increasing: partial maxima and minima pass through
    kAntitone,  // groups in which it is decreasing: maxima become minima
    kExtent,    // the factor's extent is `argument`, its local extent that of the local call
    kLocal,     // `argument` is divided by the number of devices that shard the factors
    kSizes,     // `argument` is the sizes of the first result
    kRandom,    // draws random numbers
    kMasked,    // the factor is indexed by `argument`: indices of other devices contribute nothing
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
  std::string builder;             // class name such as "pointwise"; empty: patterns
  std::vector<std::string> words;  // arguments of the class
  std::vector<TensorPattern> operands;
  std::vector<TensorPattern> results;
  std::vector<RuleClause> clauses;
  std::string text;      // the rule after the operator names, for messages
  bool builtin = false;  // a mismatch means that the call has no rule; for a user's rule it is an error
  int line = 0;
  int column = 0;
  std::string place;  // of a built-in rule in the source tree
};

std::span<const EmbeddedFile> sharding_rule_files();  // the built-in rules, sharding/rules/*.txt

// Throws ParseError. Does not check that class names exist.
std::vector<RuleText> parse_rules(std::string_view text, std::string_view name);

}  // namespace shadowgraph
