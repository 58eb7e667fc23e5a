// Profiles exported to other formats, and findings in a profile.
#include "shadowgraph/profile/traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/step_time.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

// Splits each line into fields, with quotes as in RFC 4180.
std::vector<std::vector<std::string>> lines_of(const std::string& csv) {
  std::vector<std::vector<std::string>> lines(1, std::vector<std::string>(1));
  bool quoted = false;
  for (size_t i = 0; i < csv.size(); ++i) {
    const char c = csv[i];
    if (quoted && c == '"' && i + 1 < csv.size() && csv[i + 1] == '"') {
      lines.back().back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      lines.back().emplace_back();
    } else if (c == '\n' && !quoted) {
      lines.emplace_back(1);
    } else {
      lines.back().back() += c;
    }
  }
  lines.pop_back();
  return lines;
}

// relu(x @ w) with its backward, in a module whose name needs quotes.
struct Step {
  TestGraph t;
  TestGraph::Call x, w, mm, relu, grad;
  Step() {
    t.device = c10::Device("cuda:0");
    t.graph.metadata.device = t.device;
    t.graph.metadata.mode = ProgramMode::kTrain;
    x = t.input("x", {64, 32});
    w = t.parameter("w", {32, 16});
    {
      const auto scope = t.module("a,\"b\"", "Net");
      mm = t.call("aten::mm", {x, w}, {{64, 16}});
      relu = t.call("aten::relu", {mm}, {{64, 16}});
    }
    t.phase = Graph::kBackward;
    grad = t.call("aten::threshold_backward", {relu, relu, Argument::of_int(0)}, {{64, 16}}, relu.node);
    t.save(relu.node, {relu.value()});
    t.free_after(relu.node, {t.storage(mm)});
    t.free_after(grad.node, {t.storage(relu)});
    t.output({grad});
  }
};

TEST(Traces, NodesAsLines) {
  const Step step;
  const DeviceSpec spec = DeviceSpec::named("h100");
  const auto lines = lines_of(nodes_csv(profile(step.t.graph, {.spec = &spec})));
  ASSERT_EQ(lines.size(), 1 + step.t.graph.node_count());
  const auto at = [&](size_t line, const std::string& name) {
    const auto found = std::find(lines[0].begin(), lines[0].end(), name);
    return lines[line].at(static_cast<size_t>(found - lines[0].begin()));
  };
  for (const auto& line : lines) EXPECT_EQ(line.size(), lines[0].size());
  EXPECT_EQ(at(3, "op"), "aten::mm");
  EXPECT_EQ(at(3, "module"), "a,\"b\"");
  EXPECT_EQ(at(3, "matmul_flops"), std::to_string(2 * 64 * 32 * 16));
  EXPECT_EQ(at(3, "read_bytes"), std::to_string(4 * (64 * 32 + 32 * 16)));
  EXPECT_EQ(at(3, "allocated_bytes"), "4096");
  EXPECT_EQ(at(4, "freed_bytes"), "4096");
  EXPECT_EQ(at(5, "forward"), "3");
  EXPECT_EQ(at(3, "scratch"), "rule");
  EXPECT_GT(std::stod(at(3, "seconds")), 0);
  // relu's row has its backward's values; the backward's own row leaves these fields empty.
  EXPECT_EQ(at(4, "backward_moved_bytes"), std::to_string(2 * 4096));
  EXPECT_EQ(std::stod(at(4, "backward_seconds")), std::stod(at(5, "seconds")));
  EXPECT_EQ(at(3, "backward_moved_bytes"), "0");
  EXPECT_EQ(at(5, "backward_moved_bytes"), "");
}

TEST(Traces, StoragesAsLinesWithTheirLives) {
  const Step step;
  const auto lines = lines_of(storages_csv(profile(step.t.graph)));
  ASSERT_EQ(lines.size(), 1 + step.t.graph.storage_count());
  // storage, kind, device, bytes, born, first_use, last_forward_use, first_backward_use, last_use, freed
  const auto head = [&](size_t i) { return std::vector<std::string>(lines[i].begin(), lines[i].begin() + 10); };
  EXPECT_EQ(head(1), (std::vector<std::string>{"0", "input", "cuda:0", "8192", "0", "2", "2", "", "2", ""}));
  EXPECT_EQ(head(4), (std::vector<std::string>{"3", "activation", "cuda:0", "4096", "3", "4", "", "4", "4", "4"}));
  const auto tail = [&](size_t i) { return std::vector<std::string>(lines[i].end() - 2, lines[i].end()); };
  EXPECT_EQ(tail(4), (std::vector<std::string>{"autograd, saved at 3", "yes"}));
  EXPECT_EQ(tail(2), (std::vector<std::string>{"parameter", "yes"}));
  EXPECT_EQ(tail(3), (std::vector<std::string>{"", "yes"}));
  EXPECT_EQ(tail(5), (std::vector<std::string>{"output", ""})) << "the peak is at relu";
}

