#include "profiler/cost/scratch_rules.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>

#include "ir/operators/operator_name.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {
namespace {

using Bytes = std::optional<int64_t>;

int64_t by_eights(int64_t channels) { return saturating_multiply(saturating_add(channels, 7) / 8, 8); }

// cuDNN 9.19 on an H100, measured (bench/gpu/workspaces.py): its kernels need channels-last tensors. Operands and
// results in another layout are copied, and channels of 16-bit types padded to a multiple of eight. Depthwise
// convolutions need no scratch, nor do 1 x 1 ones with stride 1. Weight gradients may take a few MiB more, not counted.
int64_t relayout_bytes(const Operand& image, const Operand& weight, const Operand& out, bool every_place) {
  const Shape x = image.shape, w = weight.shape;
  const bool one = product_of(w.subspan(2)) == 1;
  if ((w[1] == 1 && x[1] > 1) || (one && every_place)) return 0;
  const int64_t channels = image.element_bytes == 2 ? by_eights(x[1]) : x[1];
  const int64_t of_group = image.element_bytes == 2 ? by_eights(w[1]) : w[1];
  const bool filled = channels != x[1];
  int64_t bytes = 0;
  if (filled || !image.channels_last)
    bytes = saturating_multiply(byte_count(image) / std::max<int64_t>(x[1], 1), channels);
  if (!one && bytes > 0) {
    const int64_t row = byte_count(weight) / std::max<int64_t>(w[1], 1);
    bytes = saturating_add(bytes, saturating_multiply(row, filled ? of_group : w[1]));
  }
  return out.channels_last ? bytes : saturating_add(bytes, byte_count(out));
}
// Scratch bytes of aten::convolution, or of aten::convolution_backward, whose image is argument 1.
template <size_t kImage>
Bytes convolution(const OperandShapes& call) {
  constexpr bool kBackward = kImage == 1;
  constexpr size_t kStride = kBackward ? 4 : 3;
  const Operand& image = call.argument(kImage);
  const Operand& weight = call.argument(kImage + 1);
  const Operand& out = kBackward ? call.argument(0) : call.result(0);
  const bool planar = image.shape.size() == 4 && weight.shape.size() == 4 && out.shape.size() == 4;
  const bool narrow = image.element_bytes == 2 || image.element_bytes == 4;
  if (!planar || !narrow || call.flag(kStride + 3)) return std::nullopt;  // 1-d, 3-d, float64, transposed
  const Operand& stride = call.argument(kStride);
  const bool every_place = stride.kind == Operand::Kind::kInts && product_of(stride.shape) == 1;
  return relayout_bytes(image, weight, out, every_place);
}

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t rounded_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }
// Kernels accumulate in float, and in double for double.
constexpr int64_t accumulator_bytes(int64_t element_bytes) { return element_bytes == 8 ? 8 : 4; }

Bytes nothing(const OperandShapes&) { return 0; }

// BLAS supports float and double; narrower types go to oneDNN, whose reorders depend on the processor.
template <size_t kOperand>
Bytes blas(const OperandShapes& call) {
  const int64_t bytes = call.argument(kOperand).element_bytes;
  return bytes == 4 || bytes == 8 ? Bytes(0) : std::nullopt;
}

constexpr int64_t kMultiprocessors = 132;  // of an H100, the default simulated device

