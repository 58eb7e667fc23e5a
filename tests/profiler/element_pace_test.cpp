// Per-element cost of GPU kernels, independent of bytes: hand-computed sums. bench/gpu compares it with an H100.
#include <gtest/gtest.h>

#include <array>

#include "profiler/time/kernel_work.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/step_time.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using K = KernelClass;

Argument whole(int64_t number) { return Argument::of_int(number); }
Argument flag(bool value) { return Argument::of_bool(value); }

class Paces : public ::testing::Test {
 protected:
  // A value with the same elements in another dimension order.
  ValueId turned(const TestGraph::Call& call, std::vector<int64_t> sizes, std::vector<int64_t> strides,
                 c10::ScalarType dtype = c10::kFloat) {
    const auto view = t.call("aten::alias", {call}, {});
    return t.graph.add_tensor_result(view.node, {.dtype = dtype,
                                                 .sizes = sizes,
                                                 .strides = strides,
                                                 .storage = t.graph.value(call.value()).storage,
                                                 .device = t.device});
  }
  ElementWork work(const TestGraph::Call& call, K kind) const {
    return ElementWorks(t.graph).of(call.node, kind, Traffic::of(t.graph).of(call.node));
  }
  double seconds(const TestGraph::Call& call, K kind) const { return work(call, kind).seconds; }
  double bytes(const TestGraph::Call& call, K kind) const {
    return static_cast<double>(Traffic::of(t.graph).of(call.node).total()) + work(call, kind).again;
  }
  TestGraph t;
};

TEST_F(Paces, SidesThatLieAlikeAreMovedInWholeVectors) {
  const auto x = t.input("x", {64, 128});
  EXPECT_EQ(seconds(t.call("aten::clone", {x}, {{64, 128}}), K::kCopy), 0);
  EXPECT_EQ(seconds(t.call("aten::add.Tensor", {x, x, whole(1)}, {{64, 128}}), K::kPointwise), 0);
  const auto across = turned(x, {128, 64}, {1, 128});
  const double transposed = seconds(t.call("aten::clone", {Argument::of_value(across)}, {{128, 64}}), K::kCopy);
  EXPECT_DOUBLE_EQ(transposed, 132 * 64 * 128 / 125e9);
  const auto heads = turned(x, {4, 16, 128}, {128, 512, 1});
  const double apart = seconds(t.call("aten::clone", {Argument::of_value(heads)}, {{4, 16, 128}}), K::kCopy);
  EXPECT_DOUBLE_EQ(apart, 132 * 64 * 128 / 350e9) << "both have the same innermost dimension";
}

TEST_F(Paces, BroadcastsAndWideCastsGoByElement) {
  const auto x = t.input("x", {64, 128});
  const auto row = t.input("row", {128});
  const auto one = t.input("one", {1});
  EXPECT_GT(seconds(t.call("aten::mul.Tensor", {x, row}, {{64, 128}}), K::kPointwise), 0);
  EXPECT_EQ(seconds(t.call("aten::mul.Tensor", {x, one}, {{64, 128}}), K::kPointwise), 0);
  const auto narrow = turned(x, {64, 128}, {128, 1}, c10::kBFloat16);
  EXPECT_GT(seconds(t.call("aten::_to_copy", {Argument::of_value(narrow)}, {{64, 128}}), K::kCopy), 0);
  t.dtype = c10::kBFloat16;
  EXPECT_EQ(seconds(t.call("aten::_to_copy", {x}, {{64, 128}}), K::kCopy), 0) << "cast from wide to narrow";
}

TEST_F(Paces, ShortPiecesOfCatAreSlow) {
  const auto x = t.input("x", {512, 64});
  const std::array pair = {Argument(x), Argument(x)};
  EXPECT_DOUBLE_EQ(seconds(t.call("aten::cat", {t.graph.make_list(pair), whole(1)}, {{512, 128}}), K::kCopy),
                   132 * 512 * 128 / 250e9);
  EXPECT_EQ(seconds(t.call("aten::cat", {t.graph.make_list(pair), whole(0)}, {{1024, 64}}), K::kCopy), 0);
}

