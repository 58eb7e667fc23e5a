// Activation checkpointing for C++ programs, after torch.utils.checkpoint (non-reentrant).
#include "shadowgraph/capture/activation_checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>

#include "core/calls/functions.h"
#include "core/capture/recorder.h"
#include "core/fake/thread_state.h"

namespace shadowgraph {

struct AutocastOfDevice {
  c10::DeviceType type;
  bool enabled = at::autocast::is_autocast_enabled(type);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(type);
};

// Snapshot of this thread's autocast settings.
struct AutocastState {
  AutocastOfDevice cpu{c10::DeviceType::CPU}, cuda{c10::DeviceType::CUDA};
  bool cache_enabled = at::autocast::is_autocast_cache_enabled();

  // Applies the snapshot for its lifetime.
  struct Restored {
    explicit Restored(const AutocastState& state)
        : cpu(state.cpu.type, state.cpu.dtype, state.cpu.enabled, state.cache_enabled),
          cuda(state.cuda.type, state.cuda.dtype, state.cuda.enabled, state.cache_enabled) {}
    AutocastScope cpu, cuda;
  };
};

namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

bool is_faking() { return thread_state.mode != nullptr && thread_state.mode->kind == ModeKind::kFake; }

at::Tensor fake_state(c10::Device device) {
  return FakeTensorImpl::empty({random_state_bytes(device)}, caffe2::TypeMeta::fromScalarType(at::kByte),
                               c10::MemoryFormat::Contiguous, kCpu);
}

// Returns the generator's current state; undefined in a FakeTensorMode that is not being captured.
at::Tensor take(c10::Device device) {
  if (!is_faking()) return state_of(at::globalContext().defaultGenerator(device));
  if (current_recorder() == nullptr) return {};
  at::Tensor state = fake_state(device);
  current_recorder()->record_function(get_random_state(), std::array{c10::IValue(device)}, state);
  return state;
}

at::Tensor exchange(c10::Device device, const at::Tensor& state) {
  if (!is_fake(state)) {
    return is_faking() ? at::Tensor() : exchange_state(at::globalContext().defaultGenerator(device), state);
  }
  if (current_recorder() == nullptr) return {};
  at::Tensor before = fake_state(device);
  current_recorder()->record_function(exchange_random_state(), std::array{c10::IValue(state), c10::IValue(device)},
                                      before);
  return before;
}

void put_back(c10::Device device, const at::Tensor& state) {
  if (!is_fake(state)) {
    exchange_state(at::globalContext().defaultGenerator(device), state);
  } else if (current_recorder() != nullptr) {
    current_recorder()->record_function(set_random_state(), std::array{c10::IValue(state), c10::IValue(device)}, {});
  }
}

}  // namespace

// States of the default generators of the CPU and of the inputs' CUDA devices. A plain FakeTensorMode draws no random
// numbers and has none; a capture records the reads and writes of the state in the graph.
class RandomStates {
 public:
  RandomStates() = default;  // saves nothing
  explicit RandomStates(const std::vector<at::Tensor>& inputs) {
    std::vector<c10::Device> devices{kCpu};
    for (const at::Tensor& input : inputs) {
      if (!input.defined() || !input.is_cuda()) continue;
      const c10::Device device = with_index(input.device());
      if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
    }
    for (const c10::Device device : devices) {
      at::Tensor state = take(device);
      if (state.defined()) states_.emplace_back(device, std::move(state));
    }
  }

  class Restored {
   public:
    explicit Restored(const RandomStates& states) {
      for (const auto& [device, state] : states.states_) {
        at::Tensor before = exchange(device, state);
        if (before.defined()) before_.emplace_back(device, std::move(before));
      }
    }
    ~Restored() {
      for (const auto& [device, state] : before_) put_back(device, state);
    }
    C10_DISABLE_COPY_AND_ASSIGN(Restored);

   private:
    std::vector<std::pair<c10::Device, at::Tensor>> before_;
  };

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

// One call of a checkpointed function: its inputs, and a slot for every tensor that autograd saved in it.
//
// Ownership:
//
//     grad_fn created in the function  a hook in place of a saved tensor
//     hook                             its slot and the frame
//     frame                            the function and the inputs; weak references to the slots
//
// The inputs are saved variables of autograd outside the function, so an outer checkpoint sees them as its own slots.
// All of it is freed with the last grad_fn. A recomputation fills the slots for one backward pass (one graph task);
// unpacking a slot empties it.
struct CheckpointSlot {
  size_t index = 0;
  // Metadata of the saved tensor, compared with that of the recomputation.
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // By graph task; guarded by the frame's mutex.
  std::unordered_map<int, std::shared_ptr<torch::autograd::SavedVariableHooks>> filled;
};

class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(CheckpointedFunction function, const CheckpointOptions& options)
      : function_(std::move(function)), options_(options), runs_(options.name) {}