// Reduce.cuh splits a reduction with few outputs over blocks, which write partial results. `inner`: the reduced
// dimensions are the last ones.
int64_t partial_results(int64_t outputs, int64_t inputs, bool inner, int64_t accumulator) {
  if (outputs <= 0 || inputs <= 1) return 0;
  const auto power = [](int64_t value) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(value))); };
  int64_t first = inner ? inputs : outputs;
  const int64_t second = inner ? outputs : inputs;
  int64_t vector = 1;
  if (inner && first >= 128) first /= 4;
  if (!inner) {
    vector = outputs % 4 == 0 ? 4 : outputs % 2 == 0 ? 2 : 1;
    first /= vector;
  }
  const int64_t most = 512 / vector;
  const int64_t width0 = std::min(power(std::max<int64_t>(first, 1)), most);
  const int64_t height0 = std::min(power(std::max<int64_t>(second, 1)), most);
  int64_t width = std::min<int64_t>(width0, 32);
  const int64_t height = std::min(height0, most / width);
  width = std::min(width0, most / height);
  int64_t step_in = inner ? width : 1;
  int64_t step_out = inner ? 1 : width;
  int64_t values = divide_up(inputs, step_in);
  const bool splits = values >= std::min<int64_t>(16 * height, 256);
  (splits ? step_in : step_out) *= height;
  values = divide_up(inputs, step_in);
  const int64_t grid = divide_up(divide_up(outputs, vector), step_out);
  const int64_t target = kMultiprocessors * (2048 / (width * height));
  if (!splits || values < 256 || grid > target) return 0;
  const int64_t blocks = std::max(std::min(divide_up(target, grid), divide_up(values, 16)), divide_up(values, 256));
  if (blocks == 1) return 0;
  return saturating_add(product_of({accumulator, outputs, blocks, inner ? 1 : width * vector}), 4 * grid);
}

// sum.dim_IntList(self, dim, keepdim), mean.dim, amax: the reduced dimensions come first or last.
Bytes reduction(const OperandShapes& call) {
  const Shape sizes = call.shape(0);
  const Operand& dims = call.argument(1);
  const int64_t rank = static_cast<int64_t>(sizes.size());
  if (rank == 0 || rank > 64) return rank == 0 ? Bytes(0) : std::nullopt;
  uint64_t reduced = 0;
  if (dims.kind == Operand::Kind::kInts) {
    for (const int64_t dim : dims.shape) {
      if (dim < -rank || dim >= rank) return std::nullopt;
      reduced |= uint64_t{1} << (dim < 0 ? dim + rank : dim);
    }
  }
  if (reduced == 0) reduced = rank == 64 ? ~uint64_t{0} : (uint64_t{1} << rank) - 1;
  int64_t inputs = 1;
  for (int64_t d = 0; d < rank; ++d) {
    if ((reduced >> d & 1) != 0) inputs = saturating_multiply(inputs, sizes[static_cast<size_t>(d)]);
  }
  if (inputs == 0) return 0;
  const int64_t outputs = product_of(sizes) / inputs;
  const bool inner = (reduced >> (rank - 1) & 1) != 0;
  return partial_results(outputs, inputs, inner, accumulator_bytes(call.argument(0).element_bytes));
}
Bytes whole_reduction(const OperandShapes& call) {
  return partial_results(1, product_of(call.shape(0)), true, accumulator_bytes(call.argument(0).element_bytes));
}

// layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel: with many rows and few columns, gradients of the weight and
// the bias are reduced in two steps.
template <size_t kMask, bool kBias>
Bytes layer_norm_backward(const OperandShapes& call) {
  const Operand& normalized = call.argument(2);
  const int64_t columns = normalized.kind == Operand::Kind::kInts ? product_of(normalized.shape) : 0;
  if (columns <= 0) return std::nullopt;
  const int64_t rows = product_of(call.shape(1)) / columns;
  if (rows <= 65536 || columns / 32 >= kMultiprocessors / 2) return 0;
  const int64_t down = std::min(divide_up(rows, 32), 32768 / divide_up(columns, 32));
  const int64_t element = call.argument(0).element_bytes;
  const int64_t one = product_of({saturating_add(down, 1), columns, element});
  const bool bias = kBias && call.element(kMask, 2, 0) != 0;
  return saturating_add(call.element(kMask, 1, 0) != 0 ? one : 0, bias ? one : 0);
}