TEST_F(Paces, WideRowsOfSoftmaxAreReadTwice) {
  const auto wide = t.input("wide", {16, 2048});
  const auto small = t.input("small", {32, 1024});
  const auto of_wide = t.call("aten::_softmax", {wide, whole(1), flag(false)}, {{16, 2048}});
  const auto of_small = t.call("aten::_softmax", {small, whole(1), flag(false)}, {{32, 1024}});
  EXPECT_EQ(bytes(of_wide, K::kSoftmax), 3 * 4 * 16 * 2048);
  EXPECT_EQ(bytes(of_small, K::kSoftmax), 2 * 4 * 32 * 1024);
  EXPECT_GT(seconds(of_wide, K::kSoftmax), 0);
  EXPECT_EQ(seconds(of_small, K::kSoftmax), 0);
  const auto back = t.call("aten::_softmax_backward_data", {small, of_small, whole(1), whole(6)}, {{32, 1024}});
  const auto log = t.call("aten::_log_softmax_backward_data", {small, of_small, whole(1), whole(6)}, {{32, 1024}});
  EXPECT_EQ(bytes(back, K::kSoftmax), 2 * bytes(log, K::kSoftmax)) << "includes a separate multiplication";
}

TEST_F(Paces, NormsTakeTheirRowsAndReadTwiceBackward) {
  const auto x = t.input("x", {1000, 8});
  const std::array eight = {int64_t{8}};
  const Argument shape = t.graph.int_list(eight);
  const auto norm = t.call("aten::native_layer_norm", {x, shape, Argument::none(), Argument::none()},
                           {{1000, 8}, {1000, 1}, {1000, 1}});
  EXPECT_DOUBLE_EQ(seconds(norm, K::kNormalization), 132 * 1000 / 0.9e9);
  const auto traffic = Traffic::of(t.graph).of(norm.node);
  EXPECT_EQ(bytes(norm, K::kNormalization), traffic.total());
  const auto back = t.call("aten::native_layer_norm_backward", {x, x, shape}, {{1000, 8}});
  const auto moved = Traffic::of(t.graph).of(back.node);
  EXPECT_EQ(bytes(back, K::kNormalization), 2 * moved.read + moved.written);
}

TEST_F(Paces, ScattersMoveTheirRowsNotTheTable) {
  const auto table = t.input("table", {100000, 16});
  const auto rows = t.input("rows", {10, 16});
  t.dtype = c10::kLong;
  const auto index = t.input("index", {10});
  t.dtype = c10::kFloat;
  const auto added = t.view("aten::index_add_", {table, whole(0), index, rows, whole(1)}, table.value(), {100000, 16});
  EXPECT_EQ(bytes(added, K::kScatter), 3 * 4 * 10 * 16);
  EXPECT_DOUBLE_EQ(seconds(added, K::kScatter), 132 * 160 / 200e9);
  const auto back =
      t.call("aten::embedding_dense_backward", {rows, index, whole(100000), whole(-1), flag(false)}, {{100000, 16}});
  EXPECT_DOUBLE_EQ(seconds(back, K::kScatter), 132 * 160 / 75e9) << "the gradient's elements, not the table's";
}

class Convolutions : public Paces {
 protected:
  TestGraph::Call convolution(Argument x, const TestGraph::Call& weight, int64_t groups,
                              const std::vector<int64_t>& out) {
    const std::array ones = {int64_t{1}, int64_t{1}};
    const Argument one = t.graph.int_list(ones);
    return t.call("aten::convolution", {x, weight, Argument::none(), one, one, one, flag(false), one, whole(groups)},
                  {out});
  }
};

TEST_F(Convolutions, AreLaidOutAnewUnlessChannelsAreLast) {
  const auto x = t.input("x", {2, 16, 8, 8});
  const auto weight = t.input("weight", {32, 16, 3, 3});
  const double elements = 2 * 16 * 64 + 32 * 16 * 9 + 2 * 32 * 64;
  EXPECT_DOUBLE_EQ(work(convolution(x, weight, 1, {2, 32, 8, 8}), K::kConvolution).more, 132 * elements / 300e9);
  const auto last = Argument::of_value(turned(x, {2, 16, 8, 8}, {1024, 1, 128, 16}));
  EXPECT_EQ(work(convolution(last, weight, 1, {2, 32, 8, 8}), K::kConvolution).more, 0);
}

