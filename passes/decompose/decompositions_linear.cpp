// Matrix products with an addend, and convolutions with a bias: the product, and the addition by itself.
//
//     addmm(self, a, b, beta, alpha)  =  beta * self + alpha * (a @ b)
//
// With beta = 0 the addend is not read at all: NaN and infinity in it do not propagate, as in eager.
#include <ATen/Functions.h>

#include "passes/decompose/decompositions.h"

namespace shadowgraph::decompositions {

using at::Scalar;
using at::Tensor;

Tensor scaled(const Tensor& x, const Scalar& alpha) { return alpha.equal(1) ? x : at::mul(x, alpha); }

namespace {

Tensor with_addend(const Tensor& product, const Tensor& self, const Scalar& beta, const Scalar& alpha) {
  const Tensor result = scaled(product, alpha);
  if (beta.equal(0)) return result;
  // Not at::add(product, self, beta): for integers and in half precision the scale is rounded by itself there.
  return at::add(result, scaled(self, beta));
}

Tensor addmm_parts(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::mm(a, b), self, beta, alpha);
}
Tensor addmv_parts(const Tensor& self, const Tensor& a, const Tensor& v, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::mv(a, v), self, beta, alpha);
}
Tensor addr_parts(const Tensor& self, const Tensor& u, const Tensor& v, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::mul(u.unsqueeze(1), v.unsqueeze(0)), self, beta, alpha);
}
// The products of all batches are summed.
Tensor addbmm_parts(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::sum(at::bmm(a, b), {0}, /*keepdim=*/false, a.scalar_type()), self, beta, alpha);
}
Tensor baddbmm_parts(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::bmm(a, b), self, beta, alpha);
}

// In place the sum is made anew and copied over self, since self is read by the sum.
using Product = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&);
template <Product product>
Tensor& in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return self.copy_(product(self, a, b, beta, alpha));
}

Tensor addmm_activation(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                        bool use_gelu) {
  const Tensor sum = addmm_parts(self, a, b, beta, alpha);
  return use_gelu ? at::gelu(sum, "tanh") : at::relu(sum);
}

Tensor convolution_parts(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                         c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                         c10::IntArrayRef output_padding, int64_t groups) {
  if (!bias || !bias->defined()) decline("it has no bias");
  const Tensor output =
      at::convolution(input, weight, {}, stride, padding, dilation, transposed, output_padding, groups);
  std::vector<int64_t> sizes(static_cast<size_t>(output.dim()), 1);
  // Without a batch dimension the channels come first.
  sizes[output.dim() == weight.dim() ? 1 : 0] = bias->size(0);
  return at::add(output, bias->view(sizes));
}

}  // namespace

void add_matrix_products(ExpansionTable& table) {
  table.add("aten::addmm", &addmm_parts);
  table.add("aten::addmv", &addmv_parts);
  table.add("aten::addr", &addr_parts);
  table.add("aten::addbmm", &addbmm_parts);
  table.add("aten::baddbmm", &baddbmm_parts);
  table.add("aten::addmm_", &in_place<&addmm_parts>);
  table.add("aten::addmv_", &in_place<&addmv_parts>);
  table.add("aten::addr_", &in_place<&addr_parts>);
  table.add("aten::addbmm_", &in_place<&addbmm_parts>);
  table.add("aten::baddbmm_", &in_place<&baddbmm_parts>);
  table.add("aten::_addmm_activation", &addmm_activation);
}

void add_convolution_bias(ExpansionTable& table) { table.add("aten::convolution", &convolution_parts); }

}  // namespace shadowgraph::decompositions