// group_norm_kernel.cu: mean and scale per channel.
Bytes group_norm(const OperandShapes& call) {
  if (call.integer(5, 0) == 1 || (!call.argument(1).present() && !call.argument(2).present())) return 0;
  return product_of({2, call.integer(3, 0), call.integer(4, 0), accumulator_bytes(call.argument(0).element_bytes)});
}
Bytes group_norm_backward(const OperandShapes& call) {
  const int64_t batch = call.integer(5, 0);
  const int64_t channels = call.integer(6, 0);
  const bool one = call.integer(7, 0) == 1;
  const int64_t accumulator = accumulator_bytes(call.argument(0).element_bytes);
  const bool input = call.element(9, 0, 0) != 0;
  const int64_t by_channel = 2 + (input && call.argument(4).present() && !one ? 1 : 0);
  return saturating_add(product_of({by_channel, batch, channels, accumulator}),
                        input ? product_of({2, batch, call.integer(8, 0), accumulator}) : 0);
}

// EmbeddingBackwardKernel.cu: sorts rows, then sums them in chunks of ten; the larger of the two phases counts.
Bytes embedding_backward(const OperandShapes& call) {
  const int64_t rows = product_of(call.shape(1));
  const bool by_frequency = call.flag(4);
  if (rows <= 3072 && !by_frequency) return 0;
  const Shape gradient = call.shape(0);
  if (gradient.empty()) return std::nullopt;
  const int64_t index = call.argument(1).element_bytes;
  const int64_t width = gradient.back();
  const int64_t segments = std::min(rows, call.integer(2, rows));
  const int64_t pieces = rows / 10 + segments;
  // The last term of the first is cub's radix sort: a second copy of keys and values.
  const int64_t sorting = product_of({5, rows, index});
  const int64_t summing =
      saturating_add(product_of({(by_frequency ? 4 : 3) * rows + 2 * segments + pieces, index}),
                     product_of({pieces, width, accumulator_bytes(call.argument(0).element_bytes)}));
  return std::max(sorting, summing);
}

// flash_api.cpp, mha_bwd, for q [B,H,S,D]: allocates float sums for dq and for the softmax, rows rounded up to 128.
// With fewer heads of k and v than of q, allocates dk and dv for all heads of q.
Bytes flash_backward(const OperandShapes& call) {
  const Shape q = call.shape(1);
  const Shape k = call.shape(2);
  if (q.size() != 4 || k.size() != 4) return std::nullopt;
  const int64_t rows = rounded_up(q[2], 128);
  const int64_t head = rounded_up(q[3], 8);
  const int64_t width = head <= 128 ? rounded_up(head, 32) : rounded_up(head, 64);
  int64_t bytes = saturating_add(product_of({4, q[0], q[1], rows}), product_of({4, q[0], rows, q[1], width}));
  if (k[1] != q[1]) {
    bytes = saturating_add(bytes, product_of({2, q[0], k[2], q[1], q[3], call.argument(1).element_bytes}));
  }
  return bytes;
}
// flex_attention.py of torch/_inductor/kernel/flex: max_scores in forward, delta in backward, a float per row.
template <size_t kQuery>
Bytes flex_attention_rows(const OperandShapes& call) {
  const Shape q = call.shape(kQuery);
  return q.size() == 4 ? Bytes(product_of({4, q[0], q[1], q[2]})) : std::nullopt;
}
// mha_fwd: none with dropout. Without it, calls with few rows are split along the keys (num_splits_heuristic), and the
// partial results are summed.
Bytes flash_forward(const OperandShapes& call) {
  const Shape q = call.shape(0);
  const Shape k = call.shape(1);
  if (q.size() != 4 || k.size() != 4 || q[1] == 0 || k[1] == 0) return std::nullopt;
  if (call.number(3, 0) > 0) return 0;
  const bool swap = q[2] == 1 && q[1] > k[1];
  const int64_t heads = swap ? k[1] : q[1];
  const int64_t rows = swap ? q[1] / k[1] : q[2];
  const int64_t head = rounded_up(q[3], 8);
  const int64_t width = head <= 128 ? rounded_up(head, 32) : rounded_up(head, 64);
  const int64_t blocks = divide_up(k[2], head <= 64 ? 256 : head <= 128 ? 128 : 64);
  const int64_t work = product_of({q[0], heads, divide_up(rows, 64)});
  constexpr int64_t kSlots = 2 * kMultiprocessors;
  if (work >= kSlots * 8 / 10 || work == 0) return 0;
  const int64_t most = std::min<int64_t>({128, kSlots, blocks});
  const auto eligible = [&](int64_t parts) {
    return parts == 1 || divide_up(blocks, parts) != divide_up(blocks, parts - 1);
  };
  const auto efficiency = [&](int64_t parts) {
    const double waves = static_cast<double>(work * parts) / static_cast<double>(kSlots);
    return waves / static_cast<double>(divide_up(work * parts, kSlots));
  };
  double best = 0;
  for (int64_t parts = 1; parts <= most; ++parts) {
    if (eligible(parts)) best = std::max(best, efficiency(parts));
  }
  for (int64_t parts = 1; parts <= most; ++parts) {
    if (!eligible(parts) || efficiency(parts) < 0.85 * best) continue;
    if (parts == 1) return 0;
    return product_of({4, parts, q[0], heads, rows, saturating_add(width, 1)});
  }
  return 0;
}

