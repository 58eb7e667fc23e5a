// Lays a graph out as functions with variables, before it is spelled in a language.
//
// *Variables.* An in-place operator gives back the tensor that it was given, so both values are one variable: `%2 =
// add_(%1)` is the statement `x.add_(y)`. The operator may change the geometry (t_, resize_, set_) although the old one
// is needed later. Then a copy of the tensor object is made before, as CodeStep::copies says.
//
// *Blocks.* Steps in program order that ran in the same module become a function of their own, nested as the modules
// are. So do the steps of an activation checkpoint. Forward, backward and optimizer are never in one function. In
// backward and optimizer what ran outside any module stays with what ran before it. A function that would be long is
// cut in parts.
//
// Linear in the graph.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

struct SHADOWGRAPH_API CodegenOptions;
struct SHADOWGRAPH_API GeneratedCode;

struct CodeVariable {
  ValueId value;                        // the first that it holds
  uint32_t defined = 0;                 // step; kGiven: before the first
  uint32_t last_use = 0;                // step; the number of steps: needed at the end
  ValueKind kind = ValueKind::kTensor;  //
  TypeClass type = TypeClass::kTensor;  // as C++ has it: kNumber for `item`
  uint32_t given = 0;                   // index into CodePlan::given, if defined is kGiven
};

struct CodeStep {
  NodeId node;
  bool grad_mode = false;
  struct Copy {
    uint32_t from = 0;
    uint32_t to = 0;
  };
  std::vector<Copy> copies;       // variable `to` becomes a tensor object of its own, before the call
  std::vector<uint32_t> results;  // variables, in the order of for_each_output
  std::vector<bool> fresh;        // parallel: made here, not the same variable as an operand
};

// Items of a block: its own steps, and blocks in it.
struct CodeBlock {
  RegionId region;          // module or checkpoint; the root for the whole and for parts
  bool checkpoint = false;  // to be recomputed in backward
  std::string path;         // the module that its names are seen from: "transformer.h.0"; "" for none
  bool part = false;        // a piece of what would be too long
  PhaseId phase;
  uint32_t begin = 0;  // steps
  uint32_t end = 0;
  struct Item {
    uint32_t step = 0;             // valid if block is kStep
    uint32_t block = 0xFFFFFFFFU;  // index into CodePlan::blocks
    bool is_block() const { return block != 0xFFFFFFFFU; }
  };
  std::vector<Item> items;
  std::vector<uint32_t> inputs;   // variables, in order of first use
  std::vector<uint32_t> outputs;  // variables made here and needed later, in order of their making
  // In a checkpoint: which inputs are running statistics, by position. Its second run must leave them alone.
  std::vector<uint32_t> statistics;
};

class CodePlan {
 public:
  static constexpr uint32_t kGiven = 0xFFFFFFFFU;
  static constexpr uint32_t kNoVariable = 0xFFFFFFFFU;

  // Throws UnsupportedError. The graph of the plan is `graph`, which must outlive it, or one of its own with the bodies
  // of calls in their place.
  static CodePlan make(const Graph& graph, const CodegenOptions& options);

  // Placeholders, and constants that are not written into the code, in program order.
  struct Given {
    uint32_t variable = 0;
    NodeId node;           // invalid for a constant that a node names itself
    ConstantId constant;   // valid for constants
    std::string name;      // "transformer.wte.weight"; constants: "constant.0"
    bool own = false;      // the run needs a tensor object of its own: it is changed in place
    bool written = false;  // its contents are
  };

  const Graph* graph = nullptr;
  std::vector<CodeVariable> variables;
  std::vector<CodeStep> steps;
  std::vector<CodeBlock> blocks;  // inner ones before outer ones; the last is the whole
  std::vector<Given> given;
  struct Output {
    std::string name;                 // "output0"
    uint32_t variable = kNoVariable;  // none: an undefined tensor
    bool gradient = false;            // then `name` is the parameter's
    std::string key() const { return gradient ? "gradient." + name : name; }
  };
  std::vector<Output> outputs;
  bool uses_grad_mode = false;                       // some operator ran with gradients on
  std::vector<RegionId> checkpoints_with_grad_mode;  // outermost ones in which one did; sorted
  bool random = false;

