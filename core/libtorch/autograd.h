// Ownership of autograd nodes.
//
// Replaces: a pointer type of one version.
// Since:    2.12 has shared pointers, 2.13 intrusive ones.
// Check:    FakeTensors.* (tests/core) create such a node.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace shadowgraph {

using NodePointer = decltype(torch::autograd::Edge::function);

template <class Node, class Pointer = NodePointer>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(new Node, [](auto* node) { deleteNode(node); });  // torch::autograd::deleteNode, where it exists
  } else {
    return c10::make_intrusive<Node>();
  }
}

// An autograd engine that forwards everything to another one. torch::autograd::Engine is not a public interface: its
// virtual functions change with libtorch, and one that is not forwarded bypasses the inner engine (Python's).
//
// Replaces: a subclass with the functions of one version.
// Since:    2.14 has get_node_creation_hooks(); node pointers are NodePointer above.
// Check:    verify_installation (core/fake/mode/process_state.cpp).
//
// Without `inner` it is libtorch's base engine.
class ForwardingEngine : public torch::autograd::Engine {
 public:
  explicit ForwardingEngine(torch::autograd::Engine* inner) : inner_(inner) {}
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    if (inner_ != nullptr) return inner_->execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, NodePointer root,
      torch::autograd::InputBuffer&& input) override {
    return inner_ != nullptr ? inner_->execute_with_graph_task(task, std::move(root), std::move(input))
                             : Engine::execute_with_graph_task(task, std::move(root), std::move(input));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return inner_ != nullptr ? inner_->make_anomaly_metadata() : Engine::make_anomaly_metadata();
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return inner_ != nullptr ? inner_->get_default_saved_variable_hooks() : Engine::get_default_saved_variable_hooks();
  }
#if __has_include(<torch/csrc/autograd/node_creation_hook.h>)
  std::vector<std::unique_ptr<torch::autograd::NodeCreationHook>> get_node_creation_hooks() override {
    return inner_ != nullptr ? inner_->get_node_creation_hooks() : Engine::get_node_creation_hooks();
  }
#endif
  void start_threads() { (inner_ != nullptr ? *inner_ : *this).initialize_device_threads_pool(); }

 private:
  torch::autograd::Engine* const inner_;
};

}  // namespace shadowgraph
