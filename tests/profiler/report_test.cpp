// The module tree, the summary table and the report, for a small training step with repeated blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/profile.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;

void expect_golden(const std::string& text, const std::string& file) {
  const std::string path = std::string(SHADOWGRAPH_SOURCE_DIR) + "/tests/golden/profiler/" + file;
  if (std::getenv("UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream in(path);
  std::stringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(text, golden.str()) << path << "; UPDATE_GOLDEN=1 rewrites it";
}

// embed, then `blocks` times relu(linear(x)), then head. Each linear is t + mm inside the composite aten::linear.
struct Network {
  TestGraph t;
  struct Linear {
    TestGraph::Call weight, transposed, product;
  };
  std::vector<Linear> linears;

  explicit Network(int blocks) {
    std::vector<TestGraph::Call> weights;
    const auto x = t.input("tokens", {4, 8});
    for (int i = 0; i < blocks; ++i) {
      weights.push_back(t.parameter("layers." + std::to_string(i) + ".fc.weight", {8, 8}));
    }
    weights.push_back(t.parameter("head.weight", {2, 8}));
    auto at = x;
    {
      auto net = t.module("", "Net");
      for (int i = 0; i < blocks; ++i) {
        const std::string path = "layers." + std::to_string(i);
        auto block = t.module(path, "Block");
        {
          auto fc = t.module(path + ".fc", "Linear");
          at = linear(at, weights[static_cast<size_t>(i)], 8);
        }
        const auto relu = t.call("aten::relu", {at}, {{4, 8}});
        t.save(relu.node, {relu.value()});
        t.free_after(relu.node, {t.storage(at)});
        at = relu;
      }
      auto head = t.module("head", "Linear");
      at = linear(at, weights.back(), 2);
    }
    const auto loss = t.call("aten::sum", {at}, {{}});
    t.phase = Graph::kBackward;
    const auto ones = t.call("aten::ones_like", {loss}, {{}});
    auto gradient = t.view("aten::expand", {ones}, ones.value(), {4, 2}, loss.node);
    for (size_t i = linears.size(); i-- > 0;) {
      const Linear& fc = linears[i];
      const NodeId forward = fc.product.node;
      const int64_t out = t.graph.sizes(fc.weight.value())[0];
      const auto t_gradient = t.view("aten::t", {gradient}, gradient.value(), {out, 4}, forward);
      const auto grad_weight = t.call("aten::mm", {t_gradient, x}, {{out, 8}}, forward);
      t.gradient(fc.weight, grad_weight);
      if (i > 0) gradient = t.call("aten::mm", {gradient, fc.weight}, {{4, 8}}, forward);
    }
    t.output({loss});
    t.graph.metadata = {.model = "blocks", .mode = ProgramMode::kTrain, .device = c10::Device("cpu")};
  }

  TestGraph::Call linear(const TestGraph::Call& x, const TestGraph::Call& weight, int64_t out) {
    auto composite = t.composite("aten::linear");
    Linear made;
    made.weight = weight;
    made.transposed = t.view("aten::t", {weight}, weight.value(), {8, out});
    made.product = t.call("aten::mm", {x, made.transposed}, {{4, out}});
    t.save(made.product.node, {x.value(), made.transposed.value()});
    linears.push_back(made);
    return made.product;
  }
};

TEST(ModuleTree, PathsRegionsAndBackwardNodes) {
  const Network net(2);
  const Graph& graph = net.t.graph;
  const ModuleTree tree = ModuleTree::of(graph);
  std::vector<std::string> paths;
  for (const Module& module : tree.modules) paths.push_back(module.path);
  EXPECT_EQ(paths,
            (std::vector<std::string>{"", "layers", "layers.0", "layers.0.fc", "layers.1", "layers.1.fc", "head"}));
  EXPECT_EQ(tree.modules[0].class_name, "Net");
  EXPECT_EQ(tree.modules[1].class_name, "");  // a container without a region
  EXPECT_EQ(tree.modules[2].class_name, "Block");
  EXPECT_EQ(tree.modules[2].calls, 1U);
  EXPECT_EQ(module_path(graph, net.linears[1].product.node), "layers.1.fc");
  for (NodeId node : graph.nodes()) {
    if (graph.node(node).forward == net.linears[1].product.node) {
      EXPECT_EQ(module_path(graph, node), "layers.1.fc");
      EXPECT_EQ(tree.of_node(graph, node), 5U);
    }
  }
}

TEST(SummaryTable, FoldsRepeatedLayersAndAddsUp) {
  const Network net(4);
  const SummaryTable table = profile(net.t.graph).summary();
  // Blocks 1..3 are equal; block 0 differs, because its input requires no gradient.
  std::vector<std::string> ops;
  for (const SummaryRow& row : table.rows) ops.push_back(row.op);
  EXPECT_EQ(ops, (std::vector<std::string>{"(top level)", "layers.0", "layers.0.fc", "layers.{1..3}",
                                           "layers.{1..3}.fc", "head"}));
  EXPECT_EQ(table.rows[4].repeats, 3);
  EXPECT_EQ(table.rows[4].figures.forward_flops.matmul, 3 * 512);
  EXPECT_EQ(table.rows[4].figures.parameters, 3 * 256);

  GroupCosts sum;
  for (const SummaryRow& row : table.rows) sum.add_disjoint(row.figures);
  const Profile costs = profile(net.t.graph);
  // Four relu results of 4x8 floats.
  EXPECT_EQ(costs.saved.activations, 4 * 128);
  EXPECT_EQ(sum.incremental, 4 * 128);
  EXPECT_EQ(table.rows.back().accumulate, 4 * 128);
  // Four products of 2*4*8*8 and the head's 2*4*8*2; backward takes twice that, except that the first block's input
  // requires no gradient.
  EXPECT_EQ(sum.forward_flops.matmul, 4 * 512 + 128);
  EXPECT_EQ(sum.backward_flops.matmul, 2 * 128 + 2 * 4 * 512 - 512);
  EXPECT_EQ(costs.flops.at("forward").matmul, sum.forward_flops.matmul);
  EXPECT_EQ(costs.flops.at("backward").matmul, sum.backward_flops.matmul);
}

// Equal costs do not make layers equal: the diagram (tests/viz/view_model_test.cpp) also shows these separately.
TEST(SummaryTable, LayersWiredDifferentlyAreNotFolded) {
  TestGraph t;
  auto x = t.input("x", {4});
  for (int i = 0; i < 3; ++i) {
    auto scope = t.module("block." + std::to_string(i), "Block");
    const auto a = t.call("aten::relu", {x}, {{4}});
    const auto b = t.call("aten::neg", {a}, {{4}});
    x = i == 2 ? t.call("aten::sub.Tensor", {b, a, Argument::of_int(1)}, {{4}})
               : t.call("aten::sub.Tensor", {a, b, Argument::of_int(1)}, {{4}});
  }
  t.output({x});
  const SummaryTable table = profile(t.graph).summary();
  std::vector<std::string> ops;
  for (const SummaryRow& row : table.rows) ops.push_back(row.op);
  EXPECT_EQ(ops, (std::vector<std::string>{"block.{0..1}", "block.2"}));
}

TEST(SummaryTable, FiguresOfOneBlock) {
  const Network net(2);
  const SummaryTable table = profile(net.t.graph).summary({.depth = 2, .fold_repeats = false});
  ASSERT_EQ(table.rows.size(), 4U);
  const SummaryRow& block = table.rows[2];
  EXPECT_EQ(block.op, "layers.1");
  EXPECT_EQ(block.op_type, "Block");
  EXPECT_EQ(block.figures.forward_nodes, 3);     // t, mm, relu
  EXPECT_EQ(block.figures.incremental, 128);     // its relu's result: block 0's is charged to block 0
  EXPECT_EQ(block.figures.output, 128);          // relu's result, which the head uses
  EXPECT_EQ(block.figures.temporary, 128);       // mm's result, which is not saved
  EXPECT_EQ(block.figures.parameters, 256);      // 8*8 floats, used through t
  EXPECT_EQ(block.figures.backward, 256 + 128);  // weight's and input's gradient
  EXPECT_EQ(block.accumulate, 256);
}

TEST(SummaryTable, ByCallAndByOperator) {
  const Network net(2);
  const auto by_call = profile(net.t.graph).summary({.grouping = SummaryGrouping::kComposite});
  std::vector<std::string> ops;
  for (const SummaryRow& row : by_call.rows) ops.push_back(row.op);
  EXPECT_EQ(ops,
            (std::vector<std::string>{"layers.0.fc aten::linear", "layers.0 aten::relu", "layers.1.fc aten::linear",
                                      "layers.1 aten::relu", "head aten::linear", "aten::sum", "aten::ones_like"}));
  EXPECT_EQ(by_call.rows[0].op_type, "composite");
  EXPECT_EQ(by_call.rows[0].figures.forward_nodes, 2);
  const auto by_operator = profile(net.t.graph).summary({.grouping = SummaryGrouping::kOperator});
  ASSERT_EQ(by_operator.rows.size(), 4U);
  EXPECT_EQ(by_operator.rows[0].op, "aten::linear");
  EXPECT_EQ(by_operator.rows[0].repeats, 3);
  EXPECT_EQ(by_operator.rows[1].op, "aten::relu");
  EXPECT_EQ(by_operator.rows[1].repeats, 2);
}

TEST(SummaryTable, RowsBeyondTheLimitAreSummed) {
  const Network net(6);
  const auto all = profile(net.t.graph).summary({.grouping = SummaryGrouping::kComposite, .max_rows = 0});
  const auto cut = profile(net.t.graph).summary({.grouping = SummaryGrouping::kComposite, .max_rows = 5});
  ASSERT_EQ(cut.rows.size(), 5U);
  EXPECT_EQ(cut.left_out, all.rows.size() - 4);
  GroupCosts everything, shown;
  for (const SummaryRow& row : all.rows) everything.add_disjoint(row.figures);
  for (const SummaryRow& row : cut.rows) shown.add_disjoint(row.figures);
  EXPECT_EQ(shown, everything);
  EXPECT_EQ(cut.rows.back().accumulate, all.rows.back().accumulate);
}

TEST(SummaryTable, GoesAsDeepAsFits) {
  Network net(3);
  const Profile costs = profile(net.t.graph);
  const auto whole = costs.summary({.max_rows = 0, .fold_repeats = false});
  ASSERT_GT(whole.depth, 1);
  // Exactly the maximum number of rows does not reduce the depth.
  const auto exact = costs.summary({.max_rows = whole.rows.size(), .fold_repeats = false});
  EXPECT_EQ(exact.depth, whole.depth);
  EXPECT_EQ(exact.left_out, 0U);
  const auto fewer = costs.summary({.max_rows = whole.rows.size() - 1, .fold_repeats = false});
  EXPECT_LT(fewer.depth, whole.depth);
}

TEST(Report, Golden) {
  Network net(3);
  net.t.phase = Graph::kForward;
  net.t.call("aten::fft_fft", {net.linears[0].product}, {{4, 8}});
  const Profile costs = profile(net.t.graph, {.top_at_peak = 4});
  expect_golden(to_text(profile(net.t.graph).summary()) + "\n" + to_text(costs), "report.txt");
}

TEST(Report, Json) {
  Network net(2);
  Profile costs = profile(net.t.graph, {.timeline = true});
  costs.capture_seconds = 0.0125;
  const auto json = to_json(costs);
  EXPECT_EQ(json["model"], "blocks");
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["mode"], "train");
  EXPECT_EQ(json["capture_seconds"], 0.0125);
  EXPECT_EQ(json["nodes"], net.t.graph.node_count());
  EXPECT_EQ(json["parameters"], 2 * 64 + 16);
  EXPECT_EQ(json["parameter_bytes"], 4 * (2 * 64 + 16));
  EXPECT_EQ(json["flops"]["forward"], 2 * 512 + 128);
  EXPECT_EQ(json["flops"]["backward"], 2 * 128 + 2 * 2 * 512 - 512);
  EXPECT_EQ(json["flops"]["optimizer"], 0);
  EXPECT_EQ(json["elementwise_flops"]["forward"], 2 * 32 + 8);  // two relus and the sum of 4x2
  EXPECT_TRUE(json["uncovered_operators"].empty());
  EXPECT_EQ(json["saved_activation_bytes"], 2 * 128);
  EXPECT_EQ(json["saved_bytes"], 2 * 128 + 128 + 4 * (2 * 64 + 16));  // includes the input and the weights
  EXPECT_EQ(json["outputs"][0]["dtype"], "float32");
  EXPECT_EQ(json["outputs"][0]["shape"], nlohmann::json::array());
  EXPECT_EQ(json["outputs"][0]["device"], "cpu");
  EXPECT_EQ(json["operators"]["aten::relu"], 2);
  EXPECT_EQ(json["modules"]["class"], "Net");
  EXPECT_EQ(json["modules"]["children"][0]["children"][1]["path"], "layers.1");
  EXPECT_EQ(json["modules"]["flops"]["forward"], json["flops"]["forward"]);
  EXPECT_EQ(json["modules"]["saved_activation_bytes"], json["saved_activation_bytes"]);
  int64_t by_kind = 0;
  for (const auto& bytes : json["peak"]["by_kind"]) by_kind += bytes.get<int64_t>();
  EXPECT_EQ(by_kind, json["peak"]["bytes"]);
  EXPECT_DOUBLE_EQ(json["peak_activation_share"].get<double>() * json["peak"]["bytes"].get<double>(),
                   json["peak"]["by_kind"]["activation"].get<double>());
  // The peak belongs to a phase and to the module that runs then; each phase has its own peak.
  int64_t most = 0;
  for (const auto& [phase, peak] : costs.phase_peaks) {
    most = std::max(most, peak.bytes);
    EXPECT_EQ(peak.phase, phase);
    EXPECT_EQ(peak.bytes, costs.timeline().total(peak.node));
    EXPECT_EQ(json["phase_peaks"][phase]["bytes"], peak.bytes);
  }
  EXPECT_EQ(most, costs.peak.bytes);
  EXPECT_LT(costs.phase_peaks.at("forward").node, costs.phase_peaks.at("backward").node);
  EXPECT_EQ(json["modules"]["peak_bytes"], costs.peak.bytes);
  for (const ModuleProfile& module : costs.modules) {
    for (const uint32_t child : module.children) EXPECT_LE(costs.modules[child].peak, module.peak);
  }
  const auto totals = json["timeline"]["total"].get<std::vector<int64_t>>();
  EXPECT_EQ(totals.size(), json["nodes"]);
  EXPECT_EQ(*std::max_element(totals.begin(), totals.end()), json["peak"]["bytes"]);
  EXPECT_EQ(totals[json["peak"]["node"].get<size_t>()], json["peak"]["bytes"]);
}

TEST(Report, SaysWhatFlopCounterModeDoesNotCount) {
  TestGraph t;
  const auto matrix = t.input("matrix", {3, 4});
  const auto vector = t.input("vector", {4});
  const auto square = t.call("aten::mm", {matrix, t.input("other", {4, 4})}, {{3, 4}});
  t.output({square, t.call("aten::mv", {matrix, vector}, {{3}}), t.call("aten::mv", {square, vector}, {{3}})});
  EXPECT_THAT(to_text(profile(t.graph)),
              ::testing::HasSubstr("  48 of the matmul FLOPs are in operators that FlopCounterMode does not count\n"));
}

TEST(Report, UnknownIsAbsent) {
  TestGraph t;
  t.input("x", {2});
  const auto json = to_json(profile(t.graph));
  for (const char* key : {"model", "mode", "optimizer", "capture_seconds", "outputs", "timeline"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
  EXPECT_NO_THROW(to_json(profile(Graph())).dump());
  EXPECT_NO_THROW(to_text(profile(Graph())));
}

TEST(Report, MemoryIsThatOfTheAskedDevice) {
  TestGraph t;
  t.input("x", {4});  // 16 bytes on the CPU
  t.device = c10::Device(c10::DeviceType::CUDA, 0);
  const auto w = t.parameter("w", {100});
  t.output({w});
  t.graph.metadata.device = c10::Device("cuda");
  const auto json = to_json(profile(t.graph));
  EXPECT_EQ(json["device"], "cuda:0");
  EXPECT_EQ(json["peak"]["bytes"], 400);
  EXPECT_EQ(json["peak_rounded_bytes"], 512);
  EXPECT_EQ(json["other_devices"][0]["device"], "cpu");
  EXPECT_EQ(json["other_devices"][0]["peak_bytes"], 16);
  EXPECT_EQ(to_json(profile(t.graph, {.device = c10::Device("cpu")}))["peak"]["bytes"], 16);
}

TEST(Units, Human) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(int64_t{1} << 30), "1.00 GiB");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1.00 K");
  EXPECT_EQ(human_count(999'999), "1.00 M");  // never "1000.00 K"
  EXPECT_EQ(human_count(924'844'032), "924.84 M");
  EXPECT_EQ(exact_count(25'557'032), "25,557,032");
  EXPECT_EQ(exact_count(-1000), "-1,000");
  EXPECT_EQ(exact_count(100), "100");
  EXPECT_EQ(dtype_name(c10::ScalarType::BFloat16), "bfloat16");
}

// Without a requested device, the report is about the device with the most bytes.
TEST(Report, IsOfTheDeviceThatHoldsMost) {
  for (const int64_t elements : {10, 1000}) {
    TestGraph t;
    t.device = c10::Device("cpu");
    const auto x = t.input("x", {100});
    t.device = c10::Device("cuda:1");
    const auto y = t.call("aten::_to_copy", {x}, {{elements}});
    t.output({y});
    EXPECT_EQ(profile(t.graph).peak.bytes, 4 * std::max<int64_t>(elements, 100));
  }
}

TEST(Units, Seconds) {
  EXPECT_EQ(human_seconds(0), "0 s");
  EXPECT_EQ(human_seconds(2.5e-7), "0.25 us");
  EXPECT_EQ(human_seconds(9.99e-4), "999.00 us");
  EXPECT_EQ(human_seconds(2e-3), "2.00 ms");
  EXPECT_EQ(human_seconds(0.9), "900.00 ms");
  EXPECT_EQ(human_seconds(90), "90.00 s");
}

TEST(Units, NamesOfDtypesGoThereAndBack) {
  EXPECT_EQ(parse_dtype_name("float32"), c10::ScalarType::Float);
  EXPECT_EQ(parse_dtype_name("float8_e4m3fn"), c10::ScalarType::Float8_e4m3fn);
  EXPECT_EQ(parse_dtype_name("float"), std::nullopt);
  EXPECT_EQ(parse_dtype_name("undefined"), std::nullopt);
  EXPECT_EQ(parse_dtype_name(""), std::nullopt);
  for (int i = 0; i < static_cast<int>(c10::ScalarType::Undefined); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    EXPECT_EQ(parse_dtype_name(dtype_name(dtype)), dtype) << i;
  }
}

}  // namespace
}  // namespace shadowgraph
