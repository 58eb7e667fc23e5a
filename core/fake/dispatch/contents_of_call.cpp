#include "core/fake/dispatch/contents_of_call.h"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cmath>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "core/fake/process_groups.h"
#include "core/fake/storage_context.h"
#include "core/fake/tensors_in_value.h"
#include "shadowgraph/capture/language_bindings.h"

namespace shadowgraph {
namespace {

constexpr int64_t kMaxAssumedIndices = int64_t{1} << 26;  // indices, which are allocated for real

bool is_number(const c10::IValue& argument, double number) {
  return argument.isScalar() && !argument.toScalar().isComplex() && argument.toScalar().to<double>() == number;
}

bool is_routing_by_count(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) {
  if (info.name == "aten::bincount") return stack[begin + 1].isNone() && stack[begin + 2].toInt() > 0;
  const int64_t bins = stack[begin + 1].toInt();
  return is_number(stack[begin + 2], 0) && bins > 1 &&
         (is_number(stack[begin + 3], static_cast<double>(bins)) ||
          is_number(stack[begin + 3], static_cast<double>(bins - 1)));
}

bool is_routing_by_scatter(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) {
  const at::Tensor self = stack[begin].toTensor(), index = stack[begin + 2].toTensor();
  if (self.dim() != index.dim() || self.dim() == 0) return false;
  if (info.name.starts_with("aten::scatter_add")) return self.dim() == 1;
  const int64_t dim = c10::maybe_wrap_dim(stack[begin + 1].toInt(), self.dim());
  if (!is_number(stack[begin + 3], 1) || index.size(dim) > self.size(dim)) return false;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d != dim && self.size(d) != index.size(d)) return false;
  }
  return true;
}

}  // namespace

std::optional<uint16_t> routed_operand(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) {
  const bool counts = info.contents_rule == ContentsRule::kCounts;
  if (!counts && info.contents_rule != ContentsRule::kRouting) return std::nullopt;
  const uint16_t position = counts ? 0 : 2;
  const at::Tensor index = stack[begin + position].toTensor();
  if (as_fake(index) == nullptr || is_knowable(index)) return std::nullopt;
  if (index.numel() == 0 || index.numel() > kMaxAssumedIndices) return std::nullopt;
  const bool routes = counts ? is_routing_by_count(info, stack, begin) : is_routing_by_scatter(info, stack, begin);
  return routes ? std::optional(position) : std::nullopt;
}

void set_counts(const at::Tensor& result, const std::shared_ptr<const Routing>& routing) {
  const RealCalls real;
  const auto n = static_cast<int64_t>(routing->counts.size());
  const at::Tensor counts = at::empty({n}, at::kLong);
  std::copy(routing->counts.begin(), routing->counts.end(), counts.mutable_data_ptr<int64_t>());
  set_contents(result, counts.to(result.scalar_type()));
  mark_assumed(result, {routing});
}

at::Tensor assumed_indices_like(const at::Tensor& index, const Routing& routing, int64_t dim) {
  const at::Tensor real = assumed_indices(routing, index.sizes(), dim).to(index.scalar_type());
  const at::Tensor fake =
      FakeTensorImpl::empty_strided(real.sizes(), real.strides(), real.dtype(), as_fake(index)->simulated_device());
  settle(*set_pending_contents(fake, nullptr), real.storage());
  return fake;
}

namespace {

constexpr int64_t kMaxSentElements = 4096;  // elements: counts, not the counted data

std::vector<at::Tensor> flat(const c10::IValue& value) {
  std::vector<at::Tensor> all;
  for_each_tensor(value, [&](const at::Tensor& tensor) { all.push_back(tensor); });
  return all;
}

const c10::IValue* argument_of(const OperatorInfo& info, const torch::jit::Stack& arguments,
                               std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto position = info.op.schema().argumentIndexWithName(name);
    if (position) return &arguments[static_cast<size_t>(*position)];
  }
  return nullptr;
}

const c10::IValue* inputs_of(const OperatorInfo& info, const torch::jit::Stack& arguments) {
  return argument_of(info, arguments, {"input", "input_tensor", "input_tensors", "inputs", "tensor", "tensors"});
}

std::vector<int64_t> splits_of(const OperatorInfo& info, const torch::jit::Stack& arguments, const char* name,
                               int64_t whole, int64_t size) {
  const c10::IValue* given = argument_of(info, arguments, {name});
  std::vector<int64_t> splits = given != nullptr && given->isIntList() ? given->toIntVector() : std::vector<int64_t>();
  if (splits.empty() && whole % size == 0) splits.assign(static_cast<size_t>(size), whole / size);
  return splits;
}

