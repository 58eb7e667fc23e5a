// What kind of kernel a call runs, as far as its speed is concerned.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class KernelClass : uint8_t {
  kFree,  // no kernel: views, metadata
  kMatmul,
  kConvolution,
  kConvolutionBackward,
  kPointwiseConvolution,  // 1 x 1
  kPointwiseConvolutionBackward,
  kGroupedConvolution,
  kGroupedConvolutionBackward,
  kDepthwiseConvolution,  // a group a channel
  kDepthwiseConvolutionBackward,
  kAttention,
  kAttentionBackward,
  kRecurrent,
  kNormalization,
  kSoftmax,
  kReduction,
  kPooling,
  kPointwise,
  kPointwiseInPlace,  // no memory is made for a result
  kTranscendental,    // pointwise, with exp, tanh, ...
  kRandom,
  kGather,
  kScatter,
  kCopy,
  kFill,
  kSort,
  kOptimizer,  // fused steps
  kOther,
};
constexpr int kKernelClassCount = static_cast<int>(KernelClass::kOther) + 1;
std::string_view to_string(KernelClass kind);  // "matmul", "convolution_backward", ...
std::optional<KernelClass> parse_kernel_class(std::string_view word);
KernelClass kernel_class(const Graph& graph, NodeId node);

}  // namespace shadowgraph
