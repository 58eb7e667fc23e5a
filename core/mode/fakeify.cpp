#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <mutex>
#include <unordered_set>

#include "core/fake/converter.h"
#include "core/fake/fake_tensor_impl.h"
#include "shadowgraph/fake.h"

namespace shadowgraph {

struct FakeModule::State {
  struct Kept {
    at::Tensor tensor;
    at::Tensor gradient;
    uint32_t version = 0;
  };
  ModeState* mode = nullptr;
  std::vector<Kept> kept;
};

FakeModule::FakeModule(std::unique_ptr<State> state) : state_(std::move(state)) {}
FakeModule::FakeModule(FakeModule&&) noexcept = default;
FakeModule& FakeModule::operator=(FakeModule&& other) noexcept {
  undo();
  state_ = std::move(other.state_);
  return *this;
}
FakeModule::~FakeModule() { undo(); }

void FakeModule::undo() noexcept {
  if (!state_) return;
  for (const State::Kept& kept : state_->kept) {
    kept.tensor.mutable_grad() = kept.gradient;
    if (!kept.tensor.is_inference()) {
      c10::VariableVersion counter = torch::autograd::impl::version_counter(kept.tensor);
      counter.set_version(kept.version);
    }
    const std::lock_guard lock(state_->mode->memo_mutex);
    const auto entry = state_->mode->memo.adopted.find(kept.tensor.unsafeGetTensorImpl());
    if (entry != state_->mode->memo.adopted.end() && --entry->second == 0) state_->mode->memo.adopted.erase(entry);
  }
  state_.reset();
}

FakeModule fakeify(FakeTensorMode& mode, torch::nn::Module& module) {
  auto state = std::make_unique<FakeModule::State>();
  state->mode = &state_of(mode);
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto keep = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || is_fake(tensor) || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    mode.from_real(tensor);  // throws before anything is changed
    state->kept.push_back(
        {tensor, tensor.grad(), tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version())});
  };
  for (const at::Tensor& parameter : module.parameters()) keep(parameter);
  for (const at::Tensor& buffer : module.buffers()) keep(buffer);
  for (const FakeModule::State::Kept& kept : state->kept) {
    {
      const std::lock_guard lock(state->mode->memo_mutex);
      ++state->mode->memo.adopted[kept.tensor.unsafeGetTensorImpl()];
    }
    if (kept.gradient.defined()) kept.tensor.mutable_grad() = mode.from_real(kept.gradient);
  }
  return FakeModule(std::move(state));
}

}  // namespace shadowgraph