// kernel_forward.h: allocates a separate output accumulator if a head does not fit into registers.
Bytes efficient_forward(const OperandShapes& call) {
  const Shape q = call.shape(0);
  const Shape v = call.shape(2);
  if (q.size() != 4 || v.size() != 4) return std::nullopt;
  if (call.argument(0).element_bytes != 2 || std::max(q[3], v[3]) <= 128) return 0;
  return product_of({4, q[0], q[1], q[2], v[3]});
}

// cuDNN's frontend, scaled_dot_product_flash_attention.h: backward allocates dq in float, one float per row, and dk, dv
// of all heads if they are shared. The workspace of the plan beyond that is assumed to be zero.
Bytes cudnn_attention_backward(const OperandShapes& call) {
  const Shape q = call.shape(1);
  const Shape k = call.shape(2);
  const Shape v = call.shape(3);
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) return std::nullopt;
  int64_t bytes = saturating_add(product_of({4, product_of(q)}), product_of({4, q[0], q[1], q[2]}));
  if (k[1] != q[1]) {
    const int64_t row = product_of({q[0], q[1], k[2], call.argument(1).element_bytes});
    bytes = saturating_add(bytes, product_of({row, saturating_add(k[3], v[3])}));
  }
  return bytes;
}

// TensorCompare.cu: max.dim(self, dim) reduces (value, index) pairs.
Bytes pair_reduction(const OperandShapes& call) {
  const Shape sizes = call.shape(0);
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t asked = call.integer(1, 0);
  const int64_t dim = asked < 0 ? asked + rank : asked;
  if (dim < 0 || dim >= rank || (dim != 0 && dim != rank - 1)) return rank == 0 ? Bytes(0) : std::nullopt;
  const int64_t inputs = sizes[static_cast<size_t>(dim)];
  if (inputs == 0) return 0;
  return partial_results(product_of(sizes) / inputs, inputs, dim == rank - 1, 16);
}

// IndexKernel.cu reads indices in place. A mask is first converted to indices; their number depends on the data.
Bytes indexing(const OperandShapes& call) { return call.argument(1).element_bytes == 1 ? std::nullopt : Bytes(0); }

// ForeachReduceOp.cu: allocates, for every tensor, a partial norm for each 65536 elements of the largest tensor.
Bytes foreach_norm(const OperandShapes& call) {
  int64_t most = 0;
  for (const Shape shape : call.argument(0).tensors) most = std::max(most, product_of(shape));
  const auto count = static_cast<int64_t>(call.argument(0).tensors.size());
  return product_of({count, divide_up(most, 65536), accumulator_bytes(call.argument(0).element_bytes)});
}

// index_put_with_sort_kernel: allocates linear indices, sorted copies with positions, and cub's workspace. Supports
// only calls with one index tensor.
Bytes index_put(const OperandShapes& call) {
  if (!call.flag(3)) return 0;
  int64_t count = 0;
  for (const Shape shape : call.argument(1).tensors) count = std::max(count, product_of(shape));
  return product_of({48, count});
}

// LossCTC.cu: allocates log_beta, of the size of log_alpha, which is a result.
Bytes ctc_backward(const OperandShapes& call) {
  const int64_t alpha = byte_count(call.argument(6));
  return alpha == 0 ? std::nullopt : Bytes(alpha);
}

