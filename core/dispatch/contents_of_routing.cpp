#include "core/dispatch/contents_of_routing.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "core/dispatch/pending_call.h"
#include "core/fake/contents_memory.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/process_groups.h"

namespace shadowgraph {
namespace {

constexpr int64_t kMostDealt = int64_t{1} << 26;  // indices, which are made for real

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
  if (!counts && info.contents_rule != ContentsRule::kDeals) return std::nullopt;
  const uint16_t position = counts ? 0 : 2;
  const at::Tensor index = stack[begin + position].toTensor();
  if (as_fake(index) == nullptr || is_knowable(index)) return std::nullopt;
  if (index.numel() == 0 || index.numel() > kMostDealt) return std::nullopt;
  const bool routes = counts ? is_routing_by_count(info, stack, begin) : is_routing_by_scatter(info, stack, begin);
  return routes ? std::optional(position) : std::nullopt;
}

void give_counts(const at::Tensor& result, const std::shared_ptr<const Routing>& routing) {
  const RealCalls real;
  const auto n = static_cast<int64_t>(routing->counts.size());
  const at::Tensor counts = at::empty({n}, at::kLong);
  std::copy(routing->counts.begin(), routing->counts.end(), counts.mutable_data_ptr<int64_t>());
  give_contents(result, counts.to(result.scalar_type()));
  mark_assumed(result, {routing});
}

at::Tensor dealt_like(const at::Tensor& index, const Routing& routing, int64_t dim) {
  const at::Tensor real = dealt(routing, index.sizes(), dim).to(index.scalar_type());
  const at::Tensor fake =
      FakeTensorImpl::empty_strided(real.sizes(), real.strides(), real.dtype(), as_fake(index)->pretended_device());
  settle(*give_pending_contents(fake, nullptr), real.storage());
  return fake;
}

// ---- Collectives

namespace {

constexpr int64_t kMostSent = 4096;  // numbers: counts, not what is counted

std::vector<at::Tensor> flat(const c10::IValue& value) {
  std::vector<at::Tensor> all;
  if (value.isTensor()) return {value.toTensor()};
  if (!value.isList()) return all;
  for (const c10::IValue& element : value.toListRef()) {
    const auto inner = flat(element);
    all.insert(all.end(), inner.begin(), inner.end());
  }
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

// What each output holds if all ranks send what this one does; nothing where that cannot be told.
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
    if (output.numel() == each.numel()) return each;  // a list: one for each rank
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
  for (const at::Tensor& each : tensors) add_assumptions(sent.assumed_, assumptions_of(each));
  if (sent.assumed_.empty()) return std::nullopt;
  for (const at::Tensor& each : tensors) {
    const auto value = each.numel() <= kMostSent ? known_value(each) : std::nullopt;
    if (!value) return std::nullopt;
    const RealCalls real;
    sent.sent_.push_back(value->clone());
  }
  return sent;
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

}  // namespace shadowgraph
