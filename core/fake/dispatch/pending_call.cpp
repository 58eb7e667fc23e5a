#include <ATen/EmptyTensor.h>
#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <unordered_map>

#include "core/fake/dispatch/contents_of_call.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "ir/operators/operator_facts.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kMaxDepth = 1000;  // destroying a chain of shared pointers is recursive

std::recursive_mutex resolving;

// Returns a tensor with the same metadata but no memory.
at::Tensor without_memory(const at::Tensor& tensor) {
  auto geometry = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU), nullptr, false),
      c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  geometry->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  at::Tensor like(std::move(geometry));
  like._set_conj(tensor.is_conj());
  like._set_neg(tensor.is_neg());
  return like;
}

// Returns a one-element tensor of the same rank.
at::Tensor one_element(const at::Tensor& like) {
  const c10::DimVector ones(like.sizes().size(), 1);
  return at::detail::empty_cpu(ones, like.scalar_type(), std::nullopt, std::nullopt, std::nullopt, std::nullopt);
}

// Returns whether uniform operands give a uniform result: each element depends on those at its position, or on all of
// them equally.
bool preserves_uniformity(const OperatorInfo& info) {
  return info.target.facts().pointwise || (operator_row(info.name).is & OperatorFact::kUniform);
}

bool is_uniform_fill(const OperatorInfo& info) { return operator_row(info.name).is & OperatorFact::kUniformFill; }

}  // namespace

// Tracks the cost of one read against the contents budget.
class PendingCall::BudgetTracker {
 public:
  BudgetTracker() : budget_(budget()), begin_(std::chrono::steady_clock::now()) {}
  void bytes(size_t more, const OperatorInfo& info) {
    bytes_ += static_cast<int64_t>(more);
    if (bytes_ > budget_.bytes) {
      refuse(info, fmt::format("{} bytes so far, of {} allowed", bytes_, budget_.bytes), "bytes");
    }
  }
  void time(const OperatorInfo& info) const {
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    if (spent > budget_.seconds) {
      refuse(info, fmt::format("{:.1f} s so far, of {} s allowed", spent, budget_.seconds), "seconds");
    }
  }

 private:
  static ContentsBudget budget() {
    const ModeState* mode = thread_state.mode;
    return mode != nullptr ? mode->options.contents_budget.value_or(ContentsBudget()) : ContentsBudget();
  }
  [[noreturn]] static void refuse(const OperatorInfo& info, const std::string& cost, const char* field) {
    throw DataDependentError(
        fmt::format("the value that the program reads follows from constants and sizes, but computing it exceeds the "
                    "budget ({}, at {}). Increase FakeTensorOptions::contents_budget.{}, or provide the value in "
                    "host_reads",
                    cost, info.name, field));
  }
  ContentsBudget budget_;
  std::chrono::steady_clock::time_point begin_;
  int64_t bytes_ = 0;
};

bool PendingCall::covers_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() ==
                                                      static_cast<size_t>(tensor.numel()) * tensor.dtype().itemsize();
}

bool PendingCall::keep(const at::Tensor& tensor, uint16_t argument, int32_t index) {
  if (as_fake(tensor) == nullptr) return true;  // a wrapped number stays among the arguments
  Operand operand{.argument = argument,
                  .index = index,
                  .storage = &storage_of(tensor),
                  .bytes = storage_of(tensor).nbytes(),
                  .written = is_in(info_.written_arguments, argument)};
  const bool whole = is_in(info_.overwritten_arguments, argument) && covers_storage(tensor);
  if (!is_in(info_.unread_arguments, argument) && tensor.numel() != 0) {
    operand.contents = snapshot_of_contents(tensor);
    if (operand.contents == nullptr && !whole) return false;
  }
  operand.overwritten = whole;
  operand.like = without_memory(tensor);
  operands_.push_back(std::move(operand));
  return true;
}

// A completely overwritten operand need not be known, unless it is also read: x.copy_(x.t()).
void PendingCall::keep_shared_overwritten_operands() {
  for (Operand& operand : operands_) {
    if (operand.overwritten) {
      const bool shared = std::any_of(operands_.begin(), operands_.end(), [&](const Operand& other) {
        return &other != &operand && other.storage == operand.storage;
      });
      if (!shared) operand.contents.reset();
    }
    if (operand.contents && operand.contents->pending) depth = std::max(depth, operand.contents->pending->depth + 1);
  }
}

