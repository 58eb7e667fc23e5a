#include "core/dispatch/contents_of_call.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cmath>

#include "core/dispatch/pending_call.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/literals.h"
#include "core/fake/mode_state.h"
#include "core/fake/storage_context.h"

namespace shadowgraph {
namespace {

template <class F>
void for_each_tensor(const c10::IValue& argument, F&& f) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) f(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) f(element.toTensor());
      if (!element.isTensorList()) continue;
      for (const c10::IValue& inner : element.toListRef()) {
        if (inner.toTensor().defined()) f(inner.toTensor());
      }
    }
  }
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

bool in(uint64_t mask, uint16_t position) { return position < 64 && ((mask >> position) & 1) != 0; }

// Says whether all of the storage can be known. A write to a part of it needs that: the rest stays as it is.
bool is_knowable_whole(const at::Tensor& tensor) {
  const auto* context = find_storage_context(storage_of(tensor));
  return is_knowable(tensor) && context != nullptr && context->contents && context->contents->known.empty();
}
bool is_at_hand(const c10::StorageImpl& storage) {
  constexpr size_t kLittle = size_t{1} << 16;
  const KnownContents& contents = *find_storage_context(storage)->contents;
  return contents.real || (contents.uniform && contents.bytes <= kLittle);
}

// Returns the operands that the call leaves as they were, as far as the user's assumptions go: a GradScaler's
// found_inf.
uint64_t leaves_as_found(const OperatorInfo& info) {
  const ModeState* mode = thread_state.mode;
  if (info.contents_rule != ContentsRule::kFindsNothing) return 0;
  return mode != nullptr && mode->options.host_reads.finite ? uint64_t{1} << 1 : 0;
}

// Says whether the call itself asks the user for what it reads, so that what is assumed comes second.
bool asks_user_first(const OperatorInfo& info) {
  static constexpr std::string_view kNames[] = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"};
  return std::find(std::begin(kNames), std::end(kNames), info.name) != std::end(kNames);
}

}  // namespace

ContentsOfCall::ContentsOfCall(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) : info_(info) {
  CallObserver* observer = thread_state.mode != nullptr ? thread_state.mode->observer : nullptr;
  known_ = knowable_ = info.evaluable;
  bool reads = false;
  int64_t most_overwritten = 0;
  routed_ = routed_operand(info, stack, begin);
  sent_ = SentContents::of(info, stack, begin);
  for (const uint16_t position : info.tensor_arguments) {
    const bool overwritten = in(info.overwritten_arguments, position);
    const bool unread = in(info.unread_arguments, position);
    for_each_tensor(stack[begin + position], [&](const at::Tensor& tensor) {
      if (as_fake(tensor) == nullptr) return;  // a number that the C++ API wrapped
      const c10::StorageImpl& storage = storage_of(tensor);
      if (observer != nullptr && has_contents(storage)) show_host_writes(tensor, *observer);
      if (!knowable_ || unread || position == routed_) return;
      if (!overwritten) add_assumptions(assumed_, assumptions_of(tensor));
      if (overwritten) {
        known_ = known_ && storage.nbytes() <= kMostKnownBytes && (!has_contents(storage) || is_at_hand(storage));
        knowable_ = PendingCall::covers_storage(tensor) || is_knowable_whole(tensor);
        most_overwritten = std::max(most_overwritten, tensor.numel());
      } else {
        known_ = known_ && is_known(tensor);
        knowable_ = in(info.written_arguments, position) ? is_knowable_whole(tensor) : is_knowable(tensor);
        reads = true;
      }
      knowable_ = knowable_ || known_;
    });
  }
  if (known_) {
    most_elements_ = reads || info.name.starts_with("aten::arange") ? kMostKnownElements : kMostFilledElements;
    if (most_overwritten > most_elements_) known_ = false;
  }
  if (knowable_ && !assumed_.empty() && asks_user_first(info)) {
    user_is_first_ = true;
    known_ = knowable_ = false;
    arguments_.assign(stack.begin() + static_cast<ptrdiff_t>(begin), stack.end());
    return;
  }
  if (!knowable_) routed_.reset();
  if (routed_) {
    known_ = false;
  } else if (knowable_ && !known_ && info.depends_on_data && !info.writes) {
    compute_operands(stack, begin);
  }
  if (known_ || knowable_) {
    arguments_.assign(stack.begin() + static_cast<ptrdiff_t>(begin), stack.end());
    return;
  }
  assumed_.clear();
  uniform_ = decided(stack, begin);
  const uint64_t kept = leaves_as_found(info);
  if (info.touched_arguments != 0) {
    for (const uint16_t position : info.tensor_arguments) {
      if (!in(info.touched_arguments, position) || in(kept, position)) continue;
      for_each_tensor(stack[begin + position], [](const at::Tensor& tensor) {
        if (as_fake(tensor) != nullptr) forget_contents(storage_of(tensor));
      });
    }
  }
}