TEST(Traces, TheChromeTraceHasKernelsModulesAndCounters) {
  const Step step;
  const DeviceSpec spec = DeviceSpec::named("h100");
  const Profile costs = profile(step.t.graph, {.spec = &spec});
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(costs));
  std::map<std::string, int> phases;
  double end = 0;
  double kernels = 0;
  for (const auto& event : trace["traceEvents"]) {
    ++phases[event["ph"].get<std::string>()];
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["dur"].get<double>(), 0);
    if (event["tid"] == 3) {
      EXPECT_GE(event["ts"].get<double>(), end - 1e-9) << "kernels overlap";
      end = event["ts"].get<double>() + event["dur"].get<double>();
      kernels += event["dur"].get<double>();
    }
  }
  EXPECT_NEAR(end, costs.time()->seconds() * 1e6, 1e-6);
  EXPECT_NEAR(kernels, costs.time()->busy() * 1e6, 1e-6);
  EXPECT_GE(phases["C"], 3);
  EXPECT_THAT(trace.dump(), HasSubstr("estimated for NVIDIA H100"));
  EXPECT_THAT(chrome_trace(profile(step.t.graph)), HasSubstr("every node takes 1 us"));
}

// Two modules in turns, each with a path of 40,000 bytes.
TEST(Traces, LongModulePathsAreCut) {
  std::string text = "shadowgraph 1 libtorch 2.13.0\noperator aten::relu(Tensor self) -> Tensor\ns0 = 4 cpu input\n";
  constexpr int kNodes = 50;
  for (int i = 1; i <= kNodes; ++i) text += "s" + std::to_string(i) + " = 4 cpu activation\n";
  for (const char* part : {"a", "b"}) {
    text += std::string("r") + (*part == 'a' ? "1" : "2") + " = module \"" + part;
    for (int i = 0; i < 20'000; ++i) text += std::string(".") + part;
    text += "\" \"M\" call 0 in r0\n";
  }
  text += "n0: %0 = sg::input(name=\"x\") : f32[1] @s0\n";
  for (int i = 1; i <= kNodes; ++i) {
    const std::string n = std::to_string(i);
    text += "n" + n + ": %" + n + " = aten::relu(self=%" + std::to_string(i - 1) + ") : f32[1] @s" + n + " | r" +
            std::to_string(1 + i % 2) + "\n";
  }
  text += "n" + std::to_string(kNodes + 1) + ": sg::output(values=[%" + std::to_string(kNodes) + "])\n";
  const Graph graph = parse(text);
  const Profile costs = profile(graph);
  const std::string trace = chrome_trace(costs);
  EXPECT_LT(trace.size(), kNodes * 20'000U);
  EXPECT_GT(nlohmann::json::parse(trace)["traceEvents"].size(), 10U * kNodes);
  EXPECT_LT(nodes_csv(costs).size(), kNodes * 2'000U);
}

TEST(Traces, ModelExplorerHasEveryNodeAndEdge) {
  const Step step;
  const nlohmann::json nodes = model_explorer(profile(step.t.graph))["graphs"][0]["nodes"];
  ASSERT_EQ(nodes.size(), step.t.graph.node_count());
  EXPECT_EQ(nodes[2]["label"], "aten::mm");
  EXPECT_EQ(nodes[2]["namespace"], "forward/a,\"b\"");
  ASSERT_EQ(nodes[2]["incomingEdges"].size(), 2u);
  EXPECT_EQ(nodes[2]["incomingEdges"][1]["sourceNodeId"], "1");
  EXPECT_EQ(nodes[2]["outputsMetadata"][0]["attrs"][0]["value"], "f32[64,16]");
}

TEST(Traces, ASnapshotIsAPickleOfTwoKindsOfEvents) {
  const Step step;
  const std::string pickle = memory_snapshot(profile(step.t.graph));
  EXPECT_TRUE(pickle.starts_with("\x80\x02}("));
  EXPECT_TRUE(pickle.ends_with("u."));
  for (const char* word : {"segments", "device_traces", "segment_alloc", "free_completed", "aten::mm"}) {
    EXPECT_THAT(pickle, HasSubstr(word));
  }
}

// A pickled 4-byte integer follows its key; with a single stream, allocated equals active.
TEST(Traces, ASnapshotsSegmentsSayWhatIsAllocated) {
  const Step step;
  const std::string pickle = memory_snapshot(profile(step.t.graph));
  const auto numbers_after = [&](const std::string& key) {
    std::vector<int64_t> numbers;
    for (size_t at = pickle.find(key); at != std::string::npos; at = pickle.find(key, at + 1)) {
      EXPECT_EQ(pickle.at(at + key.size()), 'J');
      int64_t number = 0;
      for (size_t i = 0; i < 4; ++i) {
        number |= int64_t{static_cast<unsigned char>(pickle.at(at + key.size() + 1 + i))} << (8 * i);
      }
      numbers.push_back(number);
    }
    return numbers;
  };
  const std::vector<int64_t> allocated = numbers_after("allocated_size");
  ASSERT_FALSE(allocated.empty());
  EXPECT_EQ(allocated, numbers_after("active_size"));
  EXPECT_GT(*std::max_element(allocated.begin(), allocated.end()), 0);
}

// ---- Findings

TEST(Findings, LogitsThatAreKeptTwice) {
  TestGraph t;
  t.device = c10::Device("cuda:0");
  t.graph.metadata.device = t.device;
  const auto x = t.input("x", {512, 16});
  const auto logits = t.call("aten::relu", {x}, {{512, 50000}});
  const auto probabilities = t.call("aten::relu", {logits}, {{512, 50000}});
  t.output({logits, probabilities});
  const auto found = findings(profile(t.graph));
  EXPECT_THAT(found, Contains(Field(&Finding::name, "logits")));
  EXPECT_THAT(to_text(found), HasSubstr("2 tensors of 512 x 50000"));
}

TEST(Findings, AStepThatWaitsForTheHost) {
  TestGraph t;
  t.device = c10::Device("cuda:0");
  t.graph.metadata.device = t.device;
  auto x = t.input("x", {4});
  for (int i = 0; i < 30; ++i) x = t.call("aten::relu", {x}, {{4}});
  const DeviceSpec spec = DeviceSpec::named("h100");
  const Profile costs = profile(t.graph, {.spec = &spec});
  const auto found = findings(costs);
  ASSERT_THAT(found, Contains(Field(&Finding::name, "launch-bound")));
  EXPECT_THAT(to_text(found), HasSubstr("30 kernels, many shorter than their launch"));
  EXPECT_TRUE(findings(profile(t.graph)).empty()) << "without times there are no findings about waiting";
}

// A copy of a gigabyte between two calls: its time could be saved.
TEST(Findings, CopiesBetweenLayouts) {
  TestGraph t;
  t.device = c10::Device("cuda:0");
  t.graph.metadata.device = t.device;
  const auto x = t.input("x", {1 << 28});
  const auto copy = t.call("aten::clone", {x}, {{1 << 28}});
  t.output({t.call("aten::relu", {copy}, {{1 << 28}})});
  const DeviceSpec spec = DeviceSpec::named("h100");
  const Profile costs = profile(t.graph, {.spec = &spec});
  for (const Finding& finding : findings(costs)) {
    if (finding.name != "layout-copies") continue;
    EXPECT_EQ(finding.seconds, costs.time()->of(copy.node).seconds);
    EXPECT_GT(finding.seconds, 0);
    EXPECT_THAT(finding.seen, HasSubstr("1 copies move 2.00 GiB of 4.00 GiB (50 %)"));
    return;
  }
  ADD_FAILURE() << to_text(findings(costs));
}

TEST(Findings, ASmallGraphHasNone) {
  const Step step;
  EXPECT_TRUE(findings(profile(step.t.graph)).empty());
}

}  // namespace
}  // namespace shadowgraph