std::shared_ptr<PendingCall> PendingCall::of(const OperatorInfo& info, const torch::jit::Stack& arguments) {
  std::shared_ptr<PendingCall> call(new PendingCall(info));
  call->arguments_ = arguments;
  for (const uint16_t position : info.tensor_arguments) {
    c10::IValue& argument = call->arguments_[position];
    if (argument.isTensor()) {
      if (!argument.toTensor().defined() || as_fake(argument.toTensor()) == nullptr) continue;
      if (!call->keep(argument.toTensor(), position, -1)) return nullptr;
      argument = c10::IValue();
    } else if (argument.isList()) {
      int32_t index = 0;
      const bool is_tensors = argument.isTensorList();
      c10::List<at::Tensor> tensors;
      c10::List<std::optional<at::Tensor>> optional;
      for (const c10::IValue& element : argument.toListRef()) {
        const bool fake = element.isTensor() && element.toTensor().defined() && as_fake(element.toTensor()) != nullptr;
        if (fake && !call->keep(element.toTensor(), position, index)) return nullptr;
        ++index;
        if (is_tensors) {
          tensors.push_back(fake ? at::Tensor() : element.toTensor());
        } else {
          optional.push_back(fake || element.isNone() ? std::nullopt : std::optional(element.toTensor()));
        }
      }
      argument = is_tensors ? c10::IValue(std::move(tensors)) : c10::IValue(std::move(optional));
    }
  }
  call->keep_shared_overwritten_operands();
  if (call->depth <= kMaxDepth) return call;
  // Too deep: resolve the operands now.
  for (Operand& operand : call->operands_) {
    if (!operand.contents || !operand.contents->pending) continue;
    try {
      operand.contents->pending->resolve(*operand.contents);
    } catch (const DataDependentError&) {
      return nullptr;
    }
  }
  call->depth = 1;
  return call;
}

void PendingCall::promise(const torch::jit::Stack& arguments, const torch::jit::Stack& stack, size_t results) {
  const auto self = shared_from_this();
  for (size_t k = 0; k < operands_.size(); ++k) {
    Operand& operand = operands_[k];
    if (!operand.written) continue;
    const c10::IValue& argument = arguments[operand.argument];
    const at::Tensor fake =
        operand.index < 0 ? argument.toTensor() : argument.toListRef()[static_cast<size_t>(operand.index)].toTensor();
    if (fake.numel() == 0) continue;
    outputs_.push_back(
        {.contents = set_pending_contents(fake, self), .like = operand.like, .operand = static_cast<int32_t>(k)});
  }
  for (size_t i = results; i < stack.size(); ++i) {
    const auto give = [&](const at::Tensor& fake, int32_t index) {
      if (!fake.defined() || as_fake(fake) == nullptr || fake.numel() == 0) return;
      if (has_contents(storage_of(fake))) return;  // written above
      if (!covers_storage(fake)) return;
      outputs_.push_back({.contents = set_pending_contents(fake, self),
                          .like = without_memory(fake),
                          .result = static_cast<uint16_t>(i - results),
                          .index = index});
    };
    if (stack[i].isTensor()) {
      give(stack[i].toTensor(), -1);
    } else if (stack[i].isTensorList()) {
      int32_t index = 0;
      for (const c10::IValue& element : stack[i].toListRef()) give(element.toTensor(), index++);
    }
  }
}

// Resolves pending operands first, iteratively: a program may build a long chain.
void PendingCall::resolve(KnownContents& contents) {
  const std::lock_guard lock(resolving);
  if (!contents.pending) return;
  BudgetTracker spending;
  std::vector<std::shared_ptr<PendingCall>> stack{shared_from_this()};
  while (!stack.empty()) {
    const std::shared_ptr<PendingCall> call = stack.back();
    bool ready = true;
    for (const Operand& operand : call->operands_) {
      if (!operand.contents || !operand.contents->pending) continue;
      auto earlier = std::static_pointer_cast<PendingCall>(operand.contents->pending);
      TORCH_INTERNAL_ASSERT(!earlier->outputs_.empty());
      stack.push_back(std::move(earlier));
      ready = false;
    }
    if (!ready) continue;
    stack.pop_back();
    if (call->outputs_.empty()) continue;  // already executed
    call->run(spending);
  }
}

// Returns the arguments for the CPU kernel, with real tensors.
torch::jit::Stack PendingCall::with_operands(const std::vector<at::Tensor>& operands) const {
  torch::jit::Stack stack = arguments_;
  for (const uint16_t position : info_.tensor_arguments) {
    if (!stack[position].isList()) continue;
    // Lists have reference semantics, so they are copied.
    if (stack[position].isTensorList()) {
      stack[position] = stack[position].toTensorList().copy();
    } else {
      stack[position] = c10::impl::toTypedList<std::optional<at::Tensor>>(stack[position].toList().copy());
    }
  }
  for (size_t k = 0; k < operands_.size(); ++k) {
    const Operand& operand = operands_[k];
    c10::IValue& argument = stack[operand.argument];
    if (operand.index < 0) {
      argument = operands[k];
    } else if (argument.isTensorList()) {
      argument.toTensorList().set(static_cast<size_t>(operand.index), operands[k]);
    } else {
      argument.toList().set(static_cast<size_t>(operand.index), operands[k]);
    }
  }
  if (info_.device_argument >= 0) {
    c10::IValue& device = stack[static_cast<size_t>(info_.device_argument)];
    if (device.isDevice()) device = c10::Device(c10::DeviceType::CPU);
  }
  return stack;
}

static at::Tensor result_in(const torch::jit::Stack& results, uint16_t result, int32_t index) {
  if (result >= results.size()) return {};
  const c10::IValue& value = results[result];
  if (index < 0) return value.isTensor() ? value.toTensor() : at::Tensor();
  return value.toListRef()[static_cast<size_t>(index)].toTensor();
}