// Computes operands for results that only a run can give.
void ContentsOfCall::compute_operands(const torch::jit::Stack& stack, size_t begin) {
  known_ = true;
  for (const uint16_t position : info_.tensor_arguments) {
    if (in(info_.unread_arguments, position)) continue;
    for_each_tensor(stack[begin + position], [&](const at::Tensor& tensor) {
      if (as_fake(tensor) != nullptr && !known_value(tensor)) known_ = false;
    });
  }
  knowable_ = known_;
}

std::optional<c10::Scalar> ContentsOfCall::decided(const torch::jit::Stack& stack, size_t begin) const {
  const ModeState* mode = thread_state.mode;
  if (info_.return_count != 1 || info_.writes) return std::nullopt;
  switch (info_.contents_rule) {
    case ContentsRule::kNone:
      return std::nullopt;
    case ContentsRule::kAbsorbedByFalse:
    case ContentsRule::kAbsorbedByTrue: {
      const bool absorbing = info_.contents_rule == ContentsRule::kAbsorbedByTrue;
      for (const uint16_t position : info_.tensor_arguments) {
        const c10::IValue& argument = stack[begin + position];
        if (!argument.isTensor() || as_fake(argument.toTensor()) == nullptr) continue;
        // For integers "or" is more than truth: it combines bits.
        if (argument.toTensor().scalar_type() != c10::kBool && (absorbing || info_.name != "aten::bitwise_and.Tensor"))
          continue;
        const auto value = uniform_value(argument.toTensor());
        if (value && value->toBool() == absorbing) return absorbing;
      }
      return std::nullopt;
    }
    default:
      break;
  }
  if (mode == nullptr || !mode->options.host_reads.finite) return std::nullopt;
  const c10::IValue& self = stack[begin];
  if (!self.isTensor() || !self.toTensor().is_floating_point()) return std::nullopt;
  const auto compared_with_infinity = [&] {
    if (info_.argument_count < 2 || !stack[begin + 1].isScalar()) return false;
    const c10::Scalar other = stack[begin + 1].toScalar();
    return other.isFloatingPoint() && !std::isfinite(other.toDouble());
  };
  const auto compared_with_itself = [&] {
    return info_.argument_count >= 2 && stack[begin + 1].isTensor() &&
           stack[begin + 1].toTensor().is_same(self.toTensor());
  };
  switch (info_.contents_rule) {
    case ContentsRule::kFalseIfFinite:
      return false;
    case ContentsRule::kEqual:
      if (compared_with_infinity()) return false;
      return compared_with_itself() ? std::optional<c10::Scalar>(true) : std::nullopt;
    case ContentsRule::kNotEqual:
      if (compared_with_infinity()) return true;
      return compared_with_itself() ? std::optional<c10::Scalar>(false) : std::nullopt;
    default:
      return std::nullopt;
  }
}

bool ContentsOfCall::decides_results() const { return known_ && info_.depends_on_data && !info_.writes; }

// Makes fakes real tensors on their contents, and devices the CPU.
torch::jit::Stack ContentsOfCall::real_arguments() {
  torch::jit::Stack real = arguments_;
  const auto converted = [&](const at::Tensor& tensor, uint16_t position) -> at::Tensor {
    const FakeTensorImpl* fake = as_fake(tensor);
    if (fake == nullptr) return tensor;
    if (in(info_.unread_arguments, position)) {
      return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    if (in(info_.written_arguments, position)) {
      return contents_to_write(tensor);
    }
    return *known_value(tensor);
  };
  for (const uint16_t position : info_.tensor_arguments) {
    c10::IValue& argument = real[position];
    if (argument.isTensor()) {
      if (argument.toTensor().defined()) argument = converted(argument.toTensor(), position);
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : argument.toListRef()) list.push_back(converted(element.toTensor(), position));
      argument = std::move(list);
    } else if (argument.isList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& element : argument.toListRef()) {
        list.push_back(element.isTensor() && element.toTensor().defined()
                           ? std::optional(converted(element.toTensor(), position))
                           : std::nullopt);
      }
      argument = std::move(list);
    }
  }
  if (info_.device_argument >= 0) {
    c10::IValue& device = real[static_cast<size_t>(info_.device_argument)];
    if (device.isDevice()) device = c10::Device(c10::DeviceType::CPU);
  }
  return real;
}

torch::jit::Stack ContentsOfCall::run_for_real() {
  static const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  torch::jit::Stack stack = real_arguments();
  const RealCalls real;
  info_.op.redispatchBoxed(cpu, &stack);
  return stack;
}

void ContentsOfCall::forget_written() noexcept {
  for (const uint16_t position : info_.tensor_arguments) {
    if (!in(info_.written_arguments, position)) continue;
    for_each_tensor(arguments_[position], [](const at::Tensor& tensor) {
      if (as_fake(tensor) != nullptr) forget_contents(storage_of(tensor));
    });
  }
}