  std::vector<at::Tensor> run_forward(const std::vector<at::Tensor>& inputs);

  std::shared_ptr<CheckpointSlot> new_slot(const at::Tensor& tensor);
  at::Tensor unpack(CheckpointSlot& slot);

 private:
  void run_again(int task, CheckpointSlot* only);
  void forget_after(int task);

  const CheckpointedFunction function_;
  const CheckpointOptions options_;
  ExternalCheckpoint runs_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  AutocastState autocast_;
  RandomStates random_;
  std::vector<std::weak_ptr<CheckpointSlot>> slots_;
  bool forward_done_ = false;
  std::unordered_set<int> tasks_run_;  // running graph tasks for which the function was recomputed
  std::mutex mutex_;                   // locked in backward; of nested frames, the inner one first
};

namespace {

using Hooks = torch::autograd::SavedVariableHooks;

// Marks a run as a region of the active capture, if there is one, for the lifetime of the result.
auto run_scope(ExternalCheckpoint& runs) {
  runs.enter();
  return c10::make_scope_exit([&runs] { runs.leave(); });
}

// Forward: saved tensors are discarded
class SlotHook final : public Hooks {
 public:
  explicit SlotHook(std::shared_ptr<CheckpointFrame> frame) : frame_(std::move(frame)) {}
  void call_pack_hook(const at::Tensor& tensor) override { slot_ = frame_->new_slot(tensor); }
  at::Tensor call_unpack_hook() override { return frame_->unpack(*slot_); }

 private:
  std::shared_ptr<CheckpointFrame> frame_;
  std::shared_ptr<CheckpointSlot> slot_;
};

class Forward final : public SavedTensorObserver {
 public:
  explicit Forward(CheckpointFrame& frame) : frame_(frame) {}
  std::unique_ptr<Hooks> hooks_for_saved_tensor() override {
    return std::make_unique<SlotHook>(frame_.shared_from_this());
  }

 private:
  CheckpointFrame& frame_;
};

// Recomputation: saved tensors fill the slots
class PlainHook final : public Hooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override { data_.emplace(tensor); }
  at::Tensor call_unpack_hook() override { return data_->unpack(); }

 private:
  std::optional<SavedData> data_;
};

// Thrown through the function when its last slot is filled. Not a std::exception, which the function might catch.
struct AllSlotsFilled {};

class RefillHook final : public Hooks {
 public:
  using Fill = std::function<void(const at::Tensor&, const std::shared_ptr<Hooks>&)>;
  RefillHook(const Fill& fill, std::shared_ptr<Hooks> data) : fill_(fill), data_(std::move(data)) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    data_->call_pack_hook(tensor);
    fill_(tensor, data_);
  }
  at::Tensor call_unpack_hook() override { return data_->call_unpack_hook(); }

 private:
  const Fill& fill_;  // called only during the recomputation, which outlives it
  std::shared_ptr<Hooks> data_;
};

class Refill final : public SavedTensorObserver {
 public:
  Refill(RefillHook::Fill fill, SavedTensorObserver* capture) : fill_(std::move(fill)), capture_(capture) {}
  std::unique_ptr<Hooks> hooks_for_saved_tensor() override {
    // In a capture, autograd's hook keeps the tensor, so that the graph records it as saved by this node.
    std::unique_ptr<Hooks> data =
        capture_ == nullptr ? std::make_unique<PlainHook>() : capture_->hooks_for_saved_tensor();
    return std::make_unique<RefillHook>(fill_, std::move(data));
  }

 private:
  const RefillHook::Fill fill_;
  SavedTensorObserver* const capture_;
};

std::string describe(at::ScalarType dtype, c10::IntArrayRef sizes, c10::Device device) {
  return c10::str(dtype, sizes, " on ", device);
}

}  // namespace

std::shared_ptr<CheckpointSlot> CheckpointFrame::new_slot(const at::Tensor& tensor) {
  auto slot = std::make_shared<CheckpointSlot>();
  slot->index = slots_.size();
  slot->sizes = tensor.sizes().vec();
  slot->dtype = tensor.scalar_type();
  slot->device = tensor.device();
  slots_.push_back(slot);
  return slot;
}

std::vector<at::Tensor> CheckpointFrame::run_forward(const std::vector<at::Tensor>& inputs) {
  inputs_.reserve(inputs.size());
  for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  const auto region = run_scope(runs_);
  if (options_.preserve_random_state) random_ = RandomStates(inputs);
  Forward observer(*this);
  const SavedTensorScope scope(&observer);
  auto outputs = function_(inputs);
  forward_done_ = true;
  return outputs;
}

