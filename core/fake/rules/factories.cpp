// Factories (triangle indices, ranges with tensor bounds, random keys, tokens), dropout and random numbers.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/mul.h>

#include "core/fake/rules/registry.h"

namespace shadowgraph::rules {
namespace {

int64_t lower_triangle(int64_t rows, int64_t columns, int64_t offset) {
  TORCH_CHECK(rows >= 0 && columns >= 0, "row and col must be non-negative, got ", rows, " and ", columns);
  int64_t count = 0;
  // Rows before the diagonal have no elements; each further row has one more, up to all columns.
  const int64_t first = std::max<int64_t>(0, -offset);
  const int64_t full = std::min(rows, std::max(first, columns - offset));
  if (first < full) count += (full - first) * (first + offset + 1 + full + offset) / 2;
  if (full < rows) count += (rows - full) * columns;
  return count;
}

Tensor tril_indices(int64_t rows, int64_t columns, int64_t offset, OptionalDtype dtype) {
  return rules::empty({2, lower_triangle(rows, columns, offset)}, dtype.value_or(c10::kLong));
}

Tensor triu_indices(int64_t rows, int64_t columns, int64_t offset, OptionalDtype dtype) {
  return rules::empty({2, rows * columns - lower_triangle(rows, columns, offset - 1)}, dtype.value_or(c10::kLong));
}

// ---- Factories with tensor bounds: only the number of steps matters

void check_bound(const Scalar& /*bound*/, const char* /*name*/) {}
void check_bound(const Tensor& bound, const char* name) {
  TORCH_CHECK(bound.dim() == 0, name, " only supports 0-dimensional start and end tensors, but got one with ",
              bound.dim(), " dimension(s).");
}

// linspace, and logspace, which has a base.
template <class Start, class End, class... Base>
struct Steps {
  static void check(const Start& start, const End& end, int64_t count) {
    constexpr const char* kName = sizeof...(Base) == 0 ? "linspace" : "logspace";
    check_bound(start, kName);
    check_bound(end, kName);
    TORCH_CHECK(count >= 0, "number of steps must be non-negative");
  }
  static Tensor functional(const Start& start, const End& end, int64_t count, Base..., OptionalDtype dtype) {
    check(start, end, count);
    return rules::empty({count}, dtype.value_or(c10::get_default_dtype_as_scalartype()));
  }
  // A result with the right number of elements keeps its shape.
  static Tensor& out(const Start& start, const End& end, int64_t count, Base..., Tensor& result) {
    check(start, end, count);
    if (result.numel() != count) at::native::resize_output(result, {count});
    return result;
  }
};

template <class Start, class End>
void add_steps(RuleRegistry& registry, const std::string& overload) {
  registry.add_partial({("aten::linspace." + overload).c_str()}, &Steps<Start, End>::functional);
  registry.add_partial({("aten::logspace." + overload).c_str()}, &Steps<Start, End, double>::functional);
  registry.add("aten::linspace." + overload + "_out", &Steps<Start, End>::out);
  registry.add("aten::logspace." + overload + "_out", &Steps<Start, End, double>::out);
}

// ---- Factories whose contents do not matter

// Does not open the file.
Tensor from_file(std::optional<int64_t> size, OptionalDtype dtype) {
  return rules::empty({size.value_or(0)}, dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

// A token that orders assertions relative to other calls.
Tensor dependency_token(OptionalDtype dtype) {
  return rules::empty({}, dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

// ---- Random numbers from keys: two words each

void check_key(const Tensor& key, const char* name) {
  TORCH_CHECK(key.dim() >= 1 && key.size(-1) == 2, name, ": key must have shape (*batch, 2), got shape ", key.sizes());
  TORCH_CHECK(key.scalar_type() == c10::kUInt64, name, ": key must have dtype uint64, got ", key.scalar_type());
}

Tensor philox_key_split(const Tensor& key, int64_t count) {
  check_key(key, "_philox_key_split");
  TORCH_CHECK(count > 0, "_philox_key_split: num_splits must be positive, got ", count);
  DimVector sizes{count};
  sizes.append(key.sizes().begin(), key.sizes().end());
  return rules::empty(sizes, key);
}

Tensor philox_key_fold_in(const Tensor& key) {
  check_key(key, "_philox_key_fold_in");
  return rules::empty_like(key);
}

// Dropout and random numbers. Rules draw no numbers and do not advance the generator.

void check_probability(double p, const char* name) {
  TORCH_CHECK(0 <= p && p <= 1, name, " expects p to be in [0, 1], but got p=", p);
}

// ---- Dropout: (output, mask)

TwoTensors native_dropout(const Tensor& x, double p, OptionalBool /*train*/) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  // Without elements the CPU returns the input itself, with a mask of the input's dtype.
  if (!on_cuda() && x.numel() == 0) return {x, rules::empty_like(x)};
  return {rules::empty_like(x), rules::empty_like(x, c10::kBool)};
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  if (!on_cuda()) return at::mul(at::mul(grad, mask), Scalar(scale));
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "Mask should be Bool Scalar Type", mask.scalar_type());
  return rules::empty_like(grad, grad.suggest_memory_format());
}

// CUDA's kernel, with a byte mask.
TwoTensors fused_dropout(const Tensor& x, double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  return {rules::empty_like(x), rules::empty_like(x, c10::kByte)};
}

Tensor masked_scale(const Tensor& x, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == c10::kByte, "mask should be torch.uint8 dtype");
  return rules::empty_like(x, x.suggest_memory_format());
}

Tensor bernoulli_p(const Tensor& like, double p) {
  check_probability(p, "bernoulli_");
  return rules::empty(like.sizes(), like);
}

Tensor binomial(const Tensor& count, const Tensor& p) {
  Tensor result = rules::empty(count.sizes(), count);
  return elementwise_into(result, {count, p});
}

Tensor sample_gradient(const Tensor& parameter, const Tensor& sample) { return elementwise({parameter, sample}); }

Tensor dirichlet_gradient(const Tensor& sample, const Tensor& alpha, const Tensor& total) {
  Tensor result = rules::empty(sample.sizes(), sample);
  return elementwise_into(result, {sample, alpha, total});
}

Tensor multinomial(const Tensor& weights, int64_t samples, bool replacement) {
  TORCH_CHECK(weights.dim() > 0 && weights.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(c10::isFloatingType(weights.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", weights.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || samples <= weights.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  return weights.dim() == 1 ? rules::empty({samples}, c10::kLong)
                            : rules::empty({weights.size(0), samples}, c10::kLong);
}

Tensor& multinomial_out(const Tensor& weights, int64_t samples, bool replacement, Tensor& result) {
  TORCH_CHECK(result.scalar_type() == c10::kLong, "multinomial expects Long tensor out, got: ", result.scalar_type());
  at::native::resize_output(result, rules::multinomial(weights, samples, replacement).sizes());
  return result;
}

Tensor randperm(int64_t n, OptionalDtype dtype) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  return rules::empty({n}, dtype.value_or(c10::kLong));
}

// The check that every TensorIterator makes on its output.
Tensor& written(Tensor& self) {
  at::assert_no_internal_overlap(self);
  return self;
}

Tensor& bernoulli_(Tensor& self, double p) {
  check_probability(p, "bernoulli_");
  return written(self);
}

Tensor& bernoulli_tensor_(Tensor& self, const Tensor& p) {
  (void)p.expand(self.sizes());  // throws if it does not fit
  return written(self);
}

void check_floating(const Tensor& self, const char* name) {
  TORCH_CHECK(self.is_floating_point(), name, " is only defined for floating-point tensors, not for ",
              self.scalar_type());
}

Tensor& exponential_(Tensor& self, double lambda) {
  TORCH_CHECK(lambda > 0, "exponential_ expects lambda > 0.0, but found lambda=", lambda);
  check_floating(self, "exponential_");
  return written(self);
}

Tensor& geometric_(Tensor& self, double p) {
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  return written(self);
}

Tensor& cauchy_(Tensor& self, double sigma) {
  TORCH_CHECK(sigma > 0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  check_floating(self, "cauchy_");
  return written(self);
}

Tensor& log_normal_(Tensor& self, double deviation) {
  TORCH_CHECK(deviation > 0, "log_normal_ expects std > 0.0, but found std=", deviation);
  check_floating(self, "log_normal_");
  return written(self);
}

// No kernel is compiled for integers, bool or the 8-bit floating-point types.
Tensor& normal_(Tensor& self, double deviation) {
  TORCH_CHECK(deviation >= 0, "normal expects std >= 0.0, but found std ", deviation);
  const ScalarType dtype = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isComplexType(dtype) || (c10::isFloatingType(dtype) && !c10::isFloat8Type(dtype)),
                              on_cuda() ? "\"normal_kernel_cuda\"" : "\"normal_kernel_cpu\"", " not implemented for '",
                              dtype, "'");
  return written(self);
}

}  // namespace

void register_factories(RuleRegistry& registry) {
  registry.add_partial({"aten::tril_indices"}, &tril_indices);
  registry.add_partial({"aten::triu_indices"}, &triu_indices);
  add_steps<Tensor, Tensor>(registry, "Tensor_Tensor");
  add_steps<Tensor, Scalar>(registry, "Tensor_Scalar");
  add_steps<Scalar, Tensor>(registry, "Scalar_Tensor");
  registry.add_partial({"aten::from_file"}, &from_file, {"size", "dtype"});
  registry.add_partial({"aten::_make_dep_token"}, &dependency_token);
  registry.add("aten::_philox_key_split", &philox_key_split);
  registry.add_partial({"aten::_philox_key_fold_in"}, &philox_key_fold_in);
  registry.add("aten::native_dropout", &native_dropout);
  registry.add("aten::native_dropout_backward", &native_dropout_backward);
  registry.add_partial({"aten::_fused_dropout"}, &fused_dropout);
  registry.add_partial({"aten::_masked_scale"}, &masked_scale);
  registry.add_partial({"aten::bernoulli.p"}, &bernoulli_p);
  registry.add("aten::_standard_gamma_grad", &sample_gradient);
  registry.add("aten::_dirichlet_grad", &dirichlet_gradient);
  registry.add_partial({"aten::binomial"}, &binomial);
  registry.add_partial({"aten::multinomial"}, &multinomial);
  registry.add_partial({"aten::multinomial.out"}, &multinomial_out, {"self", "num_samples", "replacement", "out"});
  registry.add_partial({"aten::randperm", "aten::randperm.generator"}, &randperm, {"n", "dtype"});
  registry.add_partial({"aten::bernoulli_.float"}, &bernoulli_);
  registry.add_partial({"aten::bernoulli_.Tensor"}, &bernoulli_tensor_);
  registry.add_partial({"aten::exponential_"}, &exponential_);
  registry.add_partial({"aten::geometric_"}, &geometric_);
  registry.add_partial({"aten::cauchy_"}, &cauchy_, {"self", "sigma"});
  registry.add_partial({"aten::log_normal_"}, &log_normal_, {"self", "std"});
  registry.add_partial({"aten::normal_"}, &normal_, {"self", "std"});
  add_like(registry, {"aten::bernoulli", "aten::poisson", "aten::_standard_gamma", "aten::_sample_dirichlet"}, {0},
           &empty_contiguous_like);
  add_like(registry, {"aten::_functional_assert_async.msg"}, {2});
}

}  // namespace shadowgraph::rules