TEST_F(Convolutions, OfAChannelAGroupGoByTheirWindows) {
  const auto x = t.input("x", {2, 16, 8, 8});
  const auto weight = t.input("weight", {16, 1, 7, 7});
  const auto call = convolution(x, weight, 16, {2, 16, 8, 8});
  EXPECT_DOUBLE_EQ(seconds(call, K::kDepthwiseConvolution), 132 * (2 * 16 * 64 * 49) / 1.4e12);
  const auto last = Argument::of_value(turned(x, {2, 16, 8, 8}, {1024, 1, 128, 16}));
  EXPECT_DOUBLE_EQ(seconds(convolution(last, weight, 16, {2, 16, 8, 8}), K::kDepthwiseConvolution),
                   132 * (2 * 16 * 64 * 49) / 6.5e12);
}

TEST_F(Convolutions, OfThreeChannelsDoWithoutTensorCores) {
  const auto image = t.input("image", {8, 3, 64, 64});
  const auto full = t.input("full", {8, 4, 64, 64});
  const auto ragged = convolution(image, t.input("w3", {64, 3, 3, 3}), 1, {8, 64, 64, 64});
  const auto aligned = convolution(full, t.input("w4", {64, 4, 3, 3}), 1, {8, 64, 64, 64});
  const StepTime time = StepTime::of(t.graph, DeviceSpec::named("h100"));
  EXPECT_NEAR(time.of(ragged.node).compute, 2.0 * 8 * 64 * 64 * 64 * 27 / (0.45 * 66.9e12), 1e-7);
  EXPECT_LT(time.of(aligned.node).compute, time.of(ragged.node).compute / 3);
}

TEST_F(Paces, StepsOfRecurrentLayersFollowEachOther) {
  const auto x = t.input("x", {4, 50, 8});
  const TargetId rnn = t.graph.intern_operator("aten::_cudnn_rnn");
  const auto& signature = t.graph.target(rnn).signature().arguments;
  std::vector<Argument> given(signature.size());
  for (size_t i = 0; i < signature.size(); ++i) {
    if (signature[i].name == "input") given[i] = x;
    if (signature[i].name == "num_layers") given[i] = whole(3);
    if (signature[i].name == "batch_first") given[i] = flag(true);
    if (signature[i].name == "bidirectional") given[i] = flag(true);
  }
  const auto call = t.call("aten::_cudnn_rnn", given, {{4, 50, 16}});
  EXPECT_DOUBLE_EQ(work(call, K::kRecurrent).steps, 50 * 3 * 2 * 10e-6);
}

TEST_F(Paces, NormsOfBatchesHaveTheirOwnWhereTheyTrain) {
  const auto x = t.input("x", {4, 8, 6, 6});
  const auto norm = [&](bool trains) {
    return t.call("aten::native_batch_norm",
                  {x, Argument::none(), Argument::none(), Argument::none(), Argument::none(), flag(trains),
                   Argument::of_float(0.1), Argument::of_float(1e-5)},
                  {{4, 8, 6, 6}, {8}, {8}});
  };
  EXPECT_DOUBLE_EQ(seconds(norm(true), K::kNormalization), 132 * (4 * 8 * 36) / 180e9);
  EXPECT_DOUBLE_EQ(seconds(norm(false), K::kNormalization), 132 * 8 / 0.9e9) << "as a norm of so many rows";
}

TEST_F(Paces, TopOfLongRowsIsQuickerByElement) {
  const auto top = [&](int64_t row) {
    const auto x = t.input("x", {16, row});
    return seconds(t.call("aten::topk", {x, whole(4), whole(-1), flag(true), flag(true)}, {{16, 4}, {16, 4}}),
                   K::kSort) /
           static_cast<double>(row);
  };
  EXPECT_DOUBLE_EQ(top(4096), 132 * 16 / 22e9);
  EXPECT_DOUBLE_EQ(top(8192), 132 * 16 / 74e9);
}

TEST_F(Paces, HoldForHopperAlone) {
  const auto x = t.input("x", {4096, 8192});
  const auto across = turned(x, {8192, 4096}, {1, 8192});
  const auto turned_copy = t.call("aten::clone", {Argument::of_value(across)}, {{8192, 4096}});
  const auto copy = t.call("aten::clone", {x}, {{4096, 8192}});
  const auto both = [&](const char* device) {
    const StepTime time = StepTime::of(t.graph, DeviceSpec::named(device));
    return std::pair(time.of(turned_copy.node).seconds, time.of(copy.node).seconds);
  };
  const auto [hopper_turned, hopper] = both("h100");
  EXPECT_GT(hopper_turned, 2 * hopper);
  const auto [ampere_turned, ampere] = both("a100");
  EXPECT_EQ(ampere_turned, ampere);
}

}  // namespace
}  // namespace shadowgraph
