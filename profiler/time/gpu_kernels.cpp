#include "profiler/time/gpu_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shadowgraph {
namespace {

using K = KernelClass;

// A tile of kLargest elements begins and ends in this time, on A100 and V100 alike. Hopper's tiles overlap.
constexpr double kTileSeconds = 3e-6;
constexpr double kTileSecondsOfHopper = 1.5e-6;
constexpr double kLargest = 128 * 256;
// What a product writes and computing does not hide.
constexpr double kWrittenAfter = 0.5;

// cuBLAS picks what is fastest; smaller tiles read their operands more often.
struct Tile {
  double rows, columns, share;
  bool of_hopper = false;
};
constexpr Tile kTiles[] = {{128, 256, 1},  {256, 128, 1},  {128, 192, 1, true}, {192, 128, 1, true}, {128, 128, 0.95},
                           {64, 128, 0.8}, {64, 64, 0.65}, {16, 128, 0.5},      {128, 16, 0.5}};
constexpr double kMostParts = 16;    // into which the inner dimension is cut
constexpr double kLeastInner = 512;  // of a part
constexpr double kPartialBytes = 8;  // of an element of a part: float32, written and read

// Hopper's tensor cores take TF32 operands along what is summed alone (PTX ISA, wgmma: only 16-bit ones are transposed).
// Fitted on layers of OPT on GH200, of eth-easl/sailor.
constexpr double kTransposedTf32 = 0.6;

// Rows of 16-bit operands that begin between vectors of 16 bytes; measured on an H100, of 1,000 by 2,500.
constexpr double kBrokenVectors = 0.35;

// What products of float32 reach without tensor cores. Fitted on layers of OPT on V100, of eth-easl/sailor.
constexpr double kFloat32 = 0.93;
constexpr double kFloat32OfHopper = 0.82;  // measured on an H100 (bench/gpu)

// Products of 8 bits draw so much power that an H100's clock falls further (bench/gpu/h100/float8.json).
constexpr double kFloat8OfHopper = 0.92;

// Keys go in blocks of so many (attention_work).
constexpr double kBlock = 128;
constexpr int64_t kNarrow = 64;
constexpr double kNarrowShare = 0.88;

// Kernels of attention beside FlashAttention-2's, measured on an H100 (bench/gpu).
constexpr double kCudnnAttention = 0.56;
constexpr double kEfficientAttention = 2.0;
constexpr double kEfficientFloat32 = 0.57;  // in float32, by what 16 bits reach
constexpr double kEfficientFloat32Backward = 0.37;

}  // namespace

bool is_convolution(KernelClass kind) { return kind >= K::kConvolution && kind <= K::kDepthwiseConvolutionBackward; }

bool is_attention(KernelClass kind) { return kind == K::kAttention || kind == K::kAttentionBackward; }

bool is_hopper(const DeviceSpec& spec) { return spec.architecture == "sm_90"; }

double gpu_fixed(const DeviceSpec& spec, KernelClass kind) {
  switch (kind) {
    case K::kConvolutionBackward:
    case K::kPointwiseConvolutionBackward:
    case K::kGroupedConvolutionBackward:
    case K::kDepthwiseConvolutionBackward:
      return 4e-6;  // two kernels
    case K::kAttentionBackward:
      return 6e-6;
    case K::kSort:
      return is_hopper(spec) ? 40e-6 : 10e-6;
    default:
      return 2e-6;
  }
}

double gpu_reached(const DeviceSpec& spec, KernelClass kind) {
  const GpuFigures& gpu = *spec.gpu;
  const bool hopper = is_hopper(spec);
  switch (kind) {
    case K::kConvolution:
      return (hopper ? 0.50 : 0.55) * gpu.sustained;
    case K::kConvolutionBackward:
      return (hopper ? 0.36 : 0.47) * gpu.sustained;
    case K::kPointwiseConvolution:
      return 0.50 * gpu.sustained;
    case K::kPointwiseConvolutionBackward:
      return (hopper ? 0.36 : 0.43) * gpu.sustained;
    case K::kGroupedConvolution:
    case K::kGroupedConvolutionBackward:
      return hopper ? 0.04 * gpu.sustained : 0;
    case K::kDepthwiseConvolution:
    case K::kDepthwiseConvolutionBackward:
      return 0;  // they only move
    case K::kAttention:
      return gpu.attention;
    case K::kAttentionBackward:
      return gpu.attention_backward;
    default:
      return gpu.matmul * gpu.sustained;
  }
}

