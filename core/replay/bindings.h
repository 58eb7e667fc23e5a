// Which tensors a graph's placeholders stand for in one run.
//
//     Bindings().module(net).bind("input0", x)         by name
//     Bindings().in_order({weight, bias, x})           all of them, in program order
//
// A name that the graph does not have is an error, but for those of a module: a pass may have dropped a parameter that
// nothing uses. Tensors are held, not copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace shadowgraph {

class Bindings {
 public:
  Bindings& bind(const std::string& name, at::Tensor tensor) {
    named_.insert_or_assign(name, Entry{std::move(tensor), true});
    return *this;
  }
  // Its parameters and buffers, by the names under which a capture declares them.
  Bindings& module(const torch::nn::Module& module);
  // Parameters, buffers and inputs (not constants: the graph holds those) in the order of their nodes. Counts before names.
  Bindings& in_order(std::vector<at::Tensor> tensors) {
    ordered_ = std::move(tensors);
    return *this;
  }

  struct Entry {
    at::Tensor tensor;
    bool must_exist = false;
  };
  const std::unordered_map<std::string, Entry>& named() const { return named_; }
  const std::vector<at::Tensor>& ordered() const { return ordered_; }

 private:
  std::unordered_map<std::string, Entry> named_;
  std::vector<at::Tensor> ordered_;
};

}  // namespace shadowgraph
