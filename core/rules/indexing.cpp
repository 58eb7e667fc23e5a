// Indexing, embedding, sorted search. Shapes never depend on the data here: core/rules/data_dependent.cpp.
#include <ATen/MemoryOverlap.h>

#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/error.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Scalar;
using at::Tensor;

void check_integral(const Tensor& index, const char* name) {
  TORCH_CHECK(index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt, name,
              "(): Expected dtype int32 or int64 for index, but got: ", index.scalar_type());
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  const int64_t d = c10::maybe_wrap_dim(dim, x.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  check_integral(index, "index_select");
  c10::DimVector sizes(x.sizes());
  if (!sizes.empty()) sizes[static_cast<size_t>(d)] = index.numel();
  return rules::empty(sizes, x);
}

Tensor take(const Tensor& x, const Tensor& index) {
  TORCH_CHECK(index.scalar_type() == c10::kLong, "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK_INDEX(x.numel() != 0 || index.numel() == 0, "take(): tried to take from an empty tensor");
  return rules::empty(index.sizes(), x);
}

Tensor masked_scatter_backward(const Tensor& grad, const Tensor& /*mask*/, c10::IntArrayRef sizes) {
  return rules::empty(sizes, grad);
}

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

// A number of results that the caller knows.
Tensor nonzero_static(const Tensor& x, int64_t size, int64_t /*fill_value*/) {
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  return on_cuda() ? rules::empty_strided({size, x.dim()}, {1, size}, c10::kLong)
                   : rules::empty({size, x.dim()}, c10::kLong);
}

// ---- Embedding

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t /*padding_index*/, bool /*scale_by_frequency*/,
                 bool /*sparse*/) {
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  TORCH_CHECK(
      indices.scalar_type() == c10::kLong || indices.scalar_type() == c10::kInt,
      "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got ",
      stand_in(indices).toString(), " instead (while checking arguments for embedding)");
  c10::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return rules::empty(sizes, weight);
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor& /*indices*/, int64_t weights,
                                int64_t /*padding_index*/, bool /*scale_by_frequency*/) {
  return rules::empty({weights, grad.size(-1)}, grad);
}

Tensor& embedding_renorm_(Tensor& weight, const Tensor& indices, double /*maximum*/, double /*norm*/) {
  TORCH_CHECK(weight.dim() == 2, "Expected 2-dimensional tensor, but got ", weight.dim(),
              "-dimensional tensor for argument #1 'self' (while checking arguments for embedding_renorm_)");
  check_integral(indices, "embedding_renorm_");
  return weight;
}

// ---- Bags of embeddings: (output, offset2bag, bag_size, max_indices)

enum BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

using Bag = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The CPU leaves offset2bag empty where its fast path for sums does without.
template <bool with_gradient>
Bag embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool /*scale_by_frequency*/,
                  int64_t mode, bool /*sparse*/, const OptionalTensor& per_sample_weights, bool include_last_offset,
                  int64_t padding_index) {
  TORCH_CHECK(indices.dim() == 1 || indices.dim() == 2,
              "input has to be a 1D or 2D Tensor, but got Tensor of dimension ", indices.dim());
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  check_integral(indices, "embedding_bag");
  const auto type = at::promoteTypes(indices.scalar_type(), offsets.scalar_type());
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  Tensor output = rules::empty({bags, weight.size(1)}, weight);
  if (on_cuda()) {
    return {output, rules::empty({indices.size(0)}, type), rules::empty(offsets.sizes(), type),
            rules::empty(mode == kMax ? output.sizes() : c10::IntArrayRef{0}, type)};
  }
  const bool fast = mode == kSum && padding_index < 0 && weight.stride(1) == 1 &&
                    (weight.scalar_type() == c10::kFloat || weight.scalar_type() == c10::kHalf ||
                     weight.scalar_type() == c10::kBFloat16) &&
                    (!given(per_sample_weights) || per_sample_weights->stride(0) == 1);
  Tensor bag_size = rules::empty({with_gradient || mode != kSum ? bags : offsets.size(0)}, type);
  return {output, rules::empty({fast ? 0 : indices.size(0)}, type), bag_size,
          rules::empty(mode == kMax ? output.sizes() : bag_size.sizes(), type)};
}

Tensor embedding_bag_dense_backward(const Tensor& grad, const Tensor& /*indices*/, const Tensor& /*offset_to_bag*/,
                                    const Tensor& /*bag_size*/, const Tensor& /*max_indices*/, int64_t weights,
                                    bool /*scale_by_frequency*/, int64_t /*mode*/,
                                    const OptionalTensor& /*per_sample_weights*/, int64_t /*padding_index*/) {
  return rules::empty({weights, grad.size(1)}, grad);
}

