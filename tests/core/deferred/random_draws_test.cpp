// Predicts how far random operators advance the CPU generator and compares with actual draws.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "core/deferred/random_streams.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph {
namespace {

struct Case {
  std::string name;
  std::function<at::Tensor()> draw;  // contains exactly one random node
  bool known = true;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<at::ScalarType> floating{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  const std::vector<std::vector<int64_t>> shapes{{},    {0},    {1},      {2},       {15},     {16},
                                                 {17},  {31},   {32},     {3, 5},    {4, 16},  {3, 11, 7},
                                                 {100}, {1000}, {625, 7}, {3000, 7}, {2, 0, 3}};
  for (const at::ScalarType dtype : floating) {
    for (const auto& shape : shapes) {
      const auto options = at::TensorOptions().dtype(dtype);
      const std::string what = c10::str(dtype, " ", c10::IntArrayRef(shape));
      all.push_back({"uniform_ " + what, [=] { return at::empty(shape, options).uniform_(-1, 2); }});
      all.push_back({"normal_ " + what, [=] { return at::empty(shape, options).normal_(1, 2); }});
      all.push_back({"rand " + what, [=] { return torch::rand(shape, options); }});
      all.push_back({"randn " + what, [=] { return torch::randn(shape, options); }});
      all.push_back({"random_ " + what, [=] { return at::empty(shape, options).random_(); }});
      all.push_back({"random_ to " + what, [=] { return at::empty(shape, options).random_(10); }});
      if (shape.size() > 1) {
        all.push_back(
            {"normal_ transposed " + what, [=] { return at::empty(shape, options).transpose(0, 1).normal_(); }});
        all.push_back(
            {"uniform_ transposed " + what, [=] { return at::empty(shape, options).transpose(0, 1).uniform_(); }});
      }
    }
  }
  for (const at::ScalarType dtype : {at::kLong, at::kInt, at::kShort, at::kByte, at::kChar, at::kBool}) {
    const auto options = at::TensorOptions().dtype(dtype);
    const std::string what = c10::toString(dtype);
    all.push_back({"random_ " + what, [=] { return at::empty({37}, options).random_(); }});
    if (dtype != at::kBool) {
      all.push_back({"random_ from " + what, [=] { return at::empty({37}, options).random_(3, 100); }});
      all.push_back({"randint " + what, [=] { return torch::randint(50, {4, 9}, options); }});
      all.push_back({"randint low " + what, [=] { return torch::randint(5, 50, {4, 9}, options); }});
    }
  }
  for (const int64_t range : {(int64_t{1} << 28) - 1, int64_t{1} << 28, int64_t{1} << 40}) {
    all.push_back({c10::str("random_ range ", range),
                   [=] { return at::empty({11}, at::TensorOptions().dtype(at::kLong)).random_(0, range); }});
    all.push_back({c10::str("randint range ", range), [=] { return torch::randint(range, {11}); }});
  }
  for (const int64_t n : {0, 1, 2, 17, 1000}) {
    all.push_back({c10::str("randperm ", n), [=] { return torch::randperm(n); }});
    all.push_back({c10::str("bernoulli_ ", n), [=] { return at::empty({n}).bernoulli_(0.3); }, n != 0});
    all.push_back(
        {c10::str("bernoulli_ f64 ", n), [=] { return at::empty({n}, at::kDouble).bernoulli_(0.3); }, n != 0});
    all.push_back({c10::str("exponential_ ", n), [=] { return at::empty({n}).exponential_(2); }, n != 0});
    all.push_back({c10::str("cauchy_ ", n), [=] { return at::empty({n}).cauchy_(0, 2); }, n != 0});
    all.push_back({c10::str("geometric_ ", n), [=] { return at::empty({n}).geometric_(0.4); }, n != 0});
  }
  all.push_back({"normal float_float", [] { return at::normal(1.0, 2.0, {5, 7}); }});
  all.push_back({"rand_like", [] { return at::rand_like(at::empty({5, 7})); }});
  all.push_back({"randn_like", [] { return at::randn_like(at::empty({5, 7})); }});
  all.push_back({"randint_like", [] { return at::randint_like(at::empty({5, 7}), 9); }});
  all.push_back({"log_normal_", [] { return at::empty({40}).log_normal_(); }, false});
  all.push_back({"poisson", [] { return at::poisson(at::ones({40})); }, false});
  all.push_back({"multinomial", [] { return at::multinomial(at::ones({40}), 3); }, false});
  return all;
}

TEST(RandomDraws, ConsumptionIsWhatTheOperatorTakes) {
  for (const Case& c : cases()) {
    Capture session;
    const at::Tensor fake = c.draw();
    const Graph graph = session.finish({fake});
    NodeId draw;
    for (const NodeId node : graph.nodes()) {
      if (graph.facts(node).random) draw = node;
    }
    ASSERT_TRUE(draw.valid()) << c.name;
    const Consumption consumption = consumption_of(graph, draw);
    EXPECT_EQ(consumption.is_known(), c.known) << c.name;
    if (!consumption.is_known()) continue;

    const UnfakeGuard real;
    const at::Generator& generator = at::detail::getDefaultCPUGenerator();
    // With and without a cached normal sample in the generator.
    for (const bool waiting : {false, true}) {
      torch::manual_seed(11);
      if (waiting) at::empty({3}).normal_();
      RandomState predicted = RandomState::of(generator);
      ASSERT_EQ(predicted.next_double.has_value(), waiting);
      skip(predicted, consumption);
      c.draw();
      EXPECT_TRUE(predicted == RandomState::of(generator)) << c.name << (waiting ? ", a sample waiting" : "");
    }
  }
}

TEST(RandomDraws, StatesGoThroughGeneratorsUnchanged) {
  const at::Generator a = at::detail::createCPUGenerator(5);
  at::empty({7}).normal_(0, 1, a);
  const at::Generator b = at::detail::createCPUGenerator(6);
  RandomState::of(a).put_into(b);
  EXPECT_TRUE(at::equal(a.get_state(), b.get_state()));
  EXPECT_TRUE(at::equal(at::empty({70}).normal_(0, 1, a), at::empty({70}).normal_(0, 1, b)));
}

}  // namespace
}  // namespace shadowgraph
