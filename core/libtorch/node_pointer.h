// How libtorch holds nodes of autograd.
//
// Replaces: a pointer that is spelled as in one version.
// Since:    2.12 has shared pointers, 2.13 intrusive ones.
// Check:    FakeTensors.* (tests/core) make such a node.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>

namespace shadowgraph {

using NodePointer = decltype(torch::autograd::Edge::function);

template <class Node, class Pointer = NodePointer>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(new Node, [](auto* node) { deleteNode(node); });  // torch::autograd's, where there is one
  } else {
    return c10::make_intrusive<Node>();
  }
}

}  // namespace shadowgraph