// Returns the contents of an output if all ranks send the same; undefined if unknown.
at::Tensor received(const OperatorInfo& info, const torch::jit::Stack& arguments, const std::vector<at::Tensor>& sent,
                    const c10d::ProcessGroup& group, const at::Tensor& output) {
  const std::string& name = info.name;
  const int64_t size = group.getSize();
  const auto rank = static_cast<size_t>(group.getRank());
  const auto holds = [&](const char* word) { return name.find(word) != name.npos; };
  if (holds("alltoall_base") || holds("all_to_all_single")) {
    const at::Tensor& whole = sent[0];
    if (whole.dim() == 0) return {};
    const auto in = splits_of(info, arguments, "input_split_sizes", whole.size(0), size);
    const auto out = splits_of(info, arguments, "output_split_sizes", output.size(0), size);
    if (in.size() != static_cast<size_t>(size) || out.size() != in.size()) return {};
    if (std::any_of(out.begin(), out.end(), [&](int64_t part) { return part != in[rank]; })) return {};
    int64_t begin = 0;
    for (size_t i = 0; i < rank; ++i) begin += in[i];
    const at::Tensor mine = whole.narrow(0, begin, in[rank]);
    return at::cat(std::vector<at::Tensor>(static_cast<size_t>(size), mine));
  }
  if (holds("alltoall_")) return rank < sent.size() ? sent[rank] : at::Tensor();
  if (holds("gather")) {
    const at::Tensor& each = sent[0];
    if (output.numel() == each.numel()) return each;  // one output per rank
    if (output.numel() != each.numel() * size) return {};
    return each.reshape({1, -1}).expand({size, each.numel()}).reshape(output.sizes());
  }
  if (holds("broadcast")) return sent[0];
  const c10::IValue* reduction = argument_of(info, arguments, {"reduce_op"});
  if (!holds("reduce") || holds("scatter") || reduction == nullptr) return {};
  const auto kind = reduction->isString() ? reduction->toStringRef() : name_of_object(*reduction).value_or("");
  if (kind == "sum") return sent[0] * size;
  return kind == "avg" || kind == "max" || kind == "min" ? sent[0] : at::Tensor();
}

}  // namespace

std::optional<SentContents> SentContents::of(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) {
  if (info.group_argument < 0) return std::nullopt;
  SentContents sent;
  sent.info_ = &info;
  sent.arguments_.assign(stack.begin() + static_cast<ptrdiff_t>(begin), stack.end());
  const c10::IValue* inputs = inputs_of(info, sent.arguments_);
  if (inputs == nullptr) return std::nullopt;
  const auto tensors = flat(*inputs);
  bool is_equal = !tensors.empty();
  for (const at::Tensor& each : tensors) {
    add_assumptions(sent.assumed_, assumptions_of(each));
    const StorageContext* storage = as_fake(each) != nullptr ? find_storage_context(storage_of(each)) : nullptr;
    is_equal = is_equal && storage != nullptr && storage->equal_on_all_ranks;
  }
  if (sent.assumed_.empty() && !is_equal) return std::nullopt;
  for (const at::Tensor& each : tensors) {
    const auto value = each.numel() <= kMaxSentElements ? known_value(each) : std::nullopt;
    if (!value) return std::nullopt;
    const RealCalls real;
    sent.sent_.push_back(value->clone());
  }
  return sent;
}

void assume_equal_on_all_ranks(const at::Tensor& fake) {
  if (is_fake(fake)) storage_context_of(storage_of(fake)).equal_on_all_ranks = true;
}

void SentContents::arrive(const torch::jit::Stack& stack, size_t results) const {
  const auto group = group_of_argument(arguments_[static_cast<size_t>(info_->group_argument)]);
  if (group == nullptr) return;
  const c10::IValue* given =
      argument_of(*info_, arguments_, {"output", "output_tensor", "output_tensors", "outputs", "out"});
  if (given == nullptr && info_->writes) given = inputs_of(*info_, arguments_);
  const bool fresh = given == nullptr;
  if (fresh && results >= stack.size()) return;
  for (const at::Tensor& output : flat(fresh ? stack[results] : *given)) {
    if (as_fake(output) == nullptr) continue;
    const at::Tensor value = [&] {
      const RealCalls real;
      return received(*info_, arguments_, sent_, *group, output);
    }();
    if (!value.defined() || value.sizes() != output.sizes()) continue;
    {
      const RealCalls real;
      contents_to_write(output).copy_(value);
    }
    mark_known(output);
    mark_assumed(output, assumed_);
  }
}

namespace {

template <class F>
void for_each_fake(const c10::IValue& value, F&& f) {
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    if (as_fake(tensor) != nullptr) f(tensor);  // skips wrapped numbers
  });
}

void forget_contents_of(const c10::IValue& value) {
  for_each_fake(value, [](const at::Tensor& tensor) { forget_contents(storage_of(tensor)); });
}

