// Translates a graph to functions and variables, independent of the target language.
//
// *Variables.* An in-place operator returns its operand, so both values are one variable: `%2 = add_(%1)` is the
// statement `x.add_(y)`. If the operator changes the geometry (t_, resize_, set_) and the old one is needed later, the
// tensor object is copied first (CodeStep::copies).
//
// *Blocks.* Consecutive steps of the same module become a function, nested like the modules; so do the steps of an
// activation checkpoint. Forward, backward and optimizer are always separate functions. In backward and optimizer,
// steps outside any module belong to the function of the steps before them. Functions that would be too long are split.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

struct SHADOWGRAPH_API CodegenOptions;
struct SHADOWGRAPH_API GeneratedCode;

struct CodeVariable {
  ValueId value;          // the first value that it holds
  uint32_t defined = 0;   // step; kGiven: an input
  uint32_t last_use = 0;  // step; the number of steps: returned
  ValueKind kind = ValueKind::kTensor;
  TypeClass type = TypeClass::kTensor;  // its C++ type: kNumber for `item`
  uint32_t given = 0;                   // index into CodeLayout::given, if defined is kGiven
};

struct CodeStep {
  NodeId node;
  bool grad_mode = false;
  struct Copy {
    uint32_t from = 0, to = 0;
  };
  std::vector<Copy> copies;       // variable `to` becomes a separate tensor object, before the call
  std::vector<uint32_t> results;  // variables, in the order of for_each_output
  std::vector<bool> fresh;        // by result: whether it is a new variable rather than an operand
};

// Items of a block: its own steps, and nested blocks.
struct CodeBlock {
  RegionId region;          // module or checkpoint; the root for the whole graph and for parts
  bool checkpoint = false;  // recomputed in backward
  std::string path;         // the module that names are relative to: "transformer.h.0"; "" for none
  bool part = false;        // one of several functions for a block that would be too long
  PhaseId phase;
  uint32_t begin = 0;  // steps
  uint32_t end = 0;
  struct Item {
    uint32_t step = 0;             // valid if block is kStep
    uint32_t block = 0xFFFFFFFFU;  // index into CodeLayout::blocks
    bool is_block() const { return block != 0xFFFFFFFFU; }
  };
  std::vector<Item> items;
  std::vector<uint32_t> inputs;   // variables, in order of first use
  std::vector<uint32_t> outputs;  // variables defined here and used later, in order of definition
  // In a checkpoint: the positions of inputs that are running statistics, which the recomputation must not update.
  std::vector<uint32_t> statistics;
};

class CodeLayout {
 public:
  static constexpr uint32_t kGiven = 0xFFFFFFFFU, kNoVariable = 0xFFFFFFFFU;

  // Throws UnsupportedError. The plan refers to `graph`, which must outlive it, or to its copy with calls inlined.
  static CodeLayout make(const Graph& graph, const CodegenOptions& options);

  // Placeholders, and constants that are not embedded in the code, in program order.
  struct Given {
    uint32_t variable = 0;
    NodeId node;           // invalid for a constant that is a direct argument
    ConstantId constant;   // valid for constants
    std::string name;      // "transformer.wte.weight"; constants: "constant.0"
    bool own = false;      // needs a separate tensor object, since it is changed in place
    bool written = false;  // its contents are written
  };

  const Graph* graph = nullptr;
  std::vector<CodeVariable> variables;
  std::vector<CodeStep> steps;
  std::vector<CodeBlock> blocks;  // inner before outer; the last is the whole graph
  std::vector<Given> given;
  struct Output {
    std::string name;                 // "output0"
    uint32_t variable = kNoVariable;  // kNoVariable: an undefined tensor
    bool gradient = false;            // if true, `name` is the parameter's
    std::string key() const { return gradient ? "gradient." + name : name; }
  };
  std::vector<Output> outputs;
  bool uses_grad_mode = false;                       // some operator ran with gradients enabled
  std::vector<RegionId> checkpoints_with_grad_mode;  // outermost checkpoints that contain one; sorted
  bool random = false;

  std::vector<uint32_t> returned_variables() const;
  uint32_t variable_of(ValueId value, uint32_t step) const;
  // Calls f(variable) for the operands of `step`, in order, with repetitions.
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
  friend class CodeLayoutBuilder;
  std::vector<uint32_t> variable_of_;  // by value: its first variable
  struct Rebound {
    ValueId value;
    uint32_t step;  // valid for later steps
    uint32_t variable;
  };
  std::vector<Rebound> rebound_;             // sorted by value, then step
  std::vector<uint32_t> constant_variable_;  // by constant
  std::unique_ptr<const Graph> own_graph_;
};

// Error for a call of a function without a known body.
inline constexpr const char* kNoFunctionText =
    "a user-defined function whose operators are not known; name the function to call in the code "
    "(CodegenOptions::functions, --function), keep a body with the call (pass collapse with bodies=keep), or replace "
    "it by its operators (inline_call of shadowgraph/graph/edit.h, pass rewrite)";

// Error for a graph with communication.
inline constexpr const char* kNoGroupText =
    "generated code cannot create process groups; run the graph itself, which communicates through the process groups "
    "of the current process (Graph.compile in Python, ReplayExecutor of shadowgraph/capture/replay.h)";
inline const char* why_no_function(const Target& target) {
  return target.name() == "sg_c10d::process_group" ? kNoGroupText : kNoFunctionText;
}

// Returns whether steps in this region use the caller's gradient mode. This includes checkpoints recorded entirely with
// gradients disabled: the first run of a reentrant checkpoint disables them even if the program has them enabled.
bool leaves_grad_mode(const CodeLayout& plan, RegionId region);
// Returns the outermost checkpoint around a region; invalid if there is none.
RegionId checkpoint_around(const Graph& graph, RegionId region);

// Returns the results of an operator that do not alias an operand.
std::vector<size_t> fresh_results(const OperatorFacts& facts, size_t results);

// Errors common to both languages, thrown as UnsupportedError: unreadable constants, operators of another libtorch,
// opaque objects.
TensorBytes readable_constant(const Graph& graph, ConstantId id, const std::string& name);
void refuse_another_schema(const Graph& graph, NodeId node);
[[noreturn]] void refuse_opaque(const Graph& graph, NodeId node, const Argument& object);

// Returns the distance in bytes between the first elements of two values of one storage, which may differ in dtype.
int64_t bytes_between(const Graph& graph, ValueId from, ValueId to);

// Adds the recorded result's device to a factory call that used the default device.
std::vector<Argument> arguments_with_device(const Graph& graph, NodeId node);

// Stores the constants that are not embedded in the code, and the name of their file, NAME_constants.pt. Throws
// UnsupportedError if a constant is not readable.
void take_side_constants(const CodeLayout& plan, const std::string& name, GeneratedCode& code);

// Fills CodeLayout::blocks from the steps and variables. `functions`: regions that become functions regardless of size.
void build_blocks(CodeLayout& plan, const CodegenOptions& options, const std::vector<RegionId>& functions);

struct InlinedBodies {
  Graph graph;
  std::vector<RegionId> functions;  // the region of each body
  std::vector<ValueId> only;        // CodegenOptions::only in this graph
};

// Inlines bodies of calls, nested ones included, except calls for which the options name a function. Returns nullopt if
// there are none. Throws UnsupportedError if a body is not a valid graph or does not fit its call. Linear in the graph
// and the bodies.
std::optional<InlinedBodies> inline_bodies(const Graph& graph, const CodegenOptions& options);

}  // namespace shadowgraph