// TensorShape.cu, split_with_sizes_copy_out_cuda_contiguous_no_cast: int64 tables on the device, with addresses and
// sizes of the splits and, for each block, the split that it copies. Blocks copy more than one tile each if there are
// more than twice as many tiles as the device can hold.
constexpr int64_t kTileBytes = 128 * 16;
Bytes split_with_sizes_copy(const OperandShapes& call) {
  const Shape sizes = call.shape(0);
  const Shape splits = call.argument(1).kind == Operand::Kind::kInts ? call.argument(1).shape : Shape();
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t dim = call.integer(2, 0) < 0 ? call.integer(2, 0) + rank : call.integer(2, 0);
  if (splits.empty() || dim < 0 || dim >= rank) return std::nullopt;
  const int64_t row =
      product_of({product_of(sizes.subspan(static_cast<size_t>(dim) + 1)), call.argument(0).element_bytes});
  const int64_t chunks = product_of(sizes.first(static_cast<size_t>(dim)));
  const auto blocks_of = [&](int64_t tiles) {
    int64_t blocks = 0;
    for (const int64_t split : splits) {
      blocks = saturating_add(blocks, divide_up(product_of({std::max<int64_t>(split, 0), row}), tiles * kTileBytes));
    }
    return blocks;
  };
  const int64_t most = 2 * kMultiprocessors * 2048 / 128;
  const int64_t work = divide_up(product_of({blocks_of(1), chunks}), most);
  if (work == 0) return 0;
  const auto root = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(work))));
  const int64_t tiles = divide_up(work, std::min(root, chunks));
  const auto count = static_cast<int64_t>(splits.size());
  return product_of({8, saturating_add(4 * count + 1, blocks_of(tiles))});
}

// TensorShape.cu, get_chunk_cat_metadata: similar tables, with a block for each tile of a tensor's chunk.
Bytes chunk_cat(const OperandShapes& call) {
  const auto tensors = call.argument(0).tensors;
  const int64_t from = call.argument(0).element_bytes;
  const int64_t to = call.argument(3).present() ? call.argument(3).element_bytes : from;
  const int64_t chunks = call.integer(2, 0);
  // Other casts use other kernels.
  if (tensors.empty() || chunks <= 0 || (to != from && (from != 2 || to != 4))) return std::nullopt;
  const auto rank = static_cast<int64_t>(tensors.front().size());
  const int64_t dim = call.integer(1, 0) < 0 ? call.integer(1, 0) + rank : call.integer(1, 0);
  int64_t blocks = 0;
  for (const Shape sizes : tensors) {
    if (dim < 0 || static_cast<size_t>(dim) >= sizes.size()) return std::nullopt;
    const auto at = static_cast<size_t>(dim);
    const int64_t chunk = product_of({divide_up(sizes[at], chunks), product_of(sizes.subspan(at + 1)), to});
    blocks = saturating_add(blocks, divide_up(chunk, kTileBytes));
  }
  const auto count = static_cast<int64_t>(tensors.size());
  return product_of({8, saturating_add(6 * count + 2, blocks)});
}

constexpr std::string_view kInPlace = "the kernel reads operands and writes results directly";

// CPU rows are tested against the requests to libtorch's allocator (tests/profiler/scratch_test.cpp). CUDA rows are from
// the kernels' sources (aten/src/ATen/native/, named in each).
constexpr ScratchRow kCpu[] = {
    {"mm bmm", blas<0>, "BLAS, in place"},
    {"addmm baddbmm", blas<1>, "BLAS, in place"},
    {"embedding", nothing, kInPlace, "1"},
    {"embedding_dense_backward _softmax_backward_data _log_softmax_backward_data", nothing, kInPlace, "01"},
    {R"(
        cat copy_ clone _to_copy constant_pad_nd max_pool2d_with_indices max_pool2d_with_indices_backward
        bernoulli_.float normal_ uniform_ tril triu _fused_adamw_ _fused_adam_ _fused_sgd_)",
     nothing, kInPlace},
    {"_softmax _log_softmax", nothing, kInPlace, "0"},
    {"nll_loss_forward nll_loss_backward nll_loss2d_forward native_layer_norm", nothing, kInPlace, "012"},
    {"nll_loss2d_backward", nothing, kInPlace, "0123"},
};

