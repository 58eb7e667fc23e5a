// Indexing, embedding, sorted search, and operators whose shapes depend on data.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "core/fake/rules/registry.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph::rules {

int64_t data_size(const std::string& op, const std::string& question, const Tensor& tensor, int64_t most) {
  static DataSizes* none = new DataSizes;  // outside a mode no sizes are provided
  ModeState* mode = thread_state.mode;
  return (mode != nullptr ? mode->data_sizes : *none).size(op, question, tensor, most);
}

namespace {

void check_integral(const Tensor& index, const char* name) {
  TORCH_CHECK(index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt, name,
              "(): Expected dtype int32 or int64 for index, but got: ", index.scalar_type());
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  const int64_t d = c10::maybe_wrap_dim(dim, x.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  check_integral(index, "index_select");
  DimVector sizes(x.sizes());
  if (!sizes.empty()) sizes[static_cast<size_t>(d)] = index.numel();
  return rules::empty(sizes, x);
}

Tensor take(const Tensor& x, const Tensor& index) {
  TORCH_CHECK(index.scalar_type() == c10::kLong, "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK_INDEX(x.numel() != 0 || index.numel() == 0, "take(): tried to take from an empty tensor");
  return rules::empty(index.sizes(), x);
}

Tensor masked_scatter_backward(const Tensor& grad, IntArrayRef sizes) { return rules::empty(sizes, grad); }

Tensor& masked_scatter_(Tensor& x, const Tensor& mask, const Tensor& source) {
  TORCH_CHECK(x.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ", x.scalar_type(), " and ",
              source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  at::assert_no_internal_overlap(x);
  (void)mask.expand(x.sizes());  // throws if it does not fit
  return x;
}

// The caller provides the number of results.
Tensor nonzero_static(const Tensor& x, int64_t size) {
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  return on_cuda() ? rules::empty_strided({size, x.dim()}, {1, size}, c10::kLong)
                   : rules::empty({size, x.dim()}, c10::kLong);
}

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t /*padding_index*/, bool /*scale_by_frequency*/,
                 bool /*sparse*/) {
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  TORCH_CHECK(
      indices.scalar_type() == c10::kLong || indices.scalar_type() == c10::kInt,
      "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got ",
      stand_in(indices).toString(), " instead (while checking arguments for embedding)");
  DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return rules::empty(sizes, weight);
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor& /*indices*/, int64_t weights,
                                int64_t /*padding_index*/, bool /*scale_by_frequency*/) {
  return rules::empty({weights, grad.size(-1)}, grad);
}

Tensor& embedding_renorm_(Tensor& weight, const Tensor& indices) {
  TORCH_CHECK(weight.dim() == 2, "Expected 2-dimensional tensor, but got ", weight.dim(),
              "-dimensional tensor for argument #1 'self' (while checking arguments for embedding_renorm_)");
  check_integral(indices, "embedding_renorm_");
  return weight;
}

// ---- Bags of embeddings: (output, offset2bag, bag_size, max_indices)

enum BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

// The CPU leaves offset2bag empty in its fast path for sums.
template <bool with_gradient>
FourTensors embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                          bool /*scale_by_frequency*/, int64_t mode, bool /*sparse*/,
                          const OptionalTensor& per_sample_weights, bool include_last_offset, int64_t padding_index) {
  TORCH_CHECK(indices.dim() == 1 || indices.dim() == 2,
              "input has to be a 1D or 2D Tensor, but got Tensor of dimension ", indices.dim());
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  check_integral(indices, "embedding_bag");
  const auto type = at::promoteTypes(indices.scalar_type(), offsets.scalar_type());
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  Tensor output = rules::empty({bags, weight.size(1)}, weight);
  if (on_cuda()) {
    return {output, rules::empty({indices.size(0)}, type), rules::empty(offsets.sizes(), type),
            rules::empty(mode == kMax ? output.sizes() : IntArrayRef{0}, type)};
  }
  const bool fast = mode == kSum && padding_index < 0 && weight.stride(1) == 1 &&
                    (weight.scalar_type() == c10::kFloat || weight.scalar_type() == c10::kHalf ||
                     weight.scalar_type() == c10::kBFloat16) &&
                    (!given(per_sample_weights) || per_sample_weights->stride(0) == 1);
  Tensor bag_size = empty_resized(offsets.sizes(), {with_gradient || mode != kSum ? bags : offsets.size(0)}, type);
  const int64_t entries = fast ? 0 : indices.size(0);
  return {output, empty_resized({fast ? 0 : entries + 1}, {entries}, type), bag_size,
          rules::empty(mode == kMax ? output.sizes() : bag_size.sizes(), type)};
}

Tensor embedding_bag_dense_backward(const Tensor& grad, int64_t weights) {
  return rules::empty({weights, grad.size(1)}, grad);
}

Tensor embedding_bag_backward(const Tensor& grad, int64_t weights, bool sparse) {
  TORCH_CHECK(!sparse,
              "embedding_bag with sparse=True is not supported: fake tensors cannot be sparse; use sparse=False");
  return rules::empty({weights, grad.size(1)}, grad);
}

Tensor embedding_bag_weights_backward(const Tensor& grad, const Tensor& indices) {
  return rules::empty({indices.size(0)}, grad);
}

ScalarType position_type(bool int32) { return int32 ? c10::kInt : c10::kLong; }

Tensor searchsorted(const Tensor& sorted, const Tensor& x, bool int32, bool right, std::optional<std::string_view> side,
                    const OptionalTensor& sorter) {
  TORCH_CHECK(!side || *side == "left" || *side == "right",
              "torch.searchsorted(): side can only be 'left' or 'right' but got ", side.value_or(""));
  TORCH_CHECK(!side || !right || *side == "right",
              "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True");
  TORCH_CHECK(!given(sorter) || sorter->sizes() == sorted.sizes(),
              "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor ",
              sorted.sizes(), "and got sorter tensor ", given(sorter) ? sorter->sizes() : IntArrayRef{});
  TORCH_CHECK(sorted.dim() == 1 || (sorted.dim() == x.dim() &&
                                    sorted.sizes().slice(0, sorted.dim() - 1) == x.sizes().slice(0, x.dim() - 1)),
              "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
              "tensor and input value tensor must match, but we got boundaries tensor ",
              sorted.sizes(), " and input value tensor ", x.sizes());
  return rules::empty(x.sizes(), position_type(int32));
}

Tensor searchsorted_scalar(const Tensor& sorted, bool int32) {
  TORCH_CHECK(sorted.dim() == 1,
              "torch.searchsorted(): input value can be a scalar only when boundaries tensor "
              "dimension is 1, but we got boundaries tensor dim(",
              sorted.dim(), ")");
  return rules::empty({}, position_type(int32));
}

Tensor bucketize(const Tensor& x, const Tensor& boundaries, bool int32) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  return rules::empty(x.sizes(), position_type(int32));
}

Tensor bucketize_scalar(const Tensor& boundaries, bool int32) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  return rules::empty({}, position_type(int32));
}

