// Matrix products and collectives split into pieces on four processes, with hand-computed times.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph::pieces_test {
namespace {

constexpr int64_t kRows = 512, kWidth = 128;
constexpr double kSecond = 2.0 * kWidth * kWidth * kWidth;  // 128 rows

at::Tensor run(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return stack[0].toTensor();
}
at::Tensor wait(const at::Tensor& x) { return run("_c10d_functional::wait_tensor", {x}); }

// A product of 4 s with an all-gather of its rows before it, or a reduce-scatter after it.
Graph program(bool gathers, const char* pieces) {
  FakeMesh mesh({{"tp", 4}});
  Capture session({.mode = {.device = at::kCUDA}});
  const at::Tensor w = at::empty({kWidth, kWidth});
  at::Tensor result;
  if (gathers) {
    const at::Tensor part = at::empty({kRows / 4, kWidth});
    result = wait(run("_c10d_functional::all_gather_into_tensor", {part, 4, "tp"})).mm(w);
  } else {
    const at::Tensor x = at::empty({kRows, kWidth});
    result = wait(run("_c10d_functional::reduce_scatter_tensor", {x.mm(w), "sum", 4, "tp"}));
  }
  Graph graph = session.finish({result});
  for (const NodeId node : graph.nodes()) {
    const std::string_view name = graph.target(node).name();
    const bool goes_so = name == "aten::mm" || name.ends_with("into_tensor") || name.ends_with("scatter_tensor");
    if (goes_so && *pieces != 0) graph.set_note(node, "pieces", pieces);
  }
  return graph;
}

// `product` and `sending`: seconds of the unsplit operations.
double seconds(const Graph& graph, double product, double sending) {
  DeviceSpec spec;
  spec.name = "products";
  spec.bandwidth = 1e30;
  spec.matmul = {{c10::kFloat, 4 * kSecond / product}};
  const Interconnect links{
      .name = "links",
      .title = "links",
      .base = 0,
      .device_share = 0,
      .levels = {{"wire", 0, 0, 3.0 * kRows * kWidth / sending}},  // sends three of four parts, 4 bytes per element
      .axes = {},
      .sources = {}};
  return OverlappedStep::of(graph, Communication::of(graph, {.interconnect = &links}), StepTime::of(graph, spec))
      .seconds();
}

constexpr double kNear = 1e-5;  // tolerance for three more kernel launches

TEST(Pieces, AProductOfWhatIsGatheredBeginsWithItsOwn) {
  const Graph whole = program(true, ""), parts = program(true, "4");
  EXPECT_NEAR(seconds(whole, 4, 3), 3 + 4, 1e-9);
  EXPECT_NEAR(seconds(parts, 4, 3), 4, kNear);        // each piece arrives before it is needed
  EXPECT_NEAR(seconds(parts, 2, 3), 3 + 0.5, kNear);  // the last piece of the product is exposed
  EXPECT_NEAR(seconds(parts, 8, 3), 8, kNear);
  EXPECT_GT(seconds(parts, 8, 3), 8);
}

TEST(Pieces, WhatIsScatteredLeavesWhileTheRestIsMade) {
  const Graph whole = program(false, ""), parts = program(false, "4");
  EXPECT_NEAR(seconds(whole, 4, 3), 4 + 3, 1e-9);
  EXPECT_NEAR(seconds(parts, 4, 3), 4, kNear);
  EXPECT_NEAR(seconds(parts, 4, 6), 1 + 6, kNear);  // the first piece of the product is exposed
  EXPECT_NEAR(seconds(parts, 8, 3), 8, kNear);
}

TEST(Pieces, FreeLinksLeaveAProductWhole) {
  for (const bool gathers : {true, false}) {
    const Graph parts = program(gathers, "4");
    const Communication communication = Communication::of(parts);
    DeviceSpec spec;
    spec.name = "products";
    spec.bandwidth = 1e30;
    spec.matmul = {{c10::kFloat, kSecond}};
    EXPECT_NEAR(OverlappedStep::of(parts, communication, StepTime::of(parts, spec)).compute(), 4, 1e-9);
  }
}

TEST(Pieces, ANoteThatIsNoNumberIsRefused) {
  EXPECT_THROW(seconds(program(true, "four"), 4, 3), Error);
  EXPECT_THROW(seconds(program(true, "0"), 4, 3), Error);
}

}  // namespace
}  // namespace shadowgraph::pieces_test
