#include "profiler/cost/convolution_scratch.h"

#include <algorithm>

namespace shadowgraph {
namespace {

int64_t by_eights(int64_t channels) { return saturating_multiply(saturating_add(channels, 7) / 8, 8); }

// cuDNN 9.19 on an H100, measured (bench/gpu/workspaces.py): its kernels want channels last. Operands and the result that
// are not laid out so are there once more, and channels of 16 bits filled up to eight. Depthwise convolutions need none,
// nor do those of 1 x 1 at every place. Gradients of weights may take a few MiB of sums more, which are not counted.
int64_t laid_out_anew(const Operand& image, const Operand& weight, const Operand& out, bool every_place) {
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
template <size_t kImage>
std::optional<int64_t> scratch_with_image_at(const OperandShapes& call) {
  constexpr bool kBackward = kImage == 1;
  constexpr size_t kStride = kBackward ? 4 : 3;
  const Operand& image = call.argument(kImage);
  const Operand& weight = call.argument(kImage + 1);
  const Operand& out = kBackward ? call.argument(0) : call.result(0);
  const bool planar = image.shape.size() == 4 && weight.shape.size() == 4 && out.shape.size() == 4;
  const bool narrow = image.element_bytes == 2 || image.element_bytes == 4;
  if (!planar || !narrow || call.flag(kStride + 3)) return std::nullopt;  // volumes, lines, float64, transposed ones
  const Operand& stride = call.argument(kStride);
  const bool every_place = stride.kind == Operand::Kind::kInts && product_of(stride.shape) == 1;
  return laid_out_anew(image, weight, out, every_place);
}

}  // namespace

std::optional<int64_t> convolution_scratch(const OperandShapes& call) { return scratch_with_image_at<0>(call); }
std::optional<int64_t> convolution_backward_scratch(const OperandShapes& call) {
  return scratch_with_image_at<1>(call);
}

}  // namespace shadowgraph