void ContentsOfCall::run_instead(torch::jit::Stack& stack, size_t begin, c10::Device device) {
  note_read(assumed_);
  torch::jit::Stack results = run_for_real();
  const auto faked = [&](const at::Tensor& real) {
    if (!real.defined()) return real;
    const at::Tensor fake = FakeTensorImpl::empty_strided(real.sizes(), real.strides(), real.dtype(), device);
    const RealCalls calls;
    give_contents(fake, real);
    return fake;
  };
  stack.resize(begin);
  for (c10::IValue& result : results) {
    if (result.isTensor()) {
      stack.emplace_back(faked(result.toTensor()));
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : result.toListRef()) list.push_back(faked(element.toTensor()));
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(std::move(result));
    }
  }
  mark_results(stack, begin);
}

// Puts indices that are dealt in the place of the unknown ones, among as many choices as the call makes room for.
void ContentsOfCall::deal_indices(const torch::jit::Stack& stack, size_t results) {
  const at::Tensor index = arguments_[*routed_].toTensor();
  const at::Tensor& result = stack[results].toTensor();
  const bool marks = result.dim() == index.dim() && info_.argument_count == 4 && arguments_[3].isScalar();
  const bool scatters = info_.contents_rule == ContentsRule::kDeals;
  const int64_t dim = scatters ? c10::maybe_wrap_dim(arguments_[1].toInt(), index.dim()) : 0;
  ModeState* const mode = thread_state.mode;
  static auto* nobody = new DataSizes;
  static auto* nowhere = new Routings;
  const int64_t rows = scatters && marks ? index.numel() / index.size(dim) : index.numel();
  const auto routing = (mode != nullptr ? mode->routings : *nowhere)
                           .of(info_.name, index, result.size(dim), rows, mode != nullptr ? mode->data_sizes : *nobody);
  if (mode != nullptr && mode->observer == nullptr) mode->routings.take_made();
  add_assumptions(assumed_, {routing});
  if (scatters) {
    arguments_[*routed_] = dealt_like(index, *routing, dim);
  } else {
    give_counts(result, routing);
  }
}

void ContentsOfCall::mark_results(const torch::jit::Stack& stack, size_t results) {
  if (assumed_.empty()) return;
  for (size_t i = results; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& fake) { mark_assumed(fake, assumed_); });
  }
  for (const uint16_t position : info_.tensor_arguments) {
    if (!in(info_.written_arguments, position)) continue;
    for_each_tensor(arguments_[position], [&](const at::Tensor& fake) { mark_assumed(fake, assumed_); });
  }
}

// Gives the results what follows from the assumption, unless the user gave them another size.
void ContentsOfCall::follow_assumption(const torch::jit::Stack& stack, size_t results) {
  if (!stack[results].isTensor()) return;
  const at::Tensor& fake = stack[results].toTensor();
  try {
    const torch::jit::Stack real = run_for_real();
    const RealCalls calls;
    if (real[0].toTensor().sizes() == fake.sizes()) give_contents(fake, real[0].toTensor());
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
    // More than the budget allows: unknown.
  }
  mark_results(stack, results);
}

void ContentsOfCall::run_after(const torch::jit::Stack& stack, size_t results) {
  if (user_is_first_) {
    follow_assumption(stack, results);
    return;
  }
  if (sent_) sent_->arrive(stack, results);
  if (routed_) {
    deal_indices(stack, results);
    if (info_.contents_rule == ContentsRule::kCounts) return;
  }
  compute_results(stack, results);
  mark_results(stack, results);
}

void ContentsOfCall::compute_results(const torch::jit::Stack& stack, size_t results) {
  if (uniform_) {
    if (stack[results].isTensor()) give_uniform_contents(stack[results].toTensor(), *uniform_);
    return;
  }
  if ((!known_ && !knowable_) || info_.is_view) return;
  bool few = known_;
  for (size_t i = results; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& fake) {
      few = few && fake.numel() <= std::min(most_elements_, most_known_elements(fake.scalar_type()));
    });
  }
  if (!few) {
    const auto call = PendingCall::of(info_, arguments_);
    if (call == nullptr) {
      forget_written();
    } else {
      call->promise(arguments_, stack, results);
    }
    return;
  }
  try {
    const torch::jit::Stack real = run_for_real();
    const RealCalls calls;
    for (const uint16_t position : info_.tensor_arguments) {
      if (!in(info_.written_arguments, position)) continue;
      for_each_tensor(arguments_[position], [](const at::Tensor& fake) { mark_known(fake); });
    }
    for (size_t i = 0; i < real.size(); ++i) {
      std::vector<at::Tensor> values;
      for_each_tensor(real[i], [&](const at::Tensor& value) { values.push_back(value); });
      size_t next = 0;
      for_each_tensor(stack[results + i], [&](const at::Tensor& fake) {
        if (next < values.size()) give_contents(fake, values[next++]);
      });
    }
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
    // The CPU has no such kernel, or refuses the values: the contents are unknown, as they would be without this
    // attempt.
    forget_written();
  }
}

}  // namespace shadowgraph