// Runs the call on one element if that determines all of them.
bool PendingCall::run_on_one_element() {
  const bool fill = is_uniform_fill(info_);
  if (!fill && !preserves_uniformity(info_)) return false;
  std::vector<at::Tensor> operands;
  for (const Operand& operand : operands_) {
    if (operand.written && static_cast<size_t>(operand.like.numel()) * operand.like.dtype().itemsize() != operand.bytes)
      return false;
    at::Tensor one = one_element(operand.like);
    if (operand.contents && !operand.overwritten) {
      if (!operand.contents->uniform && operand.like.numel() != 1) return false;
      const auto value = value_in(*operand.contents, operand.like);
      if (!value) return false;
      one.copy_(operand.like.numel() == 1 ? value->reshape(one.sizes())
                                          : real_view(operand.contents->uniform->element, one));
    }
    operands.push_back(std::move(one));
  }
  torch::jit::Stack stack = with_operands(operands);
  if (fill) {
    const auto& schema = info_.op.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i) {
      if (schema[i].name() == "size" && stack[i].isIntList()) {
        stack[i] = std::vector<int64_t>(stack[i].toIntVector().size(), 1);
      }
    }
  }
  info_.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  std::vector<std::pair<std::shared_ptr<KnownContents>, at::Tensor>> made;
  for (const Output& output : outputs_) {
    const auto contents = output.contents.lock();
    if (!contents) continue;
    const at::Tensor value = output.operand >= 0 ? operands[static_cast<size_t>(output.operand)]
                                                 : result_in(stack, output.result, output.index);
    if (!value.defined() || value.numel() != 1 || value.scalar_type() != output.like.scalar_type()) return false;
    made.emplace_back(contents, value.resolve_conj().resolve_neg());
  }
  for (const auto& [contents, value] : made) resolve_to_uniform(*contents, value);
  return true;
}

std::optional<std::vector<at::Tensor>> PendingCall::real_operands(BudgetTracker& spending) const {
  std::unordered_map<const void*, c10::Storage> written;
  for (const Operand& operand : operands_) {
    if (!operand.written || written.count(operand.storage) != 0) continue;
    spending.bytes(operand.bytes, info_);
    const c10::Storage memory = zeroed(operand.bytes);
    if (operand.contents) {
      const auto elements = static_cast<int64_t>(operand.bytes / operand.like.dtype().itemsize());
      at::Tensor all = at::detail::empty_cpu({0}, operand.like.scalar_type(), std::nullopt, std::nullopt, std::nullopt,
                                             std::nullopt);
      all.unsafeGetTensorImpl()->set_storage_keep_dtype(memory);
      all.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
      const auto before = value_in(*operand.contents, all);
      if (!before) return std::nullopt;
      all.copy_(*before);
    }
    written.emplace(operand.storage, memory);
  }
  std::vector<at::Tensor> real;
  for (const Operand& operand : operands_) {
    if (const auto memory = written.find(operand.storage); memory != written.end()) {
      real.push_back(real_view(memory->second, operand.like));
    } else if (operand.contents) {
      const auto value = value_in(*operand.contents, operand.like);
      if (!value) return std::nullopt;
      real.push_back(*value);
    } else {
      real.push_back(
          at::detail::empty_strided_cpu(operand.like.sizes(), operand.like.strides(), operand.like.scalar_type()));
    }
  }
  return real;
}

void PendingCall::run(BudgetTracker& spending) {
  const RealCalls calls;
  spending.time(info_);
  try {
    if (!run_on_one_element()) {
      const auto real = real_operands(spending);
      if (!real) return give_up();
      const std::vector<at::Tensor>& operands = *real;
      for (const Output& output : outputs_) {
        if (output.operand < 0) spending.bytes(output.like.nbytes(), info_);
      }
      torch::jit::Stack stack = with_operands(operands);
      info_.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      for (const Output& output : outputs_) {
        const auto contents = output.contents.lock();
        if (!contents) continue;
        if (output.operand >= 0) {
          settle(*contents, operands[static_cast<size_t>(output.operand)].storage());
          continue;
        }
        const at::Tensor value = result_in(stack, output.result, output.index);
        if (!value.defined() || value.sizes() != output.like.sizes() || value.dtype() != output.like.dtype()) {
          return give_up();
        }
        const c10::Storage memory = zeroed(contents->bytes);
        real_view(memory, output.like).copy_(value);
        settle(*contents, memory);
      }
    }
  } catch (const DataDependentError&) {
    throw;
  } catch (const std::exception&) {
    give_up();  // the CPU has no such kernel, or rejects the values
  }
  operands_.clear();
  outputs_.clear();
}

void PendingCall::give_up() noexcept {
  for (const Output& output : outputs_) {
    if (const auto contents = output.contents.lock()) {
      contents->failed = true;
      contents->pending.reset();
    }
  }
  outputs_.clear();
}

}  // namespace shadowgraph
