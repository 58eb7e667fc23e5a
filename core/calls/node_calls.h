// Prepares the arguments of nodes as IValues, except for values. Used to run nodes again: by the interpreter, shape
// propagation and rewrites.
//
//     CallTemplates templates(graph);
//     const CallTemplates::Call call = templates.add(node, formals, CallTemplates::Options{});
//     templates.push(call, [&](ValueId v) { return contents[v]; }, stack);
//
// Numbers for tensor arguments become wrapped numbers; an optional generator is None (the default generator).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"

namespace shadowgraph {

class CallTemplates {
 public:
  struct Range {
    uint32_t begin = 0;
    uint32_t size = 0;
  };
  struct Call {
    Range arguments;
    Range patches;
  };
  struct Options {
    // Maps the device of an argument.
    c10::function_ref<c10::Device(c10::Device)> device;
    // Called with a description of an argument that cannot be passed; it becomes None.
    c10::function_ref<void(const std::string& what)> problem;
  };

  // `graph` must outlive this.
  explicit CallTemplates(const Graph& graph) : graph_(graph) {}

  // Prepares one IValue for each of the node's arguments. Only the latest call's may be modified, by at().
  Call add(NodeId node, const Signature& formals, const Options& options);
  // Removes all calls.
  void clear();

  // Appends the arguments of a call. `content` returns the IValue of a ValueId.
  template <class Content>
  void push(const Call& call, const Content& content, torch::jit::Stack& stack) const {
    const size_t base = stack.size();
    const c10::IValue* const begin = templates_.data() + call.arguments.begin;
    stack.insert(stack.end(), begin, begin + call.arguments.size);
    const Patch* patch = patches_.data() + call.patches.begin;
    for (const Patch* const end = patch + call.patches.size; patch != end; ++patch) {
      if (patch->value.valid()) {
        stack[base + patch->argument] = content(patch->value);
        continue;
      }
      const List& list = lists_[patch->list];
      c10::impl::GenericList elements(list.element_type);
      elements.reserve(list.elements.size());
      auto next = list.patches.begin();
      for (uint32_t i = 0; i < list.elements.size(); ++i) {
        if (next != list.patches.end() && next->argument == i) {
          elements.push_back(content(next->value));
          ++next;
        } else {
          elements.push_back(list.elements[i]);
        }
      }
      stack[base + patch->argument] = elements;
    }
  }

  // Returns argument `i` of a call.
  c10::IValue& at(const Call& call, uint32_t i) { return templates_[call.arguments.begin + i]; }

 private:
  // Sets position `argument` of the stack to a value, or to list `list` if the value is invalid.
  struct Patch {
    uint32_t argument = 0;
    ValueId value;
    uint32_t list = 0;
  };
  // A list argument that contains values, created for each call.
  struct List {
    c10::TypePtr element_type;
    std::vector<c10::IValue> elements;
    std::vector<Patch> patches;  // Patch::argument is the index into `elements`
  };

  c10::IValue ivalue_of(const Argument& argument, TypeClass type, bool optional, const Options& options) const;
  c10::IValue list_of(const Argument& argument, const c10::TypePtr& element_type, List* values,
                      const Options& options) const;

  const Graph& graph_;
  std::vector<c10::IValue> templates_;
  std::vector<Patch> patches_;
  std::vector<List> lists_;
};

// Runs a node's operator on tensors chosen by the caller, for shape propagation and rewrites.
//
//     NodeCalls calls(graph);
//     torch::jit::Stack stack;
//     calls.push_arguments(node, [&](ValueId v) -> const at::Tensor& { return tensors[v]; }, stack);
//     calls.call(node, stack);                      // stack now holds the results of the schema
//
// The operator runs through the dispatcher: fake tensors yield shapes, real tensors results. Graphs are recorded below
// autograd, so the caller must disable it (BelowAutograd), or every call would be recorded for backward.

class NodeCalls {
 public:
  // `graph` must outlive this; nodes and targets may be added meanwhile.
  explicit NodeCalls(const Graph& graph) : graph_(graph), arguments_(graph) {}

  using TensorOf = c10::function_ref<const at::Tensor&(ValueId)>;
  // Throws Error for arguments without a text form (custom classes), and for numbers computed by other nodes.
  void push_arguments(NodeId node, TensorOf tensor_of, torch::jit::Stack& stack);
  // For a registered function, its shape rule is called, so the tensors must be fake. Throws Error if this process does
  // not have the operator or function, and rethrows their errors.
  void call(NodeId node, torch::jit::Stack& stack);

  const c10::OperatorHandle& operator_of(NodeId node);
  const Signature& formals_of(NodeId node) { return graph_.target(node).signature(); }

 private:
  const Graph& graph_;
  CallTemplates arguments_;                                    // of one node at a time
  std::vector<std::optional<c10::OperatorHandle>> operators_;  // by TargetId
};

// Disables autograd, autocast and the recording of composite operators on this thread for its lifetime.
class BelowAutograd {
 public:
  BelowAutograd();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace shadowgraph
