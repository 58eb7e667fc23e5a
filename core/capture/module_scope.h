// Names the module whose forward is running, so that captured nodes carry a module path.
//
// C++ modules have no forward hooks. One line at the top of a forward function does the job:
//
//     torch::Tensor forward(torch::Tensor x) {
//       shadowgraph::ModuleScope scope(*this);
//       return fc2->forward(torch::relu(fc1->forward(x)));
//     }
//
// Leaf modules of torch::nn (Linear, Conv2d, ...) need no scope: their path is inferred from the parameters they use.
// Outside a capture the constructor costs one thread-local read and does nothing else.
#pragma once

namespace torch::nn {
class Module;
}

namespace shadowgraph {

class ModuleScope {
 public:
  // `module` must be the module given to the capture or one of its submodules to get its registered path; any other
  // module is shown by its class name alone. Scopes nest and must be destroyed in reverse order of construction.
  explicit ModuleScope(const torch::nn::Module& module);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  bool entered_ = false;
};

}  // namespace shadowgraph
