// Pointwise operators on fakes compared with eager: layouts, type promotion, in-place forms, gradients.
#include "shadowgraph/error.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

Program apply(const Function& function) {
  return [function](const Tensors& in) { return Tensors{function(in[0])}; };
}

const std::vector<std::pair<std::string, Function>> kUnary = {
    {"relu", [](const auto& x) { return at::relu(x); }},
    {"hardtanh", [](const auto& x) { return at::hardtanh(x, -0.5, 0.5); }},
    {"hardswish", [](const auto& x) { return at::hardswish(x); }},
    {"nan_to_num", [](const auto& x) { return at::nan_to_num(x); }},
    {"logit", [](const auto& x) { return at::logit(x, 0.1); }},
    {"abs", [](const auto& x) { return at::abs(x); }},
    {"angle", [](const auto& x) { return at::angle(x); }},
    {"log_sigmoid", [](const auto& x) { return at::log_sigmoid(x); }},
    {"logical_not", [](const auto& x) { return at::logical_not(x); }},
    {"isnan", [](const auto& x) { return at::isnan(x); }},
    {"isinf", [](const auto& x) { return at::isinf(x); }},
    {"isfinite", [](const auto& x) { return at::isfinite(x); }},
    {"sign", [](const auto& x) { return at::sign(x); }},
    {"sgn", [](const auto& x) { return at::sgn(x); }},
    {"clamp", [](const auto& x) { return at::clamp(x, 0.1, 0.9); }},
    {"rsub", [](const auto& x) { return at::rsub(x, 2); }},
    {"remainder of a number", [](const auto& x) { return at::remainder(7, x + 1); }},
    {"frexp", [](const auto& x) { return std::get<1>(at::frexp(x)); }},
};

TEST(RulesElementwise, UnaryOperatorsInEveryLayoutAndDtype) {
  for (const auto& [name, function] : kUnary) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      for (const auto& x : layouts(dtype)) {
        expect_like_eager(apply(function), {x},
                          {.gradients = name != "frexp", .cuda = name != "log_sigmoid", .note = name});
      }
    }
    for (const auto& x : {layouts(at::kLong)[1], layouts(at::kBool)[0], layouts(at::kInt)[4]}) {
      // eager has no kernel for these: "not implemented for"
      const bool tested = name != "hardswish" && name != "log_sigmoid";
      if (tested && !(x.scalar_type() == at::kBool && (name == "abs" || name == "hardtanh" || name == "clamp"))) {
        expect_like_eager(apply(function), {x}, {.note = name + " of integers"});
      }
    }
  }
}

const std::vector<std::pair<std::string, std::function<void(at::Tensor)>>> kInPlace = {
    {"relu_", [](at::Tensor x) { at::relu_(x); }},
    {"hardtanh_", [](at::Tensor x) { at::hardtanh_(x, 0, 1); }},
    {"hardswish_", [](at::Tensor x) { at::hardswish_(x); }},
    {"abs_", [](at::Tensor x) { x.abs_(); }},
    {"logical_not_", [](at::Tensor x) { x.logical_not_(); }},
    {"nan_to_num_", [](at::Tensor x) { at::nan_to_num_(x); }},
    {"logit_", [](at::Tensor x) { at::logit_(x); }},
    {"fill_", [](at::Tensor x) { x.fill_(1); }},
    {"zero_", [](at::Tensor x) { x.zero_(); }},
};

TEST(RulesElementwise, InPlaceReturnsSelfAndCountsAsAWrite) {
  for (const auto& [name, write] : kInPlace) {
    const Program program = [&write = write](const Tensors& in) {
      write(in[0]);
      return Tensors{in[0]};
    };
    for (const auto& x : layouts(at::kFloat)) expect_like_eager(program, {x}, {.note = name});
    // A float result cannot be written to an integer tensor.
    if (name != "hardswish_")
      expect_like_eager(program, {at::ones({3}, at::kLong)}, {.same_error = true, .note = name});
  }
}

using BinaryFunction = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