constexpr ScratchRow kCuda[] = {
    {"mm", nothing, "cuBLAS; its workspace belongs to the device, not to the call: CublasHandlePool.cpp"},
    {"bmm baddbmm addmv mv", nothing, "cuBLAS"},
    {"addmm", nothing, "cuBLASLt in cuBLAS's workspace (2.13: shared unless the environment disables it)"},
    {"_addmm_activation", nothing, "cuBLASLt"},
    {"copy_", nothing, "Copy.cu: on one device, any dtypes and strides"},
    {"_to_copy clone", nothing, "Copy.cu"},
    {"cat", nothing, "Shape.cu: metadata are kernel arguments"},
    {"constant_pad_nd", nothing, "a fill and a copy"},
    {"embedding", nothing, "index_select"},
    {"index_select", nothing, "Indexing.cu"},
    {"gather scatter scatter_", nothing, "ScatterGatherKernel.cu"},
    {"scatter_add scatter_add_", nothing, "ScatterGatherKernel.cu: atomics"},
    {"index_add index_add_", nothing, "Indexing.cu: atomics"},
    {"embedding_dense_backward", embedding_backward, "Embedding.cu, EmbeddingBackwardKernel.cu, two passes", "01"},
    {"index_put index_put_ _index_put_impl_", index_put, "Indexing.cu, index_put_with_sort_kernel"},
    {"_softmax _log_softmax", nothing, "SoftMax.cu", "0"},
    {"_softmax_backward_data _log_softmax_backward_data", nothing, "SoftMax.cu", "01"},
    {"nll_loss_forward", nothing, "Loss.cu", "012"},
    {"nll_loss_backward", nothing, "Loss.cu", "0123"},
    {"nll_loss2d_forward", nothing, "NLLLoss2d.cu", "012"},
    {"nll_loss2d_backward", nothing, "NLLLoss2d.cu", "0123"},
    {"max_pool2d_with_indices max_pool2d_with_indices_backward", nothing, "DilatedMaxPool2d.cu"},
    {"avg_pool2d avg_pool2d_backward", nothing, "AveragePool2d.cu"},
    {"_adaptive_avg_pool2d _adaptive_avg_pool2d_backward", nothing, "AdaptiveAveragePooling.cu"},
    {"upsample_nearest2d upsample_nearest2d_backward", nothing, "UpSampleNearest2d.cu"},
    {"upsample_bilinear2d upsample_bilinear2d_backward", nothing, "UpSampleBilinear2d.cu"},
    {"upsample_bicubic2d", nothing, "UpSampleBicubic2d.cu"},
    {"native_dropout native_dropout_backward", nothing, "Dropout.cu"},
    {"bernoulli_.float uniform_ normal_", nothing, "DistributionTemplates.h"},
    {"native_layer_norm", nothing, "layer_norm_kernel.cu", "012"},
    {"_fused_rms_norm", nothing, "layer_norm_kernel.cu", "02"},
    {"native_layer_norm_backward", layer_norm_backward<7, true>, "layer_norm_kernel.cu", "0156"},
    {"_fused_rms_norm_backward", layer_norm_backward<5, false>, "layer_norm_kernel.cu", "014"},
    {"native_group_norm", group_norm, "group_norm_kernel.cu", "0"},
    {"native_group_norm_backward", group_norm_backward, "group_norm_kernel.cu", "01"},
    {"sum.dim_IntList mean.dim", reduction, "Reduce.cuh: partial sums"},
    {"amax amin", reduction, "Reduce.cuh"},
    {"sum mean", whole_reduction, "Reduce.cuh: partial sums"},
    {"_scaled_dot_product_flash_attention", flash_forward, "flash_api.cpp, mha_fwd"},
    {"_scaled_dot_product_flash_attention_backward", flash_backward, "flash_api.cpp, mha_bwd"},
    {"_scaled_dot_product_efficient_attention", efficient_forward, "kernel_forward.h"},
    {"shadowgraph::flex_attention", flex_attention_rows<0>, "flex/flex_attention.py: max_scores"},
    {"shadowgraph::flex_attention_backward", flex_attention_rows<1>, "flex/flex_attention.py: delta"},
    {"_scaled_dot_product_cudnn_attention", nothing, "MHA.cpp: forward requests none"},
    {"_scaled_dot_product_cudnn_attention_backward", cudnn_attention_backward, "MHA.cpp, and cuDNN's frontend"},
    {"_foreach_norm.Scalar", foreach_norm, "ForeachReduceOp.cu"},
    {"_fused_adamw_", nothing, "FusedAdamKernel.cu: lists are kernel arguments"},
    {"_fused_adam_", nothing, "FusedAdamKernel.cu"},
    {"_fused_sgd_", nothing, "FusedSgdKernel.cu"},
    {"_weight_norm_interface", nothing, "WeightNorm.cu"},
    {"_thnn_fused_lstm_cell _thnn_fused_gru_cell", nothing, "RNN.cu"},
    {"_ctc_loss_backward", ctc_backward, "LossCTC.cu: log_beta"},
    {"_conv_depthwise2d", nothing, "DepthwiseConv2d.cu"},
    {"convolution", convolution<0>, "cuDNN, measured: operands in channels-last layout"},
    {"convolution_backward", convolution<1>, "cuDNN, measured: operands in channels-last layout"},
    {"randn rand randint", nothing, "DistributionTemplates.h"},
    {"roll", nothing, "TensorTransformations.cu"},
    {"tril triu", nothing, "TriangularOps.cu"},
    {"_local_scalar_dense", nothing, "CUDAScalar.cu: to host memory"},
    {"stack", nothing, "Shape.cu, as cat"},
    {"slice_backward select_backward", nothing, "a fill and a copy"},
    {"masked_fill masked_fill_", nothing, "IndexKernel.cu"},
    {"index", indexing, "IndexKernel.cu"},
    {"max.dim min.dim", pair_reduction, "TensorCompare.cu, Reduce.cuh"},
    {R"(
        _foreach_add_ _foreach_sub_ _foreach_mul_ _foreach_div_ _foreach_lerp_ _foreach_addcdiv_ _foreach_addcmul_
        _foreach_sqrt _foreach_neg _foreach_zero_)",
     nothing, "ForeachFunctors.cuh: lists are kernel arguments"},
    {"fsdp::all_gather_copy_in _foreach_copy_", nothing, "ForeachBinaryOpList.cu: lists are kernel arguments"},
    {"split_with_sizes_copy.out fsdp::split_with_sizes_copy", split_with_sizes_copy, "TensorShape.cu: tables"},
    {"_chunk_cat fsdp::chunk_cat fsdp::chunk_cat_mixed_dtype", chunk_cat, "TensorShape.cu: tables"},
};

}  // namespace

std::span<const ScratchRow> scratch_rows(c10::DeviceType device) {
  if (device == c10::kCPU) return kCpu;
  return device == c10::kCUDA ? std::span<const ScratchRow>(kCuda) : std::span<const ScratchRow>();
}

const ScratchRow* find_scratch_row(const Target& target, c10::DeviceType device) {
  static const OperatorRows<ScratchRow> cpu(scratch_rows(c10::kCPU));
  static const OperatorRows<ScratchRow> cuda(scratch_rows(c10::kCUDA));
  if (device == c10::kCPU) return cpu.find(target.name());
  return device == c10::kCUDA ? cuda.find(target.name()) : nullptr;
}

std::optional<c10::Device> device_of_call(const Graph& graph, NodeId node) {
  std::optional<c10::Device> device;
  const auto see = [&](ValueId value) {
    if (!device && graph.value(value).kind == ValueKind::kTensor) device = graph.value(value).device();
  };
  graph.for_each_output(node, see);
  if (!device) graph.for_each_input(node, see);
  return device;
}

}  // namespace shadowgraph