Tensor embedding_bag_backward(const Tensor& grad, const Tensor& /*indices*/, const Tensor& /*offsets*/,
                              const Tensor& /*offset_to_bag*/, const Tensor& /*bag_size*/,
                              const Tensor& /*max_indices*/, int64_t weights, bool /*scale_by_frequency*/,
                              int64_t /*mode*/, bool sparse, const OptionalTensor& /*per_sample_weights*/,
                              int64_t /*padding_index*/) {
  TORCH_CHECK(!sparse, "sparse gradients of embedding_bag cannot be fake tensors");
  return rules::empty({weights, grad.size(1)}, grad);
}

Tensor embedding_bag_weights_backward(const Tensor& grad, const Tensor& /*weight*/, const Tensor& indices,
                                      const Tensor& /*offsets*/, const Tensor& /*offset_to_bag*/, int64_t /*mode*/,
                                      int64_t /*padding_index*/) {
  return rules::empty({indices.size(0)}, grad);
}

// ---- Sorted search

c10::ScalarType position_type(bool int32) { return int32 ? c10::kInt : c10::kLong; }

Tensor searchsorted(const Tensor& sorted, const Tensor& x, bool int32, bool right, std::optional<std::string_view> side,
                    const OptionalTensor& sorter) {
  TORCH_CHECK(!side || *side == "left" || *side == "right",
              "torch.searchsorted(): side can only be 'left' or 'right' but got ", side.value_or(""));
  TORCH_CHECK(!side || !right || *side == "right",
              "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True");
  TORCH_CHECK(!given(sorter) || sorter->sizes() == sorted.sizes(),
              "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor ",
              sorted.sizes(), "and got sorter tensor ", given(sorter) ? sorter->sizes() : c10::IntArrayRef{});
  TORCH_CHECK(sorted.dim() == 1 || (sorted.dim() == x.dim() &&
                                    sorted.sizes().slice(0, sorted.dim() - 1) == x.sizes().slice(0, x.dim() - 1)),
              "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
              "tensor and input value tensor must match, but we got boundaries tensor ",
              sorted.sizes(), " and input value tensor ", x.sizes());
  return rules::empty(x.sizes(), position_type(int32));
}

Tensor searchsorted_scalar(const Tensor& sorted, const Scalar& /*x*/, bool int32, bool /*right*/,
                           std::optional<std::string_view> /*side*/, const OptionalTensor& /*sorter*/) {
  TORCH_CHECK(sorted.dim() == 1,
              "torch.searchsorted(): input value can be a scalar only when boundaries tensor "
              "dimension is 1, but we got boundaries tensor dim(",
              sorted.dim(), ")");
  return rules::empty({}, position_type(int32));
}

Tensor bucketize(const Tensor& x, const Tensor& boundaries, bool int32, bool /*right*/) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  return rules::empty(x.sizes(), position_type(int32));
}

Tensor bucketize_scalar(const Scalar& /*x*/, const Tensor& boundaries, bool int32, bool /*right*/) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  return rules::empty({}, position_type(int32));
}

}  // namespace

void register_indexing(RuleRegistry& registry) {
  registry.add("aten::index_select", &index_select);
  registry.add("aten::take", &take);
  registry.add("aten::masked_scatter_", &masked_scatter_);
  registry.add("aten::masked_scatter_backward", &masked_scatter_backward);
  registry.add("aten::nonzero_static", &nonzero_static);
  registry.add("aten::embedding", &embedding);
  registry.add("aten::embedding_dense_backward", &embedding_dense_backward);
  registry.add("aten::embedding_renorm_", &embedding_renorm_);
  registry.add("aten::_embedding_bag", &embedding_bag<true>);
  registry.add("aten::_embedding_bag_forward_only", &embedding_bag<false>);
  registry.add("aten::_embedding_bag_backward", &embedding_bag_backward);
  registry.add("aten::_embedding_bag_dense_backward", &embedding_bag_dense_backward);
  registry.add("aten::_embedding_bag_per_sample_weights_backward", &embedding_bag_weights_backward);
  registry.add("aten::searchsorted.Tensor", &searchsorted);
  registry.add("aten::searchsorted.Scalar", &searchsorted_scalar);
  registry.add("aten::bucketize.Tensor", &bucketize);
  registry.add("aten::bucketize.Scalar", &bucketize_scalar);
}

}  // namespace shadowgraph::rules
