// The kernel that eager would use for a convolution, and the memory format of its results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <c10/util/SmallVector.h>

namespace shadowgraph::rules {

// What a call says besides its tensors, with a number for each spatial dimension.
struct ConvolutionParameters {
  c10::DimVector stride;
  c10::DimVector padding;
  c10::DimVector dilation;
  bool transposed = false;
  c10::DimVector output_padding;
  int64_t groups = 1;

  ConvolutionParameters(size_t dimensions, c10::IntArrayRef strides, c10::IntArrayRef paddings,
                        c10::IntArrayRef dilations, bool is_transposed, c10::IntArrayRef output_paddings,
                        int64_t group_count);

  // One spatial dimension is computed as two, the first of size 1.
  void insert_leading_dimension();
};

struct ConvolutionKernel {
  at::native::ConvBackend backend;
  c10::MemoryFormat format;
};

// Says whether it is one of im2col and friends, which reject empty results and do one group at a time.
bool is_slow_kernel(at::native::ConvBackend backend);

// Asks libtorch, with stand-ins for the operands. Answers are kept for the next call like this one.
ConvolutionKernel choose_convolution_kernel(const at::Tensor& input, const at::Tensor& weight,
                                            const ConvolutionParameters& p);

}  // namespace shadowgraph::rules