// Shares of kernels whose elements have a pace of their own are those of large and wide ones (element_pace.h).
static double moved_on_hopper(KernelClass kind, double all) {
  switch (kind) {
    case K::kPooling:
      return all;
    case K::kNormalization:
      return 0.62;
    case K::kScatter:
    case K::kGather:
      return 0.92;
    default:
      return 1;
  }
}

double gpu_moved(const DeviceSpec& spec, KernelClass kind) {
  switch (kind) {
    case K::kCopy:
    case K::kPointwise:
    case K::kRandom:
    case K::kReduction:
    case K::kSoftmax:
    case K::kTranscendental:
      return spec.gpu->moved;
    case K::kMatmul:
      return 0.96;
    default:
      if (is_hopper(spec)) return moved_on_hopper(kind, spec.gpu->moved);
  }
  switch (kind) {
    case K::kNormalization:
      return 0.6;
    case K::kGroupedConvolution:
    case K::kDepthwiseConvolution:
    case K::kScatter:
    case K::kGather:
      return 0.5;
    case K::kGroupedConvolutionBackward:
    case K::kDepthwiseConvolutionBackward:
      return 0.3;
    case K::kSort:
      return 0.1;
    default:
      return 1;
  }
}

// FLOP/s of a product of this dtype whose tiles fill the device.
static double rate_of(const DeviceSpec& spec, const ProductShape& product, c10::ScalarType dtype) {
  if (dtype == c10::kFloat && product.tensor_float32 && spec.gpu->tensor_float32 > 0) {
    return spec.gpu->tensor_float32 * gpu_reached(spec, K::kMatmul);
  }
  const double peak = spec.peak(K::kMatmul, dtype), rate = spec.compute_rate(K::kMatmul, 0, dtype);
  if (is_hopper(spec) && c10::elementSize(dtype) == 1 && c10::isFloatingType(dtype)) return kFloat8OfHopper * rate;
  if (dtype != c10::kFloat || spec.vector == 0) return rate;
  if (peak <= spec.vector) {  // without tensor cores
    return (is_hopper(spec) ? kFloat32OfHopper : kFloat32) * spec.gpu->sustained * peak;
  }
  return is_hopper(spec) && !product.along_inner ? kTransposedTf32 * rate : rate;
}

ProductSeconds gpu_product(const DeviceSpec& spec, const ProductShape& product, c10::ScalarType dtype) {
  const GpuFigures& gpu = *spec.gpu;
  const bool hopper = is_hopper(spec);
  const double share = product.whole_vectors || dtype == c10::kFloat || !hopper ? 1 : kBrokenVectors;
  const double rate = share * rate_of(spec, product, dtype) / static_cast<double>(gpu.multiprocessors);
  const double stream = spec.memory_rate(K::kCopy, 0);  // of results; operands are read at the whole of it
  double best = std::numeric_limits<double>::infinity();
  const double begun = hopper ? kTileSecondsOfHopper : kTileSeconds;
  for (const Tile& tile : kTiles) {
    if (tile.of_hopper && !hopper) continue;
    const double size = tile.rows * tile.columns;
    const double tiles =
        product.batch * std::ceil(product.rows / tile.rows) * std::ceil(product.columns / tile.columns);
    for (double parts = 1; parts <= kMostParts; parts *= 2) {
      if (parts > 1 && product.inner / parts < kLeastInner) break;
      const double waves = std::ceil(tiles * parts / static_cast<double>(gpu.multiprocessors));
      const double each = 2 * size * product.inner / parts / (rate * tile.share) + begun * size / kLargest;
      const double joined = parts > 1 ? parts * product.batch * product.rows * product.columns * kPartialBytes : 0;
      best = std::min(best, waves * each + joined / stream);
    }
  }
  return {.compute = best, .written_after = kWrittenAfter * product.result_bytes / stream};
}

double attention_kernel(std::string_view name, KernelClass kind, c10::ScalarType dtype) {
  const auto is = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (is("cudnn")) return kCudnnAttention;
  if (!is("efficient")) return 1;
  if (dtype != c10::kFloat) return kEfficientAttention;
  return kind == K::kAttention ? kEfficientFloat32 : kEfficientFloat32Backward;
}

double attention_work(const AttentionShape& attention) {
  const auto blocks = std::max(1.0, std::ceil(static_cast<double>(attention.keys) / kBlock));
  const bool skips = attention.causal && attention.queries == attention.keys;
  const double done = (skips ? (blocks + 1) / 2 : blocks) + (attention.backward ? 4 : 2);
  return done / blocks / (attention.width <= kNarrow ? kNarrowShare : 1);
}

}  // namespace shadowgraph
