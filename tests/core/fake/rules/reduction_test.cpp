// Reductions on fakes compared with eager.
#include <set>

#include "shadowgraph/error.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using ReductionFunction = std::function<Tensors(const at::Tensor&)>;

template <class Pair>
Tensors both(const Pair& pair) {
  return {std::get<0>(pair), std::get<1>(pair)};
}

TEST(RulesReduction, AllOfATensor) {
  const std::vector<std::pair<std::string, ReductionFunction>> reductions = {
      {"var", [](const auto& x) { return Tensors{at::var(x)}; }},
      {"std", [](const auto& x) { return Tensors{at::std(x, false)}; }},
      {"var_mean", [](const auto& x) { return both(at::var_mean(x)); }},
      {"std_mean", [](const auto& x) { return both(at::std_mean(x)); }},
      {"max", [](const auto& x) { return Tensors{at::max(x)}; }},
      {"min", [](const auto& x) { return Tensors{at::min(x)}; }},
      {"prod", [](const auto& x) { return Tensors{at::prod(x)}; }},
      {"median", [](const auto& x) { return Tensors{at::median(x)}; }},
      {"nanmedian", [](const auto& x) { return Tensors{at::nanmedian(x)}; }},
      {"sum", [](const auto& x) { return Tensors{at::sum(x)}; }},
      {"mean", [](const auto& x) { return Tensors{at::mean(x)}; }},
      {"nansum", [](const auto& x) { return Tensors{at::nansum(x)}; }},
      {"count_nonzero", [](const auto& x) { return Tensors{at::count_nonzero(x)}; }},
      {"argmax", [](const auto& x) { return Tensors{at::argmax(x)}; }},
      {"any",
       [](const auto& x) {
         return Tensors{at::any(x), at::all(x)};
       }},
      {"norm", [](const auto& x) { return Tensors{at::norm(x)}; }},
  };
  for (const auto& [name, reduce] : reductions) {
    const Program program = [&reduce = reduce](const Tensors& t) { return reduce(t[0]); };
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto& x : layouts(dtype)) {
        // On the CPU, the gradients of these depend on data: presence of NaNs, number of zeros.
        const bool differentiable = !std::set<std::string>{"prod", "median", "nanmedian", "max", "min"}.contains(name);
        expect_like_eager(program, {x}, {.gradients = differentiable, .note = name});
      }
    }
    if (name == "norm") continue;
    for (const auto dtype : {at::kLong, at::kInt}) {
      expect_like_eager(program, {at::ones({3, 4}, dtype)},
                        {.same_error = name != "mean", .note = name + " of integers"});
    }
  }
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::prod(t[0], at::kDouble), at::sum(t[0], at::kLong)};
      },
      {at::ones({3, 4})});
  // Products and sums of booleans are integers.
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::prod(t[0]), at::sum(t[0]), at::prod(t[0], 1), at::nansum(t[0])};
      },
      {at::ones({3, 4}, at::kBool)});
}

// CPU eager checks for NaNs with item(); CUDA computes a mask.
TEST(RulesReduction, GradientOfAMaximumOnCuda) {
  FakeTensorMode mode({.device = at::kCUDA});
  const auto host = at::empty({3, 4}, at::kCPU).requires_grad_();
  EXPECT_THROW(torch::autograd::grad({host.max()}, {host}), DataDependentError);
  EXPECT_THROW(torch::autograd::grad({host.prod()}, {host}), DataDependentError);
  const auto x = at::empty({3, 4}).requires_grad_();
  EXPECT_EQ(torch::autograd::grad({x.max()}, {x})[0].sizes(), x.sizes());
}