at::Tensor CheckpointFrame::unpack(CheckpointSlot& slot) {
  const int task = torch::autograd::get_current_graph_task_id();
  const std::lock_guard lock(mutex_);
  auto found = slot.filled.find(task);
  if (found == slot.filled.end()) {
    // A slot that is unpacked twice in one backward, or outside of backward, is recomputed without the other slots.
    const bool first = task >= 0 && tasks_run_.insert(task).second;
    if (first) forget_after(task);
    run_again(task, first ? nullptr : &slot);
    found = slot.filled.find(task);
    if (found == slot.filled.end()) {
      throw Error("checkpoint '" + options_.name + "': the recomputation did not reach saved tensor " +
                  std::to_string(slot.index) + ". The function must depend only on its inputs");
    }
  }
  const std::shared_ptr<Hooks> data = std::move(found->second);
  slot.filled.erase(found);
  return data->call_unpack_hook();
}

// Frees recomputed tensors that a backward did not unpack (it may compute only some gradients) when it ends.
void CheckpointFrame::forget_after(int task) {
  torch::autograd::Engine::get_default_engine().queue_callback([frame = weak_from_this(), task] {
    const auto alive = frame.lock();
    if (alive == nullptr) return;
    const std::lock_guard lock(alive->mutex_);
    alive->tasks_run_.erase(task);
    for (const auto& slot : alive->slots_) {
      if (const auto held = slot.lock()) held->filled.erase(task);
    }
  });
}

void CheckpointFrame::run_again(int task, CheckpointSlot* only) {
  // First, because it may recompute an outer checkpoint.
  std::vector<at::Tensor> inputs;
  for (const auto& input : inputs_) inputs.push_back(input.unpack());

  size_t count = 0;
  std::string mismatch;
  const size_t expected = slots_.size();
  Refill observer(
      [&](const at::Tensor& tensor, const std::shared_ptr<Hooks>& data) {
        const size_t index = count++;
        if (index >= expected) return;
        if (const auto slot = slots_[index].lock()) {
          const bool same =
              tensor.sizes() == slot->sizes && tensor.scalar_type() == slot->dtype && tensor.device() == slot->device;
          if (!same && mismatch.empty()) {
            mismatch = "saved tensor " + std::to_string(index) + " was " +
                       describe(slot->dtype, slot->sizes, slot->device) + " and is now " +
                       describe(tensor.scalar_type(), tensor.sizes(), tensor.device());
          }
          if (only == nullptr || only == slot.get()) slot->filled[task] = data;
        }
        if (options_.early_stop && count == expected) throw AllSlotsFilled();
      },
      saved_tensor_observer_of_mode());
  try {
    const auto region = run_scope(runs_);
    const c10::AutoGradMode grad_mode(true);
    const AutocastState::Restored autocast(autocast_);
    const RandomStates::Restored random(random_);
    const SavedTensorScope scope(&observer);
    function_(inputs);
    // NOLINTNEXTLINE(bugprone-empty-catch): early stop
  } catch (const AllSlotsFilled&) {}
  if (count != expected && (count < expected || forward_done_)) {
    mismatch = "it saved " + std::to_string(expected) + " tensors in forward and " + std::to_string(count) +
               " in the recomputation";
  }
  if (!mismatch.empty()) {
    throw Error("checkpoint '" + options_.name + "': the recomputation differs from the forward pass: " + mismatch +
                ". The function must depend only on its inputs and on tensors and settings that do not change before "
                "backward; check for counters, caches and random numbers from a generator that you pass yourself");
  }
}

std::vector<at::Tensor> checkpoint_tensors(CheckpointedFunction function, std::vector<at::Tensor> inputs,
                                           const CheckpointOptions& options) {
  // Without gradients nothing is saved.
  if (!c10::GradMode::is_enabled()) return function(inputs);
  const auto frame = std::make_shared<CheckpointFrame>(std::move(function), options);
  return frame->run_forward(inputs);
}

void ExternalCheckpoint::enter() {
  Recorder* const recorder = current_recorder();
  RunKind run_kind = RunKind::kUnrecorded;
  if (recorder != nullptr && !has_run_) {
    session_ = recorder->session();
    recorded_as_ = recorder->enter_checkpoint(name_);
    run_kind = RunKind::kForward;
  } else if (recorder != nullptr && session_ == recorder->session()) {
    recorder->enter_recomputation(recorded_as_, name_);
    run_kind = RunKind::kRecomputation;
  }
  has_run_ = true;
  under_way_.push_back(run_kind);
}

void ExternalCheckpoint::leave() noexcept {
  const RunKind run_kind = under_way_.back();
  under_way_.pop_back();
  Recorder* const recorder = current_recorder();
  if (run_kind == RunKind::kUnrecorded || recorder == nullptr || recorder->session() != session_) return;
  if (run_kind == RunKind::kForward) {
    recorder->leave_checkpoint();
  } else {
    recorder->leave_recomputation();
  }
}

void ExternalCheckpoint::keep(const at::Tensor& tensor) {
  if (SavedTensorObserver* const capture = saved_tensor_observer_of_mode()) {
    if (const auto hook = capture->hooks_for_saved_tensor()) hook->call_pack_hook(tensor);
  }
}

}  // namespace shadowgraph