// Returns whether all of the storage is knowable, which a partial write requires.
bool is_knowable_whole(const at::Tensor& tensor) {
  const auto* context = find_storage_context(storage_of(tensor));
  return is_knowable(tensor) && context != nullptr && context->contents && context->contents->known.empty();
}
bool is_in_memory(const c10::StorageImpl& storage) {
  constexpr size_t kLittle = size_t{1} << 16;
  const KnownContents& contents = *find_storage_context(storage)->contents;
  return contents.real || (contents.uniform && contents.bytes <= kLittle);
}

// Returns the operands that the call does not change under the user's assumptions: found_inf of GradScaler.
uint64_t unchanged_arguments(const OperatorInfo& info) {
  const ModeState* mode = thread_state.mode;
  if (info.contents_rule != ContentsRule::kLeavesUnchanged) return 0;
  return mode != nullptr && mode->options.host_reads.finite ? uint64_t{1} << 1 : 0;
}

// Returns whether user-provided values for the call take precedence over assumptions.
bool prefers_user_values(const OperatorInfo& info) {
  return operator_row(info.name).is & OperatorFact::kPrefersUserValues;
}

}  // namespace

ContentsOfCall::ContentsOfCall(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) : info_(info) {
  CallObserver* observer = thread_state.mode != nullptr ? thread_state.mode->observer : nullptr;
  known_ = knowable_ = info.evaluable;
  bool reads = false;
  int64_t max_overwritten = 0;
  routed_ = routed_operand(info, stack, begin);
  sent_ = SentContents::of(info, stack, begin);
  for (const uint16_t position : info.tensor_arguments) {
    const bool overwritten = is_in(info.overwritten_arguments, position);
    const bool unread = is_in(info.unread_arguments, position);
    for_each_fake(stack[begin + position], [&](const at::Tensor& tensor) {
      const c10::StorageImpl& storage = storage_of(tensor);
      if (observer != nullptr && has_contents(storage)) show_host_writes(tensor, *observer);
      if (!knowable_ || unread || position == routed_) return;
      if (!overwritten) add_assumptions(assumed_, assumptions_of(tensor));
      if (overwritten) {
        known_ = known_ && storage.nbytes() <= kMaxKnownBytes && (!has_contents(storage) || is_in_memory(storage));
        knowable_ = PendingCall::covers_storage(tensor) || is_knowable_whole(tensor);
        max_overwritten = std::max(max_overwritten, tensor.numel());
      } else {
        known_ = known_ && is_known(tensor);
        knowable_ = is_in(info.written_arguments, position) ? is_knowable_whole(tensor) : is_knowable(tensor);
        reads = true;
      }
      knowable_ = knowable_ || known_;
    });
  }
  if (known_) {
    most_elements_ = reads || info.name.starts_with("aten::arange") ? kMaxKnownElements : kMaxFilledElements;
    if (max_overwritten > most_elements_) known_ = false;
  }
  if (knowable_ && !assumed_.empty() && prefers_user_values(info)) {
    user_values_first_ = true;
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
  const uint64_t kept = unchanged_arguments(info);
  if (info.touched_arguments != 0) {
    for (const uint16_t position : info.tensor_arguments) {
      if (!is_in(info.touched_arguments, position) || is_in(kept, position)) continue;
      forget_contents_of(stack[begin + position]);
    }
  }
}

// Computes the operands of a call whose results need a real run.
void ContentsOfCall::compute_operands(const torch::jit::Stack& stack, size_t begin) {
  known_ = true;
  for (const uint16_t position : info_.tensor_arguments) {
    if (is_in(info_.unread_arguments, position)) continue;
    for_each_fake(stack[begin + position], [&](const at::Tensor& tensor) {
      if (!known_value(tensor)) known_ = false;
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
        // For integers "or" is bitwise.
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

bool ContentsOfCall::must_run_for_real() const { return known_ && info_.depends_on_data && !info_.writes; }

// Returns the arguments with fakes replaced by real tensors on their contents, and devices by the CPU.
torch::jit::Stack ContentsOfCall::real_arguments() {
  torch::jit::Stack real = arguments_;
  const auto converted = [&](const at::Tensor& tensor, uint16_t position) -> at::Tensor {
    const FakeTensorImpl* fake = as_fake(tensor);
    if (fake == nullptr) return tensor;
    if (is_in(info_.unread_arguments, position)) {
      return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    return is_in(info_.written_arguments, position) ? contents_to_write(tensor) : *known_value(tensor);
  };
  for (const uint16_t position : info_.tensor_arguments) {
    real[position] =
        with_tensors(real[position], [&](const at::Tensor& tensor) { return converted(tensor, position); });
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
    if (is_in(info_.written_arguments, position)) forget_contents_of(arguments_[position]);
  }
}

void ContentsOfCall::run_instead(torch::jit::Stack& stack, size_t begin, c10::Device device) {
  note_read(assumed_);
  torch::jit::Stack results = run_for_real();
  const auto faked = [&](const at::Tensor& real) {
    const at::Tensor fake = FakeTensorImpl::empty_strided(real.sizes(), real.strides(), real.dtype(), device);
    const RealCalls calls;
    set_contents(fake, real);
    return fake;
  };
  stack.resize(begin);
  for (const c10::IValue& result : results) stack.push_back(with_tensors(result, faked));
  mark_results(stack, begin);
}

// Replaces unknown indices by assumed ones, with as many choices as the call has room for.
void ContentsOfCall::assume_indices(const torch::jit::Stack& stack, size_t results) {
  const at::Tensor index = arguments_[*routed_].toTensor();
  const at::Tensor& result = stack[results].toTensor();
  const bool marks = result.dim() == index.dim() && info_.argument_count == 4 && arguments_[3].isScalar();
  const bool scatters = info_.contents_rule == ContentsRule::kRouting;
  const int64_t dim = scatters ? c10::maybe_wrap_dim(arguments_[1].toInt(), index.dim()) : 0;
  ModeState* const mode = thread_state.mode;
  static auto* no_sizes = new DataSizes;
  static auto* no_routings = new Routings;
  const int64_t rows = scatters && marks ? index.numel() / index.size(dim) : index.numel();
  const auto routing =
      (mode != nullptr ? mode->routings : *no_routings)
          .of(info_.name, index, result.size(dim), rows, mode != nullptr ? mode->data_sizes : *no_sizes);
  if (mode != nullptr && mode->observer == nullptr) mode->routings.take_new();
  add_assumptions(assumed_, {routing});
  if (scatters) {
    arguments_[*routed_] = assumed_indices_like(index, *routing, dim);
  } else {
    set_counts(result, routing);
  }
}

void ContentsOfCall::mark_results(const torch::jit::Stack& stack, size_t results) {
  if (assumed_.empty()) return;
  const auto mark = [&](const at::Tensor& tensor) {
    if (tensor.defined()) mark_assumed(tensor, assumed_);
  };
  for (size_t i = results; i < stack.size(); ++i) for_each_tensor(stack[i], mark);
  for (const uint16_t position : info_.tensor_arguments) {
    if (is_in(info_.written_arguments, position)) for_each_tensor(arguments_[position], mark);
  }
}

// Derives the results from the assumption, unless the user provided other sizes.
void ContentsOfCall::follow_assumption(const torch::jit::Stack& stack, size_t results) {
  if (!stack[results].isTensor()) return;
  const at::Tensor& fake = stack[results].toTensor();
  try {
    const torch::jit::Stack real = run_for_real();
    const RealCalls calls;
    if (real[0].toTensor().sizes() == fake.sizes()) set_contents(fake, real[0].toTensor());
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
    // Exceeds the budget: unknown.
  }
  mark_results(stack, results);
}

void ContentsOfCall::run_after(const torch::jit::Stack& stack, size_t results) {
  if (user_values_first_) {
    follow_assumption(stack, results);
    return;
  }
  if (sent_) sent_->arrive(stack, results);
  if (routed_) {
    assume_indices(stack, results);
    if (info_.contents_rule == ContentsRule::kCounts) return;
  }
  compute_results(stack, results);
  mark_results(stack, results);
}

void ContentsOfCall::compute_results(const torch::jit::Stack& stack, size_t results) {
  if (uniform_) {
    if (stack[results].isTensor()) set_uniform_contents(stack[results].toTensor(), *uniform_);
    return;
  }
  if ((!known_ && !knowable_) || info_.is_view) return;
  bool few = known_;
  for (size_t i = results; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& fake) {
      few =
          few && (!fake.defined() || fake.numel() <= std::min(most_elements_, max_known_elements(fake.scalar_type())));
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
      if (!is_in(info_.written_arguments, position)) continue;
      for_each_tensor(arguments_[position], [](const at::Tensor& fake) {
        if (fake.defined()) mark_known(fake);
      });
    }
    for (size_t i = 0; i < real.size(); ++i) {
      std::vector<at::Tensor> values;
      for_each_tensor(real[i], [&](const at::Tensor& value) {
        if (value.defined()) values.push_back(value);
      });
      size_t next = 0;
      for_each_tensor(stack[results + i], [&](const at::Tensor& fake) {
        if (fake.defined() && next < values.size()) set_contents(fake, values[next++]);
      });
    }
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
    // The CPU has no such kernel, or rejects the values: the contents stay unknown.
    forget_written();
  }
}

}  // namespace shadowgraph
