// The instructions of random programs: one row each.
#include "tests/random/instruction_operands.h"

namespace shadowgraph::testing {
namespace {

using Group = InstructionGroup;

constexpr InstructionRow kInstructionRows[] = {
      // ---- New tensors
      {"full", Group::kPlain, 2, &new_tensor, [](I i, R r) -> Results { return {at::full(i.ints, i.number, i.dtype)}; }},
      {"zeros", Group::kPlain, 1, &new_tensor, [](I i, R r) -> Results { return {at::zeros(i.ints, i.dtype)}; }},
      {"ones", Group::kPlain, 1, &new_tensor, [](I i, R r) -> Results { return {at::ones(i.ints, i.dtype)}; }},
      {"empty_then_fill_", Group::kWrite, 2, &new_tensor,
       [](I i, R r) -> Results { return {at::empty(i.ints, i.dtype).fill_(i.number)}; }},
      {"zeros_like", Group::kPlain, 1, &one, [](I i, R r) -> Results { return {at::zeros_like(at_(r, i, 0))}; }},
      {"clone", Group::kPlain, 3, &one, [](I i, R r) -> Results { return {at_(r, i, 0).clone()}; }},
      {"contiguous", Group::kPlain, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).contiguous()}; }},
      {"to_double", Group::kPlain, 1, &one,
       [](I i, R r) -> Results {
         return {at_(r, i, 0).is_complex() ? at_(r, i, 0).to(at::kComplexDouble) : at_(r, i, 0).to(at::kDouble)};
       }},

      // ---- Arithmetic
      {"add", Group::kPlain, 4, &two, [](I i, R r) -> Results { return {at::add(at_(r, i, 0), at_(r, i, 1))}; }},
      {"add_scalar", Group::kPlain, 3, &one, [](I i, R r) -> Results { return {at::add(at_(r, i, 0), i.number)}; }},
      {"add_alpha", Group::kPlain, 2, &two, [](I i, R r) -> Results { return {at::add(at_(r, i, 0), at_(r, i, 1), 2)}; }},
      {"sub", Group::kPlain, 2, &two, [](I i, R r) -> Results { return {at::sub(at_(r, i, 0), at_(r, i, 1))}; }},
      {"mul", Group::kPlain, 3, &two, [](I i, R r) -> Results { return {at::mul(at_(r, i, 0), at_(r, i, 1))}; }},
      {"mul_scalar", Group::kPlain, 2, &one, [](I i, R r) -> Results { return {at::mul(at_(r, i, 0), i.number)}; }},
      {"div_scalar", Group::kPlain, 1, &one,
       [](I i, R r) -> Results { return {at::div(at_(r, i, 0), i.number == 0 ? 1.0 : i.number)}; }},
      {"maximum", Group::kPlain, 1, &two, [](I i, R r) -> Results { return {at::maximum(at_(r, i, 0), at_(r, i, 1))}; }},
      {"neg", Group::kPlain, 1, &one, [](I i, R r) -> Results { return {at::neg(at_(r, i, 0))}; }},
      {"abs", Group::kPlain, 1, &one, [](I i, R r) -> Results { return {at::abs(at_(r, i, 0))}; }},
      {"relu", Group::kPlain, 1, &one_floating, [](I i, R r) -> Results { return {at::relu(at_(r, i, 0))}; }},
      {"sigmoid", Group::kPlain, 1, &one_floating, [](I i, R r) -> Results { return {at::sigmoid(at_(r, i, 0))}; }},
      {"clamp", Group::kPlain, 1, &one, [](I i, R r) -> Results { return {at::clamp(at_(r, i, 0), i.number, i.number + 2)}; }},
      {"gt", Group::kPlain, 2, &two, [](I i, R r) -> Results { return {at::gt(at_(r, i, 0), at_(r, i, 1))}; }},
      {"le_scalar", Group::kPlain, 2, &one, [](I i, R r) -> Results { return {at::le(at_(r, i, 0), i.number)}; }},
      {"where", Group::kPlain, 1, &two,
       [](I i, R r) -> Results { return {at::where(at::gt(at_(r, i, 0), at_(r, i, 1)), at_(r, i, 0), at_(r, i, 1))}; }},
      {"sum", Group::kPlain, 1, &one_and_dimension, [](I i, R r) -> Results { return {at::sum(at_(r, i, 0), i.ints)}; }},
      {"cumsum", Group::kPlain, 1, &one_and_dimension,
       [](I i, R r) -> Results { return {at::cumsum(at_(r, i, 0), number_of(i, 0))}; }},
      {"softmax", Group::kPlain, 1, &one_and_dimension,
       [](I i, R r) -> Results { return {at::softmax(at_(r, i, 0), number_of(i, 0))}; }},
      {"flip", Group::kPlain, 1, &one_and_dimension, [](I i, R r) -> Results { return {at::flip(at_(r, i, 0), i.ints)}; }},
      {"cat", Group::kPlain, 2, &concatenated,
       [](I i, R r) -> Results { return {at::cat({at_(r, i, 0), at_(r, i, 1)}, number_of(i, 0))}; }},
      {"mm", Group::kPlain, 1, &multiplied, [](I i, R r) -> Results { return {at::mm(at_(r, i, 0), at_(r, i, 1))}; }},
      {"index", Group::kPlain, 1, &written_and_indices,
       [](I i, R r) -> Results { return {at::index(at_(r, i, 0), index_list(i.constant))}; }},
      {"index_select", Group::kPlain, 1, &written_and_indices,
       [](I i, R r) -> Results { return {at::index_select(at_(r, i, 0), 0, i.constant)}; }},

      // ---- Views
      {"view", Group::kView, 4, &one_and_shape, [](I i, R r) -> Results { return {at_(r, i, 0).view(i.ints)}; }},
      {"reshape", Group::kView, 2, &one_and_shape, [](I i, R r) -> Results { return {at_(r, i, 0).reshape(i.ints)}; }},
      {"select", Group::kView, 3, &one_and_dimension,
       [](I i, R r) -> Results { return {at::select(at_(r, i, 0), number_of(i, 0), 0)}; }},
      {"select_last", Group::kView, 3, &one_and_dimension,
       [](I i, R r) -> Results { return {at::select(at_(r, i, 0), number_of(i, 0), -1)}; }},
      {"slice", Group::kView, 4, &one_and_dimension,
       [](I i, R r) -> Results { return {at::slice(at_(r, i, 0), number_of(i, 0), 1, std::nullopt, 1)}; }},
      {"slice_step", Group::kView, 4, &one_and_dimension,
       [](I i, R r) -> Results { return {at::slice(at_(r, i, 0), number_of(i, 0), 0, std::nullopt, 2)}; }},
      {"narrow", Group::kView, 3, &one_and_dimension,
       [](I i, R r) -> Results {
         const at::Tensor& t = at_(r, i, 0);
         return {t.narrow(number_of(i, 0), 0, (t.size(number_of(i, 0)) + 1) / 2)};
       }},
      {"transpose", Group::kView, 3, &one_and_two_dimensions,
       [](I i, R r) -> Results { return {at::transpose(at_(r, i, 0), number_of(i, 0), number_of(i, 1))}; }},
      {"permute", Group::kView, 2, &one,
       [](I i, R r) -> Results {
         std::vector<int64_t> order;
         for (int64_t d = at_(r, i, 0).dim(); d-- > 0;) order.push_back(d);
         return {at_(r, i, 0).permute(order)};
       }},
      {"squeeze", Group::kView, 1, &one, [](I i, R r) -> Results { return {at_(r, i, 0).squeeze()}; }},
      {"unsqueeze", Group::kView, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).unsqueeze(0)}; }},
      {"diagonal", Group::kView, 2, &one_and_two_dimensions,
       [](I i, R r) -> Results { return {at::diagonal(at_(r, i, 0), 0, number_of(i, 0), number_of(i, 1))}; }},
      {"detach", Group::kView, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).detach()}; }},
      {"variable_data", Group::kView, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).variable_data()}; }},
      {"chunk", Group::kView, 2, &one_and_dimension,
       [](I i, R r) -> Results { return at::chunk(at_(r, i, 0), 2, number_of(i, 0)); }},
      {"split", Group::kView, 2, &one_and_dimension,
       [](I i, R r) -> Results { return at::split(at_(r, i, 0), 2, number_of(i, 0)); }},
      {"unbind", Group::kView, 2, &one_and_dimension,
       [](I i, R r) -> Results { return at::unbind(at_(r, i, 0), number_of(i, 0)); }},
      {"as_strided", Group::kView, 4, &as_strided_operands,
       [](I i, R r) -> Results { return {at::as_strided(at_(r, i, 0), sizes_in(i), strides_in(i), i.ints[0])}; }},
      {"expand", Group::kOverlappingView, 3, &one,
       [](I i, R r) -> Results {
         std::vector<int64_t> sizes{2};
         for (const int64_t size : at_(r, i, 0).sizes()) sizes.push_back(size == 1 ? 3 : size);
         return {at_(r, i, 0).expand(sizes)};
       }},
      {"unfold", Group::kOverlappingView, 2, &one_and_dimension,
       [](I i, R r) -> Results { return {at_(r, i, 0).unfold(number_of(i, 0), 2, 1)}; }},
      {"unfold_step", Group::kView, 1, &one_and_dimension,
       [](I i, R r) -> Results { return {at_(r, i, 0).unfold(number_of(i, 0), 1, 2)}; }},
      {"flatten", Group::kView, 2, &one, [](I i, R r) -> Results { return {at_(r, i, 0).flatten()}; }},
      {"movedim", Group::kView, 2, &one_and_two_dimensions,
       [](I i, R r) -> Results { return {at_(r, i, 0).movedim(number_of(i, 0), number_of(i, 1))}; }},
      {"split_with_sizes", Group::kView, 1, &one_and_dimension,
       [](I i, R r) -> Results {
         const int64_t size = at_(r, i, 0).size(number_of(i, 0));
         return at::split_with_sizes(at_(r, i, 0), {0, size}, number_of(i, 0));
       }},
      {"slice_nothing", Group::kView, 1, &one_and_dimension,
       [](I i, R r) -> Results { return {at::slice(at_(r, i, 0), number_of(i, 0), 1, 1)}; }},
      {"view_dtype", Group::kView, 1, &same_width, [](I i, R r) -> Results { return {at_(r, i, 0).view(i.dtype)}; }},
      {"neg_view", Group::kComplex, 2, &one_floating, [](I i, R r) -> Results { return {at::_neg_view(at_(r, i, 0))}; }},
      {"resolve", Group::kComplex, 1, &one,
       [](I i, R r) -> Results { return {at_(r, i, 0).resolve_conj().resolve_neg()}; }},
      {"view_as_complex", Group::kComplex, 2, &one,
       [](I i, R r) -> Results { return {at::view_as_complex(at_(r, i, 0))}; }},
      {"complex", Group::kComplex, 2, &one_floating,
       [](I i, R r) -> Results { return {at::complex(at_(r, i, 0), at_(r, i, 0))}; }},
      {"real", Group::kComplex, 2, &one, [](I i, R r) -> Results { return {at::real(at_(r, i, 0))}; }},
      {"imag", Group::kComplex, 2, &one, [](I i, R r) -> Results { return {at::imag(at_(r, i, 0))}; }},
      {"view_as_real", Group::kComplex, 1, &one, [](I i, R r) -> Results { return {at::view_as_real(at_(r, i, 0))}; }},
      {"conj", Group::kComplex, 1, &one, [](I i, R r) -> Results { return {at::conj(at_(r, i, 0))}; }},

      // ---- Writes
      {"add_", Group::kWrite, 5, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).add_(at_(r, i, 1)); return {}; }},
      {"add_alpha_", Group::kWrite, 2, &written_and_operand,
       [](I i, R r) -> Results { at_(r, i, 0).add_(at_(r, i, 1), 3); return {}; }},
      {"add_scalar_", Group::kWrite, 5, &written, [](I i, R r) -> Results { at_(r, i, 0).add_(i.number); return {}; }},
      {"sub_", Group::kWrite, 2, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).sub_(at_(r, i, 1)); return {}; }},
      {"mul_", Group::kWrite, 4, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).mul_(at_(r, i, 1)); return {}; }},
      {"mul_scalar_", Group::kWrite, 4, &written, [](I i, R r) -> Results { at_(r, i, 0).mul_(i.number); return {}; }},
      {"copy_", Group::kWrite, 6, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).copy_(at_(r, i, 1)); return {}; }},
      {"fill_", Group::kWrite, 4, &filled, [](I i, R r) -> Results { at_(r, i, 0).fill_(i.number); return {}; }},
      {"zero_", Group::kWrite, 3, &filled, [](I i, R r) -> Results { at_(r, i, 0).zero_(); return {}; }},
      {"neg_", Group::kWrite, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).neg_(); return {}; }},
      {"relu_", Group::kWrite, 1, &written_floating, [](I i, R r) -> Results { at::relu_(at_(r, i, 0)); return {}; }},
      {"sigmoid_", Group::kWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).sigmoid_(); return {}; }},
      {"clamp_", Group::kWrite, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).clamp_(-1, i.number + 3); return {}; }},
      {"addcmul_", Group::kWrite, 2, &written_and_two_operands,
       [](I i, R r) -> Results { at_(r, i, 0).addcmul_(at_(r, i, 1), at_(r, i, 2)); return {}; }},
      {"masked_fill_", Group::kWrite, 3, &masked,
       [](I i, R r) -> Results { at_(r, i, 0).masked_fill_(at_(r, i, 1), i.number); return {}; }},
      {"index_put_", Group::kWrite, 3, &written_and_indices,
       [](I i, R r) -> Results {
         at::Tensor& self = at_(r, i, 0);
         at::index_put_(self, index_list(i.constant), at::full({}, i.number, self.scalar_type()), i.ints[0] != 0);
         return {};
       }},
      {"index_fill_", Group::kWrite, 2, &written_and_indices,
       [](I i, R r) -> Results { at_(r, i, 0).index_fill_(0, i.constant, i.number); return {}; }},
      {"cumsum_", Group::kWrite, 1, &written_and_dimension,
       [](I i, R r) -> Results { at_(r, i, 0).cumsum_(number_of(i, 0)); return {}; }},
      {"foreach_add_", Group::kWrite, 2, &lists_written,
       [](I i, R r) -> Results { at::_foreach_add_({at_(r, i, 0), at_(r, i, 1)}, i.number); return {}; }},

      {"neg_then_copy_", Group::kWrite, 2, &overwritten,
       [](I i, R r) -> Results {
         const at::Tensor before = at_(r, i, 0).neg();
         at_(r, i, 0).copy_(at_(r, i, 1));
         return {before.mul(i.number)};
       }},
      {"add_shifted_", Group::kWrite, 2, &shifted,
       [](I i, R r) -> Results { stretch(i, r, i.ints[1]).add_(stretch(i, r, 1 - i.ints[1])); return {}; }},
      {"mul_shifted_", Group::kWrite, 1, &shifted,
       [](I i, R r) -> Results { stretch(i, r, i.ints[1]).mul_(stretch(i, r, 1 - i.ints[1])); return {}; }},
      {"lerp_", Group::kWrite, 1, &written_and_operand,
       [](I i, R r) -> Results { at_(r, i, 0).lerp_(at_(r, i, 1), 0.25); return {}; }},
      {"eq_", Group::kWrite, 1, &written_and_operand, [](I i, R r) -> Results { at_(r, i, 0).eq_(at_(r, i, 1)); return {}; }},
      {"index_copy_", Group::kWrite, 2, &written_and_source_rows,
       [](I i, R r) -> Results { at_(r, i, 0).index_copy_(0, i.constant, at_(r, i, 1)); return {}; }},
      {"index_add_", Group::kWrite, 2, &written_and_source_rows,
       [](I i, R r) -> Results { at_(r, i, 0).index_add_(0, i.constant, at_(r, i, 1)); return {}; }},
      {"masked_scatter_", Group::kWrite, 1, &masked,
       [](I i, R r) -> Results {
         at_(r, i, 0).masked_scatter_(at_(r, i, 1), at::ones_like(at_(r, i, 0), at::MemoryFormat::Contiguous));
         return {};
       }},
      {"addmm_", Group::kWrite, 2, &written_matrix,
       [](I i, R r) -> Results { at_(r, i, 0).addmm_(at_(r, i, 1), at_(r, i, 2), i.number); return {}; }},
      {"fill_diagonal_", Group::kWrite, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).fill_diagonal_(i.number); return {}; }},
      {"tril_", Group::kWrite, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).tril_(); return {}; }},
      {"conj_physical_", Group::kComplex, 1, &written, [](I i, R r) -> Results { at_(r, i, 0).conj_physical_(); return {}; }},

      // ---- Optimizer steps
      {"foreach_mul_", Group::kWrite, 1, &lists_written,
       [](I i, R r) -> Results { at::_foreach_mul_({at_(r, i, 0), at_(r, i, 1)}, i.number); return {}; }},
      {"foreach_addcmul_", Group::kWrite, 1, &lists_written,
       [](I i, R r) -> Results {
         const std::vector<at::Tensor> list{at_(r, i, 0), at_(r, i, 1)};
         at::_foreach_addcmul_(list, list, list, i.number);
         return {};
       }},
      {"foreach_copy_", Group::kWrite, 1, &written_and_operand,
       [](I i, R r) -> Results { at::_foreach_copy_({at_(r, i, 0)}, {at_(r, i, 1)}); return {}; }},
      {"sgd_step", Group::kWrite, 2, &optimized,
       [](I i, R r) -> Results {
         const at::Tensor momentum = at::zeros_like(at_(r, i, 0));
         momentum.mul_(0.5).add_(at_(r, i, 1));
         at_(r, i, 0).add_(momentum, -i.number);
         return {momentum};
       }},
      {"foreach_sgd_step", Group::kWrite, 2, &optimized,
       [](I i, R r) -> Results {
         const std::vector<at::Tensor> momenta{at::full_like(at_(r, i, 0), 0.25)};
         at::_foreach_mul_(momenta, 0.5);
         at::_foreach_add_(momenta, {at_(r, i, 1)}, 1);
         at::_foreach_add_({at_(r, i, 0)}, momenta, -i.number);
         return momenta;
       }},
      {"adam_step", Group::kWrite, 2, &optimized,
       [](I i, R r) -> Results {
         at::Tensor& parameter = at_(r, i, 0);
         const at::Tensor gradient = at_(r, i, 1);
         const at::Tensor average = at::zeros_like(parameter);
         const at::Tensor square = at::zeros_like(parameter);
         average.lerp_(gradient, 0.25);
         square.mul_(0.5).addcmul_(gradient, gradient, 0.5);
         parameter.mul_(0.75).addcdiv_(average, square.sqrt().add_(0.5), -i.number);
         return {average, square};
       }},
      {"fused_adamw_step", Group::kWrite, 2, &optimized,
       [](I i, R r) -> Results {
         at::Tensor& parameter = at_(r, i, 0);
         const at::Tensor average = at::zeros_like(parameter);
         const at::Tensor square = at::zeros_like(parameter);
         const at::Tensor step = at::ones({}, at::kFloat);
         at::_fused_adamw_({parameter}, {at_(r, i, 1)}, {average}, {square}, {}, {step}, i.number, 0.5, 0.75, 0.25, 0.5,
                           false, false);
         return {average, square};
       }},
      {"fused_sgd_step", Group::kWrite, 1, &optimized,
       [](I i, R r) -> Results {
         const at::Tensor momentum = at::zeros_like(at_(r, i, 0));
         at::_fused_sgd_({at_(r, i, 0)}, {at_(r, i, 1)}, {momentum}, 0.25, 0.5, i.number, 0.0, true, false, true);
         return {momentum};
       }},

      // ---- out=
      {"cat_out", Group::kOut, 2, &concatenated_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 2, i.dtype);
         at::cat_out(out, {at_(r, i, 0), at_(r, i, 1)}, number_of(i, 0));
         return {out};
       }},
      {"cumsum_out", Group::kOut, 1, &cumsum_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 1, i.dtype);
         at::cumsum_out(out, at_(r, i, 0), number_of(i, 0));
         return {out};
       }},
      {"max_out", Group::kOut, 2, &maximum_with_outs,
       [](I i, R r) -> Results {
         at::Tensor values = out_tensor(i, r, 1, at::kFloat);
         at::Tensor indices = out_tensor(i, r, 2, at::kLong);
         at::max_out(values, indices, at_(r, i, 0), number_of(i, 0));
         return {values, indices};
       }},
      {"mm_out", Group::kOut, 1, &written_matrix,
       [](I i, R r) -> Results { at::mm_out(at_(r, i, 0), at_(r, i, 1), at_(r, i, 2)); return {}; }},
      {"add_out", Group::kOut, 3, &two_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 2, i.dtype);
         at::add_out(out, at_(r, i, 0), at_(r, i, 1));
         return {out};
       }},
      {"mul_out", Group::kOut, 3, &two_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 2, i.dtype);
         at::mul_out(out, at_(r, i, 0), at_(r, i, 1));
         return {out};
       }},
      {"sigmoid_out", Group::kOut, 2, &one_floating_with_out,
       [](I i, R r) -> Results {
         at::Tensor out = out_tensor(i, r, 1, i.dtype);
         at::sigmoid_out(out, at_(r, i, 0));
         return {out};
       }},

      // ---- Random
      {"uniform_", Group::kRandomWrite, 3, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).uniform_(); return {}; }},
      {"normal_", Group::kRandomWrite, 3, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).normal_(i.number); return {}; }},
      {"bernoulli_", Group::kRandomWrite, 2, &probability, [](I i, R r) -> Results { at_(r, i, 0).bernoulli_(i.number); return {}; }},
      {"random_", Group::kRandomWrite, 2, &written, [](I i, R r) -> Results { at_(r, i, 0).random_(-5, 9); return {}; }},
      {"exponential_", Group::kRandomWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).exponential_(); return {}; }},
      {"log_normal_", Group::kRandomWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).log_normal_(); return {}; }},
      {"cauchy_", Group::kRandomWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).cauchy_(); return {}; }},
      {"geometric_", Group::kRandomWrite, 1, &written_floating, [](I i, R r) -> Results { at_(r, i, 0).geometric_(0.5); return {}; }},
      {"bernoulli", Group::kRandom, 1, &one_floating,
       [](I i, R r) -> Results { return {at::bernoulli(at::sigmoid(at::nan_to_num(at_(r, i, 0))))}; }},
      {"dropout", Group::kRandom, 2, &one_floating, [](I i, R r) -> Results { return {at::dropout(at_(r, i, 0), 0.5, true)}; }},
      {"dropout_", Group::kRandomWrite, 1, &written_floating,
       [](I i, R r) -> Results { at::dropout_(at_(r, i, 0), 0.25, true); return {}; }},
      {"rand_like", Group::kRandom, 2, &one_floating, [](I i, R r) -> Results { return {at::rand_like(at_(r, i, 0))}; }},
      {"randn_like", Group::kRandom, 1, &one_floating, [](I i, R r) -> Results { return {at::randn_like(at_(r, i, 0))}; }},
      {"randint_like", Group::kRandom, 1, &one_floating, [](I i, R r) -> Results { return {at::randint_like(at_(r, i, 0), 7)}; }},
      {"randn", Group::kRandom, 1, &new_tensor, [](I i, R r) -> Results { return {at::randn(i.ints)}; }},

      // ---- Geometry in place
      {"t_", Group::kMetadataWrite, 2, &one, [](I i, R r) -> Results { at_(r, i, 0).t_(); return {}; }},
      {"transpose_", Group::kMetadataWrite, 2, &one_and_two_dimensions,
       [](I i, R r) -> Results { at_(r, i, 0).transpose_(number_of(i, 0), number_of(i, 1)); return {}; }},
      {"squeeze_", Group::kMetadataWrite, 1, &one, [](I i, R r) -> Results { at_(r, i, 0).squeeze_(); return {}; }},
      {"unsqueeze_", Group::kMetadataWrite, 2, &one, [](I i, R r) -> Results { at_(r, i, 0).unsqueeze_(0); return {}; }},

      {"squeeze_dim_", Group::kMetadataWrite, 1, &one_and_dimension,
       [](I i, R r) -> Results { at_(r, i, 0).squeeze_(number_of(i, 0)); return {}; }},
      {"swapdims_", Group::kMetadataWrite, 1, &one_and_two_dimensions,
       [](I i, R r) -> Results { at_(r, i, 0).swapdims_(number_of(i, 0), number_of(i, 1)); return {}; }},
      {"as_strided_", Group::kMetadataWrite, 2, &as_strided_operands,
       [](I i, R r) -> Results { at_(r, i, 0).as_strided_(sizes_in(i), strides_in(i), i.ints[0]); return {}; }},
      {"detach_", Group::kMetadataWrite, 1, &one, [](I i, R r) -> Results { at_(r, i, 0).detach_(); return {}; }},

      // ---- Storages exchanged and resized
      {"set_", Group::kSet, 2, &set_to_tensor, [](I i, R r) -> Results { at_(r, i, 0).set_(at_(r, i, 1)); return {}; }},
      {"set_storage", Group::kSet, 2, &set_to_storage,
       [](I i, R r) -> Results {
         at_(r, i, 0).set_(at_(r, i, 1).storage(), i.ints[0], sizes_in(i), strides_in(i));
         return {};
       }},
      {"set_whole_storage", Group::kSet, 1, &set_to_whole_storage,
       [](I i, R r) -> Results { at_(r, i, 0).set_(at_(r, i, 1).storage()); return {}; }},
      {"set_nothing", Group::kSet, 1, &one, [](I i, R r) -> Results { at_(r, i, 0).set_(); return {}; }},
      {"set_data", Group::kSet, 3, &set_to_tensor, [](I i, R r) -> Results { at_(r, i, 0).set_data(at_(r, i, 1)); return {}; }},
      {"resize_", Group::kResize, 2, &resized,
       [](I i, R r) -> Results {
         at::Tensor& t = at_(r, i, 0);
         t.resize_(at::IntArrayRef(i.ints).slice(1));
         if (i.ints[0] != 0) t.fill_(i.number);
         return {};
       }},
};

}  // namespace

const std::vector<InstructionRow>& instruction_rows() {
  static const std::vector<InstructionRow> rows(std::begin(kInstructionRows), std::end(kInstructionRows));
  return rows;
}

}  // namespace shadowgraph::testing
