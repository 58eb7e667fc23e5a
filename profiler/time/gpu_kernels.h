// The laws that kernels follow on every GPU, and what classes of them reach of a device's figures (GpuFigures).
//
// A product is cut into tiles, a wave of which runs at once, one on each multiprocessor. A tile begins and ends in a
// time of its own, and half of what products write is not hidden behind computing. Attention goes over blocks of keys,
// of which a causal one skips half. The laws are fitted on A100 and V100 (bench/published/operators.py) and on the
// figures of the FlashAttention-2 paper; docs/time.md has them with their errors.
#pragma once

#include <cstdint>
#include <string_view>

#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {

bool is_convolution(KernelClass kind);
bool is_attention(KernelClass kind);
// Laws that were fitted on an H100 hold for its like alone. A100, V100 and RTX 3090 follow the older ones, by which
// Sailor's layers are within 8 %.
bool is_hopper(const DeviceSpec& spec);
double gpu_fixed(const DeviceSpec& spec, KernelClass kind);    // seconds of a kernel that has nothing to do
double gpu_reached(const DeviceSpec& spec, KernelClass kind);  // share of the peak FLOP/s, of large calls
double gpu_moved(const DeviceSpec& spec, KernelClass kind);    // share of `stream`, of large calls

// (batch, rows, inner) by (batch, inner, columns).
struct ProductShape {
  double batch = 0;
  double rows = 0;
  double columns = 0;
  double inner = 0;
  double result_bytes = 0;
  bool along_inner = true;      // both operands lie along what is summed
  bool whole_vectors = true;    // rows of operands begin at 16 bytes
  bool tensor_float32 = false;  // float32 operands are rounded to TF32
};
struct ProductSeconds {
  double compute = 0;
  double written_after = 0;  // what is not hidden behind computing
};
ProductSeconds gpu_product(const DeviceSpec& spec, const ProductShape& product, c10::ScalarType dtype);

struct AttentionShape {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t width = 128;  // of a head
  bool causal = false;
  bool backward = false;
};
// What a kernel does for all scores, by what is counted for them. A causal one leaves blocks out. Blocks that begin and
// end are extra, and narrow heads fill the tiles badly.
double attention_work(const AttentionShape& attention);
// The time of an operator's kernel by that of FlashAttention-2, which `attention` and `attention_backward` are of.
double attention_kernel(std::string_view name, KernelClass kind, c10::ScalarType dtype);

}  // namespace shadowgraph
