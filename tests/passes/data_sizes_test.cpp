// Data-dependent sizes given as hints: named, shared between calls on the same contents, recorded, re-run and fitted
// like other sizes.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/shapes.h"
#include "shadowgraph/passes/symbolic.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(DataSizes, SaysWhichHintIsMissing) {
  const FakeTensorMode mode;
  const at::Tensor x = at::empty({4, 3});
  EXPECT_THAT([&] { (void)x.nonzero(); }, ThrowsMessage<DataDependentError>(::testing::AllOf(
                                              HasSubstr("aten::nonzero"), HasSubstr("{\"nonzero0\": n}"))));
  EXPECT_THAT([&] { (void)at::_unique2(x); }, ThrowsMessage<DataDependentError>(HasSubstr("unique0")));
}

// Shapes, dtypes and strides equal eager's when the data has the hinted size.
TEST(DataSizes, ResultsAreAsEagerGivesThem) {
  at::manual_seed(8);
  const at::Tensor x = at::randint(0, 4, {5, 6}, at::kLong);
  const at::Tensor mask = at::gt(x, 1);
  using Call = std::function<Tensors(const at::Tensor&, const at::Tensor&)>;
  const auto three = [](const std::tuple<at::Tensor, at::Tensor, at::Tensor>& t) {
    return Tensors{std::get<0>(t), std::get<1>(t), std::get<2>(t)};
  };
  const std::vector<Call> calls = {
      [](const auto& x, const auto& mask) { return Tensors{mask.nonzero()}; },
      [](const auto& x, const auto& mask) { return Tensors{x.masked_select(mask)}; },
      [](const auto& x, const auto& mask) { return Tensors{x.index({mask})}; },
      [](const auto& x, const auto& mask) { return Tensors{x.index({mask.select(1, 0)})}; },
      [&](const auto& x, const auto& mask) { return three(at::_unique2(x, true, true, true)); },
      [&](const auto& x, const auto& mask) { return three(at::_unique2(x, true, false, false)); },
      [&](const auto& x, const auto& mask) { return three(at::unique_consecutive(x, true, true)); },
      [&](const auto& x, const auto& mask) { return three(at::unique_dim(x, 0, true, true, true)); },
      [](const auto& x, const auto& mask) { return Tensors{at::bincount(x.flatten())}; },
      [](const auto& x, const auto& mask) { return mask.nonzero_numpy(); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    const Tensors eager = calls[i](x, mask);
    // The size found by eager, under every name that the call may look up.
    const int64_t size = i == 2 ? mask.sum().item<int64_t>() : eager[0].size(0);
    NamedDataSizes hints;
    for (const char* name : {"nonzero0", "unique0", "unique_consecutive0", "unique_of_dim0_0", "bincount0"}) {
      hints.emplace(name, size);
    }
    FakeTensorMode mode({.data_sizes = hints});
    const Tensors fake = calls[i](mode.from_real(x), mode.from_real(mask));
    ASSERT_EQ(fake.size(), eager.size());
    for (size_t j = 0; j < fake.size(); ++j) {
      EXPECT_EQ(fake[j].sizes(), eager[j].sizes());
      EXPECT_EQ(fake[j].strides(), eager[j].strides());
      EXPECT_EQ(fake[j].scalar_type(), eager[j].scalar_type());
    }
  }
}

TEST(DataSizes, TheSameContentsAreAskedOnce) {
  const FakeTensorMode mode({.data_sizes = {{"nonzero0", 7}, {"nonzero1", 2}, {"nonzero2", 5}}});
  const at::Tensor x = at::empty({4, 3});
  at::Tensor mask = at::empty({4, 3}, at::kBool);
  EXPECT_EQ(mask.nonzero().size(0), 7);
  EXPECT_EQ(x.masked_select(mask).size(0), 7);
  EXPECT_EQ(x.index({mask}).size(0), 7);
  EXPECT_EQ(mask.view({4, 3}).nonzero().size(0), 7) << "the same storage and geometry";
  EXPECT_EQ(at::empty({4, 3}, at::kBool).nonzero().size(0), 2) << "another tensor";
  mask.logical_not_();
  EXPECT_EQ(mask.nonzero().size(0), 5) << "written in between";
  EXPECT_EQ(mask.nonzero().size(0), 5);
}

TEST(DataSizes, RefusesSizesThatCannotBe) {
  const FakeTensorMode mode({.data_sizes = {{"nonzero0", 13}, {"nonzero1", -1}}});
  EXPECT_THAT([&] { (void)at::empty({4, 3}).nonzero(); }, ThrowsMessage<Error>(HasSubstr("0 to 12")));
  EXPECT_THROW((void)at::empty({4, 3}).nonzero(), Error);
}

Graph capture_kept(int64_t batch, int64_t kept) {
  const FakeTensorMode mode;
  return capture_forward(ProgramToCapture{.inputs = {at::empty({batch, 4}), at::empty({batch}, at::kBool)},
                                          .input_names = {"x", "mask"},
                                          .forward =
                                              [](const Tensors& in) {
                                                const at::Tensor rows = in[0].index({in[1]});
                                                return Tensors{rows.relu(), in[1].nonzero()};
                                              }},
                         {.mode = {.data_sizes = {{"nonzero0", kept}}}})
      .graph;
}

TEST(DataSizes, AreRecordedAndRunAgain) {
  Graph graph = capture_kept(8, 3);
  verify(graph);
  const std::string text = to_text(graph);
  EXPECT_THAT(text, HasSubstr("nonzero0 = 3"));
  EXPECT_EQ(first_difference(parse(text), graph), std::nullopt);
  EXPECT_FALSE(ShapePropagation::of(graph).apply(graph));
  EXPECT_EQ(to_text(graph), text);
  const auto shapes = ShapePropagation::of(graph, {.data_sizes = {{"nonzero0", 6}}});
  const Argument& output = graph.list(graph.arguments(graph.last())[0])[0];
  EXPECT_EQ(shapes.tensor(output.ref.value).sizes(), (at::IntArrayRef{6, 4}));
}

// Parsing only the leading digits would silently give another size.
TEST(DataSizes, RefusesRecordedOnesThatAreNoSizes) {
  const auto with_size = [](const std::string& size) {
    std::string text = to_text(capture_kept(8, 3));
    const std::string recorded = "nonzero0 = 3";
    text.replace(text.find(recorded), recorded.size(), "nonzero0 = " + size);
    return parse(text);
  };
  EXPECT_NO_THROW((void)ShapePropagation::of(with_size("4")));
  for (const char* size : {"1.5", "3x", "-1", "", "99999999999999999999", "true"}) {
    SCOPED_TRACE(size);
    EXPECT_THAT(
        [&] { (void)ShapePropagation::of(with_size(size)); },
        ThrowsMessage<Error>(HasSubstr(std::string("nonzero0 = ") + size + "\"; expected a non-negative size")));
  }
}

TEST(DataSizes, AreOneMoreNamedDimension) {
  std::vector<SizedGraph> captures;
  for (const int64_t batch : {8, 9, 11}) {
    for (const int64_t kept : {2, 3, 5})
      captures.push_back({{{"batch", batch}, {"kept", kept}}, capture_kept(batch, kept)});
  }
  const SymbolicGraph symbolic = SymbolicGraph::fit(std::move(captures));
  EXPECT_THAT(symbolic.to_text(), HasSubstr("f32[kept,4]"));
  EXPECT_EQ(symbolic.difference_from({{"batch", 100}, {"kept", 42}}, capture_kept(100, 42)), std::nullopt);
}

}  // namespace
}  // namespace shadowgraph