// ---- Operators with data-dependent result sizes. The user can provide the size (shadowgraph/capture/fake.h); without
// one they throw DataDependentError.

using Assume = std::function<std::optional<DataSizes::Assumed>()>;

int64_t data_size_or(const std::string& op, const std::string& question, const Tensor& tensor, int64_t most,
                     const Assume& assume) {
  ModeState* mode = thread_state.mode;
  return mode != nullptr ? mode->data_sizes.size(op, question, tensor, most, assume)
                         : data_size(op, question, tensor, most);
}

// Returns the number of nonzero elements of a tensor with known contents (core/fake/known_contents.h), such as a mask
// used as an index.
std::optional<int64_t> known_count(const Tensor& mask) {
  const auto value = known_value(mask);
  if (!value) return std::nullopt;
  const RealCalls real;
  return value->count_nonzero().item<int64_t>();
}

// The same, for contents that may derive from an assumption; sizes provided by the user take precedence.
int64_t count_of(const std::string& op, const std::string& question, const Tensor& tensor, const Tensor& mask) {
  const Assumptions assumptions = assumptions_of(mask);
  if (assumptions.empty()) {
    const auto known = known_count(mask);
    return known ? *known : data_size(op, question, tensor, mask.numel());
  }
  return data_size_or(op, question, tensor, mask.numel(), [&]() -> std::optional<DataSizes::Assumed> {
    const auto known = known_count(mask);
    if (!known) return std::nullopt;
    note_read(assumptions);
    return DataSizes::Assumed{*known, "assumed by " + names_of(assumptions)};
  });
}

Tensor nonzero(const Tensor& x) {
  const int64_t count = count_of("aten::nonzero", "nonzero", x, x);
  // The indices are stored dimension by dimension on both devices; CUDA allocates the transposed tensor.
  return rules::empty_strided({count, x.dim()}, {1, on_cuda() ? std::max<int64_t>(count, 1) : count}, c10::kLong);
}

// The count of the mask, if it has the broadcast shape; otherwise a separate question.
Tensor masked_select(const Tensor& x, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_select: expected BoolTensor for mask");
  const auto sizes = at::infer_size(x.sizes(), mask.sizes());
  const bool whole = mask.sizes().equals(sizes);
  const int64_t count = count_of("aten::masked_select", whole ? "nonzero" : "masked_select", mask, mask.expand(sizes));
  return rules::empty({count}, x);
}