const std::vector<std::pair<std::string, BinaryFunction>> kBinary = {
    {"logical_and", [](const auto& x, const auto& y) { return at::logical_and(x, y); }},
    {"logical_or", [](const auto& x, const auto& y) { return at::logical_or(x, y); }},
    {"logical_xor", [](const auto& x, const auto& y) { return at::logical_xor(x, y); }},
    {"floor_divide", [](const auto& x, const auto& y) { return at::floor_divide(x, y + 1); }},
    {"rsub", [](const auto& x, const auto& y) { return at::rsub(x, y); }},
    {"where", [](const auto& x, const auto& y) { return at::where(x > 0, x, y); }},
    {"maximum", [](const auto& x, const auto& y) { return at::maximum(x, y); }},
};

TEST(RulesElementwise, BinaryOperatorsBroadcastAndPromote) {
  const std::vector<Tensors> operands = {
      {at::ones({4, 6}), at::ones({6})},
      {at::ones({6, 4}).t(), at::ones({4, 1})},
      {at::ones({4, 6}), at::ones({6, 4}).t()},
      {at::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast), at::ones({3, 1, 1})},
      {at::ones({4, 6}, at::kBFloat16), at::ones({4, 6})},
      {at::ones({4, 6}, at::kLong), at::ones({}, at::kFloat)},
      {at::ones({4, 6}, at::kInt), at::ones({6}, at::kLong)},
      {at::ones({}, at::kDouble), at::ones({3}, at::kFloat)},
      {at::ones({0, 6}), at::ones({1, 6})},
      {at::ones({4, 6}), at::ones({5})},  // throws
  };
  for (const auto& [name, function] : kBinary) {
    for (const auto& in : operands) {
      expect_like_eager([&f = function](const Tensors& t) { return Tensors{f(t[0], t[1])}; }, in,
                        {.gradients = true, .same_error = true, .note = name});
    }
  }
}

TEST(RulesElementwise, InPlaceDoesNotGrowSelf) {
  const Tensors operands{at::ones({3, 1}), at::ones({3, 4})};
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].logical_and_(t[1])}; }, operands, {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].floor_divide_(t[1])}; }, operands, {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].masked_fill_(t[1] > 0, 1)}; }, operands,
                    {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{t[1].masked_fill_(t[0] > 0, 1)}; }, operands);
  expect_like_eager([](const Tensors& t) { return Tensors{t[1].masked_fill(t[0] > 0, 1)}; }, operands,
                    {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{t[1].masked_fill(t[0] > 0, t[0].sum().detach())}; }, operands,
                    {.gradients = true});
}

TEST(RulesElementwise, GradientOfAFillValueDependsOnData) {
  FakeTensorMode mode;
  const auto value = at::empty({}).requires_grad_();
  const auto filled = at::empty({3}).masked_fill(at::empty({3}, at::kBool), value);
  EXPECT_THROW(torch::autograd::grad({filled.sum()}, {value}), DataDependentError);
}

TEST(RulesElementwise, ComplexOperandsGiveRealResults) {
  const Tensors in{at::view_as_complex(at::ones({3, 4, 2})).t()};
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::abs(t[0]), at::angle(t[0]), t[0].conj(), at::real(t[0])};
      },
      in, {.gradients = true});
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{t[0].conj().t(), t[0].conj() * 2, at::imag(t[0].conj())};
      },
      in);
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].abs_()}; }, in, {.same_error = true});
  const Tensors parts{at::ones({3, 4}), at::ones({4})};
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::complex(t[0], t[1]), at::polar(t[0], t[1])};
      },
      parts, {.gradients = true});
}

TEST(RulesElementwise, ShiftsOfIntegers) {
  const Tensors in{at::ones({3, 4}, at::kInt), at::ones({4}, at::kLong)};
  expect_like_eager([](const Tensors& t) { return Tensors{at::__lshift__(t[0], t[1]), at::__rshift__(t[0], 2)}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{at::bitwise_left_shift(t[0], t[1])}; }, in);
}

