// Reordering, padding, sampling, distances, and fused optimizer steps (which write lists in place and return nothing).
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/cat.h>

#include <array>

#include "core/fake/rules/registry.h"
#include "core/fake/simulated_devices.h"
#include "core/fake/storage_context.h"

namespace shadowgraph::rules {
namespace {

Tensor flip(const Tensor& x, IntArrayRef dims) {
  (void)reduced_sizes(x, dims, false);  // throws for repeated or absent dimensions
  return rules::empty_like(x);
}

Tensor roll_one(const Tensor& x, int64_t shift, int64_t dim) {
  if (x.numel() == 0) return rules::empty_like(x);
  const int64_t size = x.size(dim);
  if (on_cuda()) return rules::empty(x.sizes(), x);
  const int64_t start = ((size - shift) % size + size) % size;
  return at::cat({x.narrow(dim, start, size - start), x.narrow(dim, 0, start)}, dim);
}

Tensor roll(const Tensor& x, IntArrayRef shifts, IntArrayRef dims) {
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  if (dims.empty() && shifts.size() == 1) return rules::empty(x.sizes(), x);
  TORCH_CHECK(shifts.size() == dims.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  Tensor rolled = x;
  for (size_t i = 0; i < dims.size(); ++i) rolled = roll_one(rolled, shifts[i], dims[i]);
  return rolled;
}

// The composite kernel fills a small host tensor, which would be fake inside a mode.
Tensor repeat(const Tensor& x, IntArrayRef repeats) {
  TORCH_CHECK(static_cast<int64_t>(repeats.size()) >= x.dim(),
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  DimVector sizes(repeats);
  const size_t added = repeats.size() - static_cast<size_t>(x.dim());
  for (size_t d = 0; d < sizes.size(); ++d) {
    TORCH_CHECK(sizes[d] >= 0, "Repeats cannot be negative, but got ", repeats);
    if (d >= added) sizes[d] *= x.size(static_cast<int64_t>(d - added));
  }
  return rules::empty(sizes, x);
}

// The CPU kernels preserve channels-last, CUDA's use view and permute.
MemoryFormat shuffled_format(const Tensor& x) {
  return on_cuda() ? MemoryFormat::Contiguous : x.suggest_memory_format();
}

Tensor channel_shuffle(const Tensor& x, int64_t groups) {
  TORCH_CHECK(x.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ", x.sizes());
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive. Value of groups:", groups);
  TORCH_CHECK(x.size(1) % groups == 0, "Number of channels must be divisible by groups. Got ", x.size(1),
              " channels and ", groups, " groups.");
  return rules::empty(x.sizes(), x, shuffled_format(x));
}

Tensor pixel_shuffle(const Tensor& x, int64_t factor) {
  TORCH_CHECK(x.dim() >= 3, "pixel_shuffle expects input to have at least 3 dimensions, but got input with ", x.dim(),
              " dimension(s)");
  TORCH_CHECK(factor > 0, "pixel_shuffle expects a positive upscale_factor, but got ", factor);
  DimVector sizes(x.sizes());
  const size_t channel = sizes.size() - 3;
  TORCH_CHECK(sizes[channel] % (factor * factor) == 0,
              "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
              "but input.size(-3)=",
              sizes[channel], " is not divisible by ", factor * factor);
  sizes[channel] /= factor * factor;
  sizes[channel + 1] *= factor;
  sizes[channel + 2] *= factor;
  return rules::empty(sizes, x, shuffled_format(x));
}

Tensor pixel_unshuffle(const Tensor& x, int64_t factor) {
  TORCH_CHECK(x.dim() >= 3, "pixel_unshuffle expects input to have at least 3 dimensions, but got input with ", x.dim(),
              " dimension(s)");
  TORCH_CHECK(factor > 0, "pixel_unshuffle expects a positive downscale_factor, but got ", factor);
  if (factor == 1) return rules::empty_like(x);  // a clone
  DimVector sizes(x.sizes());
  const size_t channel = sizes.size() - 3;
  TORCH_CHECK(sizes[channel + 1] % factor == 0 && sizes[channel + 2] % factor == 0,
              "pixel_unshuffle expects height and width to be divisible by downscale_factor, but they are ",
              sizes[channel + 1], " and ", sizes[channel + 2], " and the factor is ", factor);
  sizes[channel] *= factor * factor;
  sizes[channel + 1] /= factor;
  sizes[channel + 2] /= factor;
  return rules::empty(sizes, x, shuffled_format(x));
}

int64_t blocks(int64_t size, int64_t kernel, int64_t dilation, int64_t padding, int64_t stride) {
  return (size + 2 * padding - (dilation * (kernel - 1) + 1)) / stride + 1;
}

Tensor im2col(const Tensor& x, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride) {
  TORCH_CHECK(x.dim() == 3 || x.dim() == 4, "im2col: Expected 3D or 4D (batch mode) tensor for input, but got ",
              x.sizes());
  int64_t count = 1;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t along = blocks(x.size(static_cast<int64_t>(i) - 2), kernel[i], dilation[i], padding[i], stride[i]);
    TORCH_CHECK(along >= 1,
                "im2col: the input is too small for the kernel size: the array of sliding blocks would have ", along,
                " blocks");
    count *= along;
  }
  DimVector sizes(x.sizes().slice(0, static_cast<size_t>(x.dim()) - 3));
  sizes.append({x.size(-3) * kernel[0] * kernel[1], count});
  return empty_resized(x.sizes(), sizes, x.scalar_type());
}

Tensor col2im(const Tensor& x, IntArrayRef output, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
              IntArrayRef stride) {
  TORCH_CHECK(x.dim() == 2 || x.dim() == 3, "col2im: Expected 2D or 3D (batch mode) tensor for input, but got ",
              x.sizes());
  const int64_t area = kernel[0] * kernel[1];
  TORCH_CHECK(x.size(-2) % area == 0,
              "Expected size of input's dimension 1 to be divisible by the product of "
              "kernel_size, but got input.size(1)=",
              x.size(-2), " and kernel_size=", kernel);
  int64_t count = 1;
  for (size_t i = 0; i < 2; ++i) count *= blocks(output[i], kernel[i], dilation[i], padding[i], stride[i]);
  TORCH_CHECK(x.size(-1) == count, "col2im: expected ", count, " sliding blocks for output_size=", output,
              ", but got input.size(2)=", x.size(-1));
  DimVector sizes(x.sizes().slice(0, static_cast<size_t>(x.dim()) - 2));
  sizes.append({x.size(-2) / area, output[0], output[1]});
  return empty_resized(x.sizes(), sizes, x.scalar_type());
}

Tensor unfold_backward(const Tensor& grad, IntArrayRef input_sizes) { return rules::empty(input_sizes, grad); }

// ---- Reflection and replication padding: the CPU preserves channels-last, CUDA does not

template <bool reflect>
Tensor pad(const Tensor& x, IntArrayRef padding) {
  const auto spatial = static_cast<int64_t>(padding.size() / 2);
  TORCH_CHECK(
      x.dim() == spatial + 1 || x.dim() == spatial + 2, "Expected ", spatial + 1, "D or ", spatial + 2,
      "D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: ", x.sizes());
  DimVector sizes(x.sizes());
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t before = padding[static_cast<size_t>(2 * i)];
    const int64_t after = padding[static_cast<size_t>(2 * i + 1)];
    int64_t& size = sizes[static_cast<size_t>(x.dim() - 1 - i)];
    TORCH_CHECK(size > 0, "Expected non-empty spatial dimensions, but got: ", x.sizes());
    TORCH_CHECK(!reflect || (before < size && after < size),
                "Padding size should be less than the corresponding input dimension, but got: padding (", before, ", ",
                after, ") at dimension ", x.dim() - 1 - i, " of input ", x.sizes());
    size += before + after;
    TORCH_CHECK(size >= 1, "input ", x.sizes(), " is too small for the padding ", padding);
  }
  const bool batched = x.dim() == spatial + 2;
  return rules::empty(sizes, x,
                      on_cuda() || (spatial == 2 && !batched) ? MemoryFormat::Contiguous : x.suggest_memory_format());
}

// In eager a batched output always gets a new result's strides, even if its sizes match.
Tensor& reflection_pad2d_out(const Tensor& x, IntArrayRef padding, Tensor& out) {
  const Tensor result = pad<true>(x, padding);
  at::native::resize_output(out, result.sizes());
  if (x.dim() == 4) out.as_strided_(result.sizes(), result.strides());
  return out;
}

template <bool reflect>
Tensor pad_backward(const Tensor& grad, const Tensor& x, IntArrayRef padding) {
  const Tensor output = pad<reflect>(x, padding);
  TORCH_CHECK(grad.sizes() == output.sizes(), "gradOutput size unexpected. Expected: ", output.sizes(),
              ", Got: ", grad.sizes());
  return rules::empty(x.sizes(), x, on_cuda() ? MemoryFormat::Contiguous : x.suggest_memory_format());
}

Tensor grid_sampler(const Tensor& x, const Tensor& grid) {
  TORCH_CHECK(x.dim() == grid.dim() && x.size(0) == grid.size(0) && grid.size(-1) == x.dim() - 2,
              "grid_sampler(): expected grid and input to have the same batch size and number of dimensions, and grid ",
              "to have ", x.dim() - 2, " coordinates, but got input with sizes ", x.sizes(), " and grid with sizes ",
              grid.sizes());
  DimVector sizes{x.size(0), x.size(1)};
  for (int64_t d = 1; d < grid.dim() - 1; ++d) sizes.push_back(grid.size(d));
  return rules::empty(sizes, x);
}

TwoTensors grid_sampler_backward(const Tensor& x, const Tensor& grid, std::array<bool, 2> wanted) {
  return {wanted[0] ? rules::empty(x.sizes(), x) : Tensor(), rules::empty(grid.sizes(), grid)};
}

Tensor cudnn_affine_grid(const Tensor& theta, int64_t n, int64_t /*c*/, int64_t h, int64_t w) {
  TORCH_CHECK(theta.sizes().equals({n, 2, 3}), "Expected theta to have sizes [", n, ", 2, 3], but got ", theta.sizes());
  return rules::empty({n, h, w, 2}, theta);
}

Tensor cudnn_affine_grid_backward(const Tensor& grad, int64_t n, int64_t /*c*/, int64_t h, int64_t w) {
  TORCH_CHECK(grad.sizes().equals({n, h, w, 2}), "Expected grad to have sizes ", IntArrayRef({n, h, w, 2}),
              ", but got ", grad.sizes());
  return rules::empty({n, 2, 3}, grad);
}

DimVector common_batch(const Tensor& x, const Tensor& y) {
  const auto batch = [](const Tensor& t) { return t.sizes().slice(0, static_cast<size_t>(t.dim()) - 2); };
  return at::infer_size_dimvector(batch(x), batch(y));
}

Tensor cdist(const Tensor& x, const Tensor& y, double p) {
  TORCH_CHECK(x.dim() >= 2 && y.dim() >= 2, "cdist only supports at least 2D tensors, got: ", x.dim(), "D and ",
              y.dim(), "D");
  TORCH_CHECK(x.size(-1) == y.size(-1), "X1 and X2 must have the same number of columns. X1: ", x.size(-1),
              " X2: ", y.size(-1));
  TORCH_CHECK(p >= 0, "cdist only supports non-negative p values");
  DimVector sizes = common_batch(x, y);
  sizes.append({x.size(-2), y.size(-2)});
  return rules::empty(sizes, x);
}

Tensor cdist_backward(const Tensor& x, const Tensor& y) {
  DimVector sizes = common_batch(x, y);
  if (x.size(-2) == 0 || x.size(-1) == 0 || y.size(-2) == 0 || c10::multiply_integers(sizes) == 0) {
    return rules::empty_like(x);
  }
  sizes.append({x.size(-2), x.size(-1)});
  return rules::empty(sizes, x);
}

Tensor pdist(const Tensor& x, double /*p*/) {
  const int64_t n = x.size(0);
  return rules::empty({n * (n - 1) / 2}, x);
}

bool is_set_to(const Tensor& x, const Tensor& y) {
  return x.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(y.unsafeGetTensorImpl()->unsafe_storage()) &&
         x.storage_offset() == y.storage_offset() && x.sizes() == y.sizes() && x.strides() == y.strides();
}

// Notifies the capture; there is no allocator to notify.
void record_stream(Tensor& x, c10::Stream stream) {
  use_memory_on(raw_data_ptr(*x.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()), stream);
}

void update_lists() {}

Tensor& amp_update_scale_(Tensor& scale) { return scale; }

// The kernel checks its operand's device, which is meta there.
Tensor pin_memory(const Tensor& x, OptionalDevice /*device*/) {
  TORCH_CHECK(simulated_device().is_cpu(), "cannot pin a tensor on ", simulated_device(),
              ": only dense CPU tensors can be pinned");
  const Tensor result = rules::empty_strided(x.sizes(), x.strides(), x.scalar_type());
  storage_context_of(*result.storage().unsafeGetStorageImpl()).pinned = true;
  return result;
}

bool is_pinned(const Tensor& x, OptionalDevice /*device*/) {
  const StorageContext* storage = find_storage_context(*x.storage().unsafeGetStorageImpl());
  return storage != nullptr && storage->pinned;
}

}  // namespace

void register_shape(RuleRegistry& registry) {
  registry.add("aten::flip", &flip);
  registry.add("aten::roll", &roll);
  registry.add("aten::repeat", &repeat);
  registry.add("aten::channel_shuffle", &channel_shuffle);
  registry.add("aten::pixel_shuffle", &pixel_shuffle);
  registry.add("aten::pixel_unshuffle", &pixel_unshuffle);
  registry.add("aten::im2col", &im2col);
  registry.add("aten::col2im", &col2im);
  registry.add_partial({"aten::unfold_backward"}, &unfold_backward);

  for (const std::string dimensions : {"2d", "3d"}) {
    registry.add("aten::reflection_pad" + dimensions, &pad<true>);
    registry.add("aten::replication_pad" + dimensions, &pad<false>);
    registry.add("aten::reflection_pad" + dimensions + "_backward", &pad_backward<true>);
    registry.add("aten::replication_pad" + dimensions + "_backward", &pad_backward<false>);
  }
  registry.add("aten::reflection_pad2d.out", &reflection_pad2d_out);

  registry.add_partial({"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"}, &grid_sampler_backward,
                       {"input", "grid", "output_mask"});
  registry.add("aten::cudnn_affine_grid_generator", &cudnn_affine_grid);
  registry.add("aten::cudnn_affine_grid_generator_backward", &cudnn_affine_grid_backward);
  registry.add_partial({"aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler"}, &grid_sampler);

  registry.add_partial({"aten::_cdist_forward"}, &cdist);
  registry.add_partial({"aten::_cdist_backward"}, &cdist_backward, {"x1", "x2"});
  registry.add("aten::_pdist_forward", &pdist);

  registry.add("aten::is_set_to", &is_set_to);
  registry.add("aten::record_stream", &record_stream);

  registry.add_partial(
      {"aten::_fused_adam_", "aten::_fused_adam_.tensor_lr", "aten::_fused_adamw_", "aten::_fused_adamw_.tensor_lr",
       "aten::_fused_sgd_", "aten::_fused_sgd_.tensor_lr", "aten::_fused_adagrad_", "aten::_fused_adagrad_.tensor_lr",
       "aten::_amp_foreach_non_finite_check_and_unscale_"},
      &update_lists);
  registry.add("aten::_pin_memory", &pin_memory);
  registry.add("aten::is_pinned", &is_pinned);
  registry.add_partial({"aten::_amp_update_scale_"}, &amp_update_scale_);
  add_like(registry, {"aten::cudnn_grid_sampler_backward"}, {0, 1}, &empty_contiguous_like);
  add_like(registry, {"aten::_pdist_backward"}, {1}, &empty_contiguous_like);
}

}  // namespace shadowgraph::rules
