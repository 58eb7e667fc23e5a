// Custom operators registered in one statement, and their profiles.
#include "shadowgraph/profile/register_operator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/library.h>
#include <torch/torch.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TORCH_LIBRARY(sg_own, library) {
  library.def("product(Tensor x, Tensor weight) -> Tensor");
  library.def("only_meta(Tensor x, int n) -> Tensor");
  library.def("costs_beside_meta(Tensor x) -> Tensor");
  library.def("twice(Tensor x) -> Tensor");
  library.def("unsure(Tensor x) -> Tensor");
}
// Returns [n] of the same dtype, registered as a PyTorch extension would.
TORCH_LIBRARY_IMPL(sg_own, Meta, library) {
  library.impl("only_meta", [](const at::Tensor& x, int64_t n) { return at::empty({n}, x.options()); });
  library.impl("costs_beside_meta", [](const at::Tensor& x) { return at::empty_like(x); });
  library.impl("unsure", [](const at::Tensor& x) { return at::empty_like(x); });
}

at::Tensor product_shape(const at::Tensor& x, const at::Tensor& weight) {
  return at::empty({x.size(0), weight.size(1)}, x.options());
}

// One statement each.
[[maybe_unused]] const bool kRegistered = [] {
  register_operator(
      "sg_own::product", &product_shape,
      {.flops = [](const OperandShapes& call) { return 2 * element_count(call.argument(0)) * call.shape(1)[1]; },
       .bytes =
           [](const OperandShapes& call) {
             return byte_count(call.argument(0)) + byte_count(call.argument(1)) + byte_count(call.result(0));
           },
       .scratch = [](const OperandShapes& call) { return 3 * byte_count(call.argument(0)); }});
  register_cost("sg_own::costs_beside_meta",
                {.scratch = [](const OperandShapes& call) { return byte_count(call.result(0)); }});
  register_cost("sg_own::unsure", {.flops = [](const OperandShapes& call) -> std::optional<int64_t> {
                  if (call.shape(0).empty()) throw std::runtime_error("no idea");
                  return std::nullopt;
                }});
  return true;
}();

template <class T>
using Passed = std::conditional_t<std::is_same_v<T, at::Tensor>, const at::Tensor&, T>;

template <class... Args>
at::Tensor call(const char* name, Args... args) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<at::Tensor(Passed<Args>...)>().call(args...);
}

Graph capture(const std::function<at::Tensor()>& program) {
  Capture session({.mode = {.device = at::kCUDA}});
  const at::Tensor result = program();
  return session.finish({result});
}

TEST(RegisterOperator, AllFourAreInTheProfile) {
  const Graph graph = capture([] {
    const at::Tensor x = at::empty({4, 6});
    const at::Tensor weight = at::empty({6, 5});
    return call("sg_own::product", x, weight);
  });
  const Profile costs = profile(graph);
  ASSERT_TRUE(costs.outputs);
  EXPECT_EQ(costs.outputs->at(0).shape, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(costs.outputs->at(0).device, c10::Device("cuda:0"));

  constexpr int64_t kFlops = 2 * 4 * 6 * 5;
  constexpr int64_t kBytes = (4 * 6 + 6 * 5 + 4 * 5) * 4;
  constexpr int64_t kScratch = 3 * 4 * 6 * 4;
  EXPECT_EQ(costs.flops.at("forward").matmul, kFlops);
  EXPECT_EQ(costs.flops.at("forward").beyond_pytorch, kFlops);
  EXPECT_TRUE(costs.uncovered.empty());
  EXPECT_EQ(costs.custom_operators,
            (std::vector<CustomOperatorCosts>{{"sg_own::product", 1, kFlops, kBytes, kScratch, 0}}));
  // x, weight and result are live there, plus the call's scratch memory.
  EXPECT_EQ(costs.peak.op, "sg_own::product");
  EXPECT_EQ(costs.peak.bytes, kBytes + kScratch);
  EXPECT_EQ(costs.peak_rounded_bytes, 4 * 512);
  EXPECT_THAT(to_text(costs), HasSubstr("sg_own::product"));
  EXPECT_EQ(to_json(costs)["custom_operators"][0]["scratch_bytes"], kScratch);
}

TEST(RegisterOperator, ScratchIsAliveAtItsNodeOnly) {
  const Graph graph = capture([] {
    const at::Tensor x = at::empty({128});
    return call("sg_own::costs_beside_meta", call("sg_own::costs_beside_meta", x)).exp();
  });
  const MemoryTimeline timeline = MemoryTimeline::of(graph);
  constexpr int64_t kTensor = 128 * 4;
  std::vector<int64_t> totals;
  for (uint32_t step = 0; step < timeline.steps(); ++step) totals.push_back(timeline.total(step));
  // empty: x. Each call: operands, result and as much scratch. exp: x and three results. Output: the last.
  EXPECT_EQ(totals, (std::vector<int64_t>{kTensor, 3 * kTensor, 4 * kTensor, 4 * kTensor, kTensor}));
}

TEST(RegisterOperator, AMetaKernelAloneIsEnough) {
  const Graph graph = capture([] { return call("sg_own::only_meta", at::Tensor(at::empty({2})), int64_t{7}); });
  const Profile costs = profile(graph);
  EXPECT_EQ(costs.outputs->at(0).shape, (std::vector<int64_t>{7}));
  EXPECT_EQ(costs.outputs->at(0).device, c10::Device("cuda:0"));
  EXPECT_TRUE(costs.custom_operators.empty());
  // Its FLOPs are unknown, which is reported.
  EXPECT_EQ(costs.uncovered, (std::vector<UncoveredOperator>{{"sg_own::only_meta", 1}}));
  EXPECT_THAT(to_text(costs), Not(HasSubstr("custom operators")));
}

TEST(RegisterOperator, AnswersThatAreMissingAreCounted) {
  const Graph graph = capture([] {
    call("sg_own::unsure", at::Tensor(at::empty({})));
    return call("sg_own::unsure", at::Tensor(at::empty({2})));
  });
  const Profile costs = profile(graph);
  EXPECT_EQ(costs.custom_operators, (std::vector<CustomOperatorCosts>{{"sg_own::unsure", 2, 0, 0, 0, 2}}));
  EXPECT_EQ(costs.uncovered, (std::vector<UncoveredOperator>{{"sg_own::unsure", 2}}));
}

TEST(RegisterOperator, OnceOnly) {
  const auto shape = +[](const at::Tensor& x) -> at::Tensor { return at::empty({1}, x.options()); };
  const auto other = +[](const at::Tensor& x) -> at::Tensor { return at::empty({2}, x.options()); };
  register_operator("sg_own::twice", shape);
  EXPECT_THAT([&] { register_operator("sg_own::twice", other); },
              ThrowsMessage<Error>(HasSubstr("sg_own::twice is registered already")));
  const FakeTensorMode mode;
  EXPECT_EQ(call("sg_own::twice", at::Tensor(at::empty({3}))).size(0), 1);  // the first registration wins
  for (const char* name : {"", "product", "::product", "sg_own::"}) {
    EXPECT_THAT([&] { register_cost(name, OperatorCosts()); },
                ThrowsMessage<Error>(HasSubstr("invalid operator name")));
  }
}

}  // namespace
}  // namespace shadowgraph