TEST(RulesReduction, AlongDimensions) {
  const std::vector<std::pair<std::string, std::function<Tensors(const at::Tensor&, int64_t, bool)>>> reductions = {
      {"var", [](const auto& x, int64_t d, bool keep) { return Tensors{at::var(x, at::IntArrayRef{d}, true, keep)}; }},
      {"std", [](const auto& x, int64_t d, bool keep) { return Tensors{at::std(x, at::IntArrayRef{d}, 0, keep)}; }},
      {"var_mean", [](const auto& x, int64_t d, bool keep) { return both(at::var_mean(x, {{d}}, 1, keep)); }},
      {"median", [](const auto& x, int64_t d, bool keep) { return both(at::median(x, d, keep)); }},
      {"nanmedian", [](const auto& x, int64_t d, bool keep) { return both(at::nanmedian(x, d, keep)); }},
      {"mode", [](const auto& x, int64_t d, bool keep) { return both(at::mode(x, d, keep)); }},
      {"kthvalue", [](const auto& x, int64_t d, bool keep) { return both(at::kthvalue(x, 1, d, keep)); }},
      {"kthvalue of 99", [](const auto& x, int64_t d, bool keep) { return both(at::kthvalue(x, 99, d, keep)); }},
      {"max", [](const auto& x, int64_t d, bool keep) { return both(at::max(x, d, keep)); }},
      {"nansum", [](const auto& x, int64_t d, bool keep) { return Tensors{at::nansum(x, d, keep)}; }},
      {"prod", [](const auto& x, int64_t d, bool keep) { return Tensors{at::prod(x, d, keep)}; }},
      {"count_nonzero", [](const auto& x, int64_t d, bool) { return Tensors{at::count_nonzero(x, {{d}})}; }},
      {"cummax", [](const auto& x, int64_t d, bool) { return both(at::cummax(x, d)); }},
      {"cummin", [](const auto& x, int64_t d, bool) { return both(at::cummin(x, d)); }},
      {"logcumsumexp", [](const auto& x, int64_t d, bool) { return Tensors{at::logcumsumexp(x, d)}; }},
      {"logsumexp", [](const auto& x, int64_t d, bool keep) { return Tensors{at::logsumexp(x, d, keep)}; }},
      {"sort", [](const auto& x, int64_t d, bool) { return both(at::sort(x, d)); }},
      {"topk", [](const auto& x, int64_t d, bool) { return both(at::topk(x, 1, d)); }},
  };
  for (const auto& [name, reduce] : reductions) {
    for (const auto& x : layouts(at::kFloat)) {
      for (const int64_t dim : {0, -1, 7}) {
        for (const bool keep : {false, true}) {
          const bool differentiable = name != "prod";
          expect_like_eager([=, &reduce = reduce](const Tensors& t) { return reduce(t[0], dim, keep); }, {x},
                            {.gradients = differentiable, .note = name + " along " + std::to_string(dim)});
        }
      }
    }
  }
}

TEST(RulesReduction, Products) {
  const Tensors in{
      at::ones({4}),    at::ones({8}).slice(0, 0, 8, 2), at::ones({5}), at::ones({3, 2, 4}), at::ones({3, 4, 5}),
      at::ones({2, 5}), at::ones({4}, at::kLong)};
  const Comparison with_gradients{.gradients = true};
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::dot(t[0], t[1]), at::vdot(t[0], t[1])};
      },
      in, with_gradients);
  expect_like_eager([](const Tensors& t) { return Tensors{at::dot(t[0], t[2])}; }, in, {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::dot(t[0], t[6])}; }, in, {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::dot(t[0], t[5])}; }, in, {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::addbmm(t[2], t[3], t[4])}; }, in, with_gradients);
  expect_like_eager([](const Tensors& t) { return Tensors{t[5].addbmm_(t[3], t[4])}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{at::addbmm(t[0], t[3], t[4])}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{at::trace(t[5]), at::trace(t[5].t())}; }, in, with_gradients);
  expect_like_eager([](const Tensors& t) { return Tensors{at::trace(t[0])}; }, in, {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::histc(t[0], 7)}; }, in);
  const Tensors bytes{at::ones({17, 8}, at::kChar), at::ones({8, 16}, at::kChar)};
  expect_like_eager([](const Tensors& t) { return Tensors{at::_int_mm(t[0], t[1])}; }, bytes);
  const Tensors unsigned_bytes{at::ones({17, 8}, at::kByte), bytes[1]};
  expect_like_eager([](const Tensors& t) { return Tensors{at::_int_mm(t[0], t[1])}; }, unsigned_bytes, {.cuda = false});
}

}  // namespace
}  // namespace shadowgraph::testing