  std::vector<uint32_t> returned_variables() const;
  uint32_t variable_of(ValueId value, uint32_t step) const;
  // Variables that `step` reads, in order, repeats included.
  template <class F>
  void for_each_operand(uint32_t step, F&& f) const {
    for (const CodeStep::Copy& copy : steps[step].copies) f(copy.from);
    graph->for_each_input(steps[step].node, [&](ValueId value) { f(variable_of(value, step)); });
  }
  template <class F>
  void for_each_constant(std::span<const Argument> arguments, F&& f) const {
    for (const Argument& argument : arguments) {
      if (argument.kind == ArgumentKind::kList) for_each_constant(graph->list(argument), f);
      if (argument.kind != ArgumentKind::kConstant) continue;
      if (const auto variable = variable_of_constant(argument.constant)) f(*variable);
    }
  }
  std::string_view path_of(RegionId region) const;
  std::optional<uint32_t> variable_of_constant(ConstantId constant) const;

 private:
  friend class CodePlanner;
  std::vector<uint32_t> variable_of_;  // by value, the first
  struct Rebound {
    ValueId value;
    uint32_t step;  // for later steps
    uint32_t variable;
  };
  std::vector<Rebound> rebound_;             // sorted by value, then step
  std::vector<uint32_t> constant_variable_;  // by constant
  std::unique_ptr<const Graph> own_graph_;
};

// Why a call of a function that is nowhere described is refused.
inline constexpr const char* kNoFunctionText =
    "a function of the user's own whose operators are not known; name the function that the code is to call "
    "(CodegenOptions::functions, --function), keep a body with the call (pass collapse with bodies=keep), or put its "
    "operators in its place (inline_call of shadowgraph/graph/edit.h, pass rewrite)";

// Why a graph that communicates is refused.
inline constexpr const char* kNoGroupText =
    "code makes no process groups; run the graph itself, which communicates through the groups of the process "
    "(Graph.compile in Python, ReplayExecutor of shadowgraph/capture/replay.h)";
inline const char* why_no_function(const Target& target) {
  return target.name() == "sg_c10d::process_group" ? kNoGroupText : kNoFunctionText;
}

// Says whether steps in this region leave the gradient mode to whoever calls them. So do those of a checkpoint that was
// recorded with gradients off throughout. A reentrant one's first run is, and says nothing of the program's wish.
bool leaves_grad_mode(const CodePlan& plan, RegionId region);
// The outermost checkpoint around a region; invalid if there is none.
RegionId checkpoint_around(const Graph& graph, RegionId region);

// Results of an operator that are no alias of an operand.
std::vector<size_t> fresh_results(const OperatorFacts& facts, size_t results);

// What both languages refuse, with UnsupportedError: contents that are gone, another libtorch's operator, an object.
TensorBytes readable_constant(const Graph& graph, ConstantId id, const std::string& name);
void refuse_another_schema(const Graph& graph, NodeId node);
[[noreturn]] void refuse_opaque(const Graph& graph, NodeId node, const Argument& object);

// From where one value begins to where another of its storage does: they may differ in dtype.
int64_t bytes_between(const Graph& graph, ValueId from, ValueId to);

// A factory that named no device made its tensor on the mode's default one: here that is what the result says.
std::vector<Argument> arguments_with_device(const Graph& graph, NodeId node);

// The constants that are not written into the code, and the name of their file, NAME_constants.pt. Throws
// UnsupportedError for one whose contents are gone.
void take_side_constants(const CodePlan& plan, const std::string& name, GeneratedCode& code);

// Fills CodePlan::blocks from its steps and variables. `functions`: regions that are functions however small they are.
void build_blocks(CodePlan& plan, const CodegenOptions& options, const std::vector<RegionId>& functions);

struct InlinedBodies {
  Graph graph;
  std::vector<RegionId> functions;  // one for each body: what is in it
  std::vector<ValueId> only;        // what CodegenOptions::only are there
};

// nullopt if no call has a body, but for those that the options name a function for. Bodies in bodies too. Throws
// UnsupportedError for a body that is no graph, or that does not fit its call. Linear in the graph and the bodies.
std::optional<InlinedBodies> inline_bodies(const Graph& graph, const CodegenOptions& options);

}  // namespace shadowgraph
