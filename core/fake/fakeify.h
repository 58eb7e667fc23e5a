// A module built of real tensors, run on fakes, and given back as it was.
//
//     FakeTensorMode mode;
//     {
//       const FakeModule fake = fakeify(mode, *net);
//       net->forward(x).sum().backward();   // gradients are fakes
//       optimizer.step();                   // writes to the fakes
//     }                                     // the very same parameters, gradients, versions and values as before
//
// C++ modules keep their tensors in members that nothing outside can replace. So the tensors stay, and stand for their
// fakes: inside the mode every operator call on one is on its fake, writes included (without fakeify those are refused),
// and gradients that arrive at one are fakes. The fakes pretend to be where the real tensors are. What would change the
// tensor object itself is refused: Module::to, `.data =`, t_(), resize_().
#pragma once

#include <memory>

namespace torch::nn {
class Module;
}

namespace shadowgraph {

class FakeTensorMode;

// Undoes it at the end of its life, which must come before that of the mode and of the module. Moves, does not copy.
class FakeModule {
 public:
  FakeModule(FakeModule&&) noexcept;
  FakeModule& operator=(FakeModule&&) noexcept;
  ~FakeModule();

  // Undoes it now; again: nothing.
  void undo() noexcept;

 private:
  friend FakeModule fakeify(FakeTensorMode& mode, torch::nn::Module& module);
  struct State;
  explicit FakeModule(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// All parameters and buffers of the module and of those in it; tied ones, and those that share memory, stay so. Throws
// RealTensorError if one of them cannot be made fake (sparse, quantised), and then changes nothing.
[[nodiscard]] FakeModule fakeify(FakeTensorMode& mode, torch::nn::Module& module);

}  // namespace shadowgraph