// Values, inverse indices, and counts.
ThreeTensors unique_of(const char* op, const char* question, const Tensor& x, bool inverse, bool counts) {
  const int64_t count = data_size(op, question, x, x.numel());
  return {rules::empty({count}, x), rules::empty(inverse ? x.sizes() : IntArrayRef{0}, c10::kLong),
          rules::empty({counts ? count : 0}, c10::kLong)};
}

ThreeTensors unique_along(const char* op, const std::string& question, const Tensor& x, int64_t dim, bool inverse,
                          bool counts) {
  const auto d = static_cast<size_t>(c10::maybe_wrap_dim(dim, x.dim()));
  DimVector sizes(x.sizes());
  const int64_t length = sizes[d];
  sizes[d] = data_size(op, question + "_of_dim" + std::to_string(d) + "_", x, length);
  return {rules::empty(sizes, x), rules::empty({inverse ? length : 0}, c10::kLong),
          rules::empty({counts ? sizes[d] : 0}, c10::kLong)};
}

ThreeTensors unique2(const Tensor& x, bool /*sorted*/, bool inverse, bool counts) {
  return unique_of("aten::_unique2", "unique", x, inverse, counts);
}

TwoTensors unique(const Tensor& x, bool /*sorted*/, bool inverse) {
  auto [values, places, counts] = unique_of("aten::_unique", "unique", x, inverse, /*counts=*/false);
  return {values, places};
}

ThreeTensors unique_consecutive(const Tensor& x, bool inverse, bool counts, std::optional<int64_t> dim) {
  constexpr const char* kName = "aten::unique_consecutive";
  return dim ? unique_along(kName, "unique_consecutive", x, *dim, inverse, counts)
             : unique_of(kName, "unique_consecutive", x, inverse, counts);
}

ThreeTensors unique_dim(const Tensor& x, int64_t dim, bool /*sorted*/, bool inverse, bool counts) {
  return unique_along("aten::unique_dim", "unique", x, dim, inverse, counts);
}

Tensor bincount(const Tensor& x, const std::optional<Tensor>& weights, int64_t least) {
  TORCH_CHECK(x.dim() == 1 && at::isIntegralType(x.scalar_type(), /*includeBool=*/true),
              "bincount only supports 1-d non-negative integral inputs.");
  const int64_t bins = data_size_or("aten::bincount", "bincount", x, std::numeric_limits<int32_t>::max(), [&]() {
    return least > 0 ? std::optional(DataSizes::Assumed{least, "assumed to be minlength"}) : std::nullopt;
  });
  const ScalarType type = !given(weights)                         ? c10::kLong
                          : weights->scalar_type() == c10::kFloat ? c10::kFloat
                                                                  : c10::kDouble;
  return rules::empty({std::max(bins, least)}, type);
}

// Like libtorch on CUDA, which does not check for other classes.
Tensor one_hot(const Tensor& x, int64_t classes) {
  TORCH_CHECK(x.scalar_type() == c10::kLong, "one_hot is only applicable to index tensor of type LongTensor.");
  DimVector sizes(x.sizes());
  if (x.numel() == 0) {
    TORCH_CHECK(classes > 0, "Can not infer total number of classes from empty tensor.");
    sizes.push_back(classes);
    return at::empty(sizes, x.options());
  }
  if (classes == -1) {
    classes = x.max().item<int64_t>() + 1;
  } else {
    TORCH_CHECK(classes >= 1, "num_classes should be positive");
  }
  sizes.push_back(classes);
  return at::zeros(sizes, x.options()).scatter_(-1, x.unsqueeze(-1), 1);
}

// Repeats each index as often as its element specifies.
Tensor repeat_interleave(const Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == c10::kLong || repeats.scalar_type() == c10::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.size(0) == 0) return rules::empty({0}, repeats);
  const int64_t size = output_size ? *output_size
                                   : data_size("aten::repeat_interleave.Tensor", "repeats", repeats,
                                               std::numeric_limits<int64_t>::max());
  return rules::empty({size}, repeats);
}