TEST(RulesElementwise, ActivationsWithParameters) {
  for (const auto& x : layouts(at::kFloat)) {
    if (x.dim() < 2) continue;
    const Tensors in{x, at::ones({x.size(1)})};
    expect_like_eager([](const Tensors& t) { return Tensors{at::prelu(t[0], t[1])}; }, in, {.gradients = true});
    expect_like_eager([](const Tensors& t) { return Tensors{at::glu(t[0], -1)}; }, {x}, {.gradients = true});
    expect_like_eager([](const Tensors& t) { return Tensors{at::rrelu(t[0], 0.1, 0.3, true)}; }, {x},
                      {.gradients = true, .note = "rrelu, training"});
    expect_like_eager([](const Tensors& t) { return Tensors{at::rrelu(t[0], 0.1, 0.3, false)}; }, {x},
                      {.gradients = true, .note = "rrelu"});
  }
}

// CUDA saves no buffer for the backward of log_sigmoid.
TEST(RulesElementwise, LogSigmoidBufferIsEmptyOnCuda) {
  FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_EQ(std::get<1>(at::log_sigmoid_forward(at::empty({2, 3}))).sizes(), at::IntArrayRef{0});
  EXPECT_EQ(std::get<1>(at::log_sigmoid_forward(at::empty({2, 3}, at::kCPU))).sizes(), (at::IntArrayRef{2, 3}));
}

// Graphs have one operator here, as in CUDA builds of libtorch, even though this build would decompose it.
TEST(RulesElementwise, SiluAndMishBackwardAreOneOperatorOnCpuAndCuda) {
  const Program programs[] = {[](const Tensors& in) { return Tensors{at::silu(in[0])}; },
                              [](const Tensors& in) { return Tensors{at::mish(in[0])}; }};
  const char* names[] = {"aten::silu_backward", "aten::mish_backward"};
  for (size_t i = 0; i < 2; ++i) {
    const at::Tensor x = at::randn({6, 4}).t().requires_grad_();
    EXPECT_EQ(difference({x}, programs[i]), "") << names[i];
    const Outcome cuda = run_on_fake_cuda({x}, programs[i]);
    EXPECT_EQ(cuda.log.names(), run_real({x}, programs[i]).log.names()) << names[i];
    EXPECT_EQ(cuda.results_of(names[i]), run_real({x}, programs[i]).results_of(names[i]));
  }
}

TEST(RulesElementwise, CopiesKeepOrChangeLayoutAndDtype) {
  const std::vector<std::pair<std::string, Function>> copies = {
      {"clone", [](const auto& x) { return x.clone(); }},
      {"contiguous", [](const auto& x) { return x.contiguous(); }},
      {"clone contiguous", [](const auto& x) { return x.clone(at::MemoryFormat::Contiguous); }},
      {"to double", [](const auto& x) { return x.to(at::kDouble); }},
      {"to the same", [](const auto& x) { return x.to(x.scalar_type()); }},
      {"to with copy", [](const auto& x) { return x.to(x.scalar_type(), false, true); }},
      {"copy_", [](const auto& x) { return at::empty(x.sizes(), x.options().dtype(at::kHalf)).copy_(x); }},
      {"empty_like", [](const auto& x) { return at::empty_like(x); }},
      {"zeros_like", [](const auto& x) { return at::zeros_like(x, at::kInt); }},
      {"new_ones",
       [](const auto& x) {
         return x.new_ones({2, 2});
       }},
      {"detach", [](const auto& x) { return x.detach(); }},
      {"alias", [](const auto& x) { return at::alias(x); }},
  };
  for (const auto& [name, function] : copies) {
    for (const auto& x : layouts(at::kFloat))
      expect_like_eager(apply(function), {x}, {.gradients = true, .note = name});
  }
  const Tensors image{at::ones({2, 3, 4, 5})};
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].to(at::MemoryFormat::ChannelsLast)}; }, image,
                    {.gradients = true});
  expect_like_eager(
      [](const Tensors& t) { return Tensors{t[0].contiguous(at::MemoryFormat::ChannelsLast).contiguous()}; }, image,
      {.gradients = true});
}

}  // namespace
}  // namespace shadowgraph::testing