// Sequences of decreasing lengths, packed, and the number of sequences at each step, on the CPU with known contents.
TwoTensors pack_padded_sequence(const Tensor& input, const Tensor& lengths, bool batch_first) {
  const FakeTensorImpl* fake = as_fake(lengths);
  TORCH_CHECK(
      lengths.dim() == 1 && lengths.scalar_type() == c10::kLong && fake != nullptr && fake->simulated_device().is_cpu(),
      "'lengths' argument should be a 1D CPU int64 tensor, but got ", lengths.dim(), "D ",
      fake != nullptr ? fake->simulated_device().str() : lengths.device().str(), " ", lengths.scalar_type(), " tensor");
  TORCH_CHECK(input.numel() > 0, "Cannot pack empty tensors.");
  const int64_t batch = input.size(batch_first ? 0 : 1);
  TORCH_CHECK(lengths.size(0) == batch, "Expected `len(lengths)` to be equal to batch_size, but got ", lengths.size(0),
              " (batch_size=", batch, ")");
  const auto known = known_value(lengths);
  if (!known) {
    throw DataDependentError(
        "aten::_pack_padded_sequence: the number of steps depends on the lengths, a fake tensor with unknown contents. "
        "Pass the lengths as a literal (a list, torch.tensor([...])), or as an input that keeps its contents");
  }
  std::vector<int64_t> length(static_cast<size_t>(batch));
  for (int64_t i = 0; i < batch; ++i) {
    length[static_cast<size_t>(i)] = known->const_data_ptr<int64_t>()[i * known->stride(0)];
  }
  TORCH_CHECK(length.back() > 0,
              "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0");
  TORCH_CHECK(
      std::is_sorted(length.rbegin(), length.rend()),
      "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
      "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do "
      "not need ONNX exportability.");
  TORCH_CHECK(length[0] <= input.size(batch_first ? 1 : 0), "length ", length[0],
              " exceeds the input's number of steps, ", input.size(batch_first ? 1 : 0));
  const Tensor batch_sizes = FakeTensorImpl::empty({length[0]}, c10::scalarTypeToTypeMeta(c10::kLong),
                                                   MemoryFormat::Contiguous, c10::Device(c10::kCPU));
  as_fake(batch_sizes)->take_fresh();  // keeps it on the CPU
  int64_t total = 0;
  {
    const RealCalls real;
    const Tensor counts = at::empty({length[0]}, at::kLong);
    auto longer = static_cast<int64_t>(length.size());
    for (int64_t step = 0; step < length[0]; ++step) {
      while (length[static_cast<size_t>(longer) - 1] <= step) --longer;
      counts.mutable_data_ptr<int64_t>()[step] = longer;
      total += longer;
    }
    set_contents(batch_sizes, counts);
  }
  DimVector packed{total};
  packed.append(input.sizes().begin() + 2, input.sizes().end());
  return {rules::empty(packed, input), batch_sizes};
}

}  // namespace

void register_indexing(RuleRegistry& registry) {
  registry.add("aten::index_select", &index_select);
  registry.add("aten::take", &take);
  registry.add("aten::masked_scatter_", &masked_scatter_);
  registry.add_partial({"aten::masked_scatter_backward"}, &masked_scatter_backward, {"grad_output", "sizes"});
  registry.add_partial({"aten::nonzero_static"}, &nonzero_static);
  registry.add("aten::embedding", &embedding);
  registry.add("aten::embedding_dense_backward", &embedding_dense_backward);
  registry.add_partial({"aten::embedding_renorm_"}, &embedding_renorm_);
  registry.add("aten::_embedding_bag", &embedding_bag<true>);
  registry.add("aten::_embedding_bag_forward_only", &embedding_bag<false>);
  registry.add_partial({"aten::_embedding_bag_backward"}, &embedding_bag_backward, {"grad", "num_weights", "sparse"});
  registry.add_partial({"aten::_embedding_bag_dense_backward"}, &embedding_bag_dense_backward, {"grad", "num_weights"});
  registry.add_partial({"aten::_embedding_bag_per_sample_weights_backward"}, &embedding_bag_weights_backward,
                       {"grad", "indices"});
  registry.add("aten::searchsorted.Tensor", &searchsorted);
  registry.add_partial({"aten::searchsorted.Scalar"}, &searchsorted_scalar, {"sorted_sequence", "out_int32"});
  registry.add_partial({"aten::bucketize.Tensor"}, &bucketize);
  registry.add_partial({"aten::bucketize.Scalar"}, &bucketize_scalar, {"boundaries", "out_int32"});
  registry.add("aten::nonzero", &nonzero);
  registry.add("aten::_pack_padded_sequence", &pack_padded_sequence);
  registry.add("aten::masked_select", &masked_select);
  registry.add("aten::_unique2", &unique2);
  registry.add("aten::_unique", &unique);
  registry.add("aten::unique_consecutive", &unique_consecutive);
  registry.add("aten::unique_dim", &unique_dim);
  registry.add("aten::bincount", &bincount);
  registry.add_composite("aten::one_hot", &one_hot);
  registry.add("aten::repeat_interleave.Tensor", &repeat_interleave);
}

}  // namespace shadowgraph::rules
