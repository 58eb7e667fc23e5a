// The HTML page: its data, no external requests, and escaping of all names.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <zlib.h>

#include "ir/records.h"
#include "ir/text/words.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "tests/profiler/test_graph.h"
#include "viz/page_data.h"

namespace shadowgraph {
namespace {

using nlohmann::json;
using shadowgraph::testing::TestGraph;

// Decodes the page's data as viz/page/src/container.ts does.
class PageReader {
 public:
  explicit PageReader(std::string bytes) : bytes_(std::move(bytes)) {
    EXPECT_EQ(bytes_.substr(0, 4), "SGPD");
    size_t length = 0;
    for (size_t i = 0; i < 4; ++i) length |= size_t{static_cast<unsigned char>(bytes_[4 + i])} << (8 * i);
    header = json::parse(bytes_.substr(8, length));
    base_ = 8 + length;
  }
  // Reads the block with this id.
  static PageReader of(const std::string& html, const std::string& id) { return PageReader(unpacked(html, id)); }
  static std::string unpacked(const std::string& html, const std::string& id) {
    const std::string start = "id=\"" + id + "\">";
    const size_t at = html.find(start);
    EXPECT_NE(at, html.npos) << id;
    const size_t from = at + start.size();
    const auto packed = parse_base64(std::string_view(html).substr(from, html.find('<', from) - from));
    EXPECT_TRUE(packed.has_value());
    std::string bytes(50'000'000, '\0');
    uLongf size = bytes.size();
    EXPECT_EQ(uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size, packed->data(), packed->size()), Z_OK);
    bytes.resize(size);
    return bytes;
  }
  std::vector<int64_t> column(const std::string& name) const {
    std::vector<int64_t> numbers;
    for (const json& entry : header["columns"]) {
      if (entry["name"] != name) continue;
      size_t at = base_ + entry["at"].get<size_t>();
      const size_t end = at + entry["bytes"].get<size_t>();
      int64_t last = 0;
      while (at < end) {
        uint64_t value = 0;
        for (int shift = 0;; shift += 7) {
          const auto byte = static_cast<unsigned char>(bytes_[at++]);
          value |= uint64_t{byte & 0x7FU} << shift;
          if (byte < 0x80) break;
        }
        if (entry["code"] == "d") {
          last += static_cast<int64_t>(value >> 1U) ^ -static_cast<int64_t>(value & 1U);
          numbers.push_back(last);
        } else {
          numbers.push_back(static_cast<int64_t>(value));
        }
      }
      EXPECT_EQ(numbers.size(), entry["count"].get<size_t>()) << name;
      return numbers;
    }
    ADD_FAILURE() << "no column " << name;
    return numbers;
  }
  json header;

 private:
  std::string bytes_;
  size_t base_ = 0;
};

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Two equal blocks, a head that saves its input, and the head's backward.
TestGraph network(int blocks = 2) {
  TestGraph t;
  t.graph.metadata.model = "small";
  auto x = t.input("tokens", {4, 8});
  const auto weight = t.parameter("head.weight", {8, 8});
  for (int i = 0; i < blocks; ++i) {
    auto block = t.module("blocks." + std::to_string(i), "Block");
    x = t.call("aten::mm", {x, t.view("aten::t", {weight}, weight.value(), {8, 8})}, {{4, 8}});
    x = t.call("aten::relu", {x}, {{4, 8}});
  }
  const auto loss = t.call("aten::sum", {x}, {{}});
  t.phase = Graph::kBackward;
  t.call("aten::ones_like", {loss}, {{}}, loss.node);
  t.output({loss});
  return t;
}

TEST(Page, HoldsWhatTheProfileKnows) {
  const TestGraph t = network();
  const Profile costs = profile(t.graph);
  const PageReader page = PageReader::of(to_html(costs), "graph-data");
  EXPECT_EQ(page.header["version"], kPageDataVersion);
  EXPECT_EQ(page.header["title"], "small");
  EXPECT_EQ(page.header["nodes"], t.graph.node_count());
  EXPECT_EQ(page.header["profile"]["peak"]["bytes"], costs.peak.bytes);
  int64_t products = 0;
  for (const int64_t flops : page.column("node.matmul")) products += flops;
  EXPECT_EQ(products, 2 * 2 * 4 * 8 * 8);  // two mm of 4x8 by 8x8, 2 FLOPs per multiply-add
  EXPECT_EQ(products, costs.flops.at("forward").matmul);
  int64_t bytes = 0;
  for (const int64_t size : page.column("storage.bytes")) bytes += size;
  // tokens, weight, two results of each block, the sum and its gradient
  EXPECT_EQ(bytes, 4 * (32 + 64 + 4 * 32 + 1 + 1));
  // The second block is folded into the first.
  const auto stands_for = page.column("cluster.stands_for");
  EXPECT_EQ(std::count_if(stands_for.begin(), stands_for.end(), [](int64_t c) { return c > 0; }), 1);
  // The only backward node differentiates its predecessor.
  const auto forward = page.column("node.forward");
  EXPECT_EQ(std::count(forward.begin(), forward.end(), 1), 1);
}

// The sum of lifetimes, as in the page's memory view (viz/page/src/graph.ts), equals the timeline at every node.
TEST(Page, LivesAddUpToTheTimeline) {
  TestGraph t;
  auto x = t.input("x", {100});
  const auto weight = t.parameter("w", {30});
  for (int i = 0; i < 4; ++i) {
    const auto y = t.call("aten::add.Tensor", {x, x, Argument::of_int(1)}, {{100 + i}});
    if (i > 0) t.free_after(y.node, {t.storage(x)});
    x = y;
  }
  t.output({x, weight});
  const Profile costs = profile(t.graph);
  const PageReader page = PageReader::of(to_html(costs), "graph-data");
  const auto bytes = page.column("storage.bytes"), born = page.column("storage.born"),
             freed = page.column("storage.freed"), existed = page.column("storage.existed");
  const MemoryTimeline timeline = MemoryTimeline::of(t.graph);
  int64_t most = 0;
  for (int64_t node = 0; node < page.header["nodes"].get<int64_t>(); ++node) {
    int64_t alive = 0;
    for (size_t s = 0; s < bytes.size(); ++s) {
      const bool begun = existed[s] != 0 || born[s] - 1 <= node;
      if (begun && (freed[s] == 0 || node <= freed[s] - 1)) alive += bytes[s];
    }
    EXPECT_EQ(alive, timeline.total(static_cast<uint32_t>(node))) << "at node " << node;
    most = std::max(most, alive);
  }
  EXPECT_EQ(most, costs.peak.bytes);
}

// State that the recorded first step makes exists from the beginning of later ones, which the report leads with.
TEST(Page, ChartsShowTheSteadyState) {
  TestGraph t;
  const auto x = t.input("x", {100});
  const auto weight = t.parameter("w", {30});
  const auto y = t.call("aten::add.Tensor", {x, x, Argument::of_int(1)}, {{100}});
  t.phase = Graph::kBackward;
  const auto gradient = t.call("aten::mul.Tensor", {weight, weight}, {{30}});
  t.free_after(gradient.node, {t.storage(y)});
  t.phase = Graph::kOptimizer;
  t.call("aten::zeros_like", {weight}, {{30}});
  t.output({x});
  const Profile costs = profile(t.graph);
  ASSERT_TRUE(costs.steady_peak);
  const PageReader page = PageReader::of(to_html(costs), "graph-data");
  const auto bytes = page.column("storage.bytes"), born = page.column("storage.born"),
             freed = page.column("storage.freed"), existed = page.column("storage.existed");
  int64_t most = 0;
  for (int64_t node = 0; node < page.header["nodes"].get<int64_t>(); ++node) {
    int64_t alive = 0;
    for (size_t s = 0; s < bytes.size(); ++s) {
      const bool begun = existed[s] != 0 || born[s] - 1 <= node;
      if (begun && (freed[s] == 0 || node <= freed[s] - 1)) alive += bytes[s];
    }
    most = std::max(most, alive);
  }
  EXPECT_EQ(costs.peak.bytes, 4 * (100 + 30 + 100 + 30));
  EXPECT_EQ(most, 4 * (100 + 30 + 100 + 30 + 30));
  EXPECT_EQ(most, costs.steady_peak->bytes);
  for (const json& entry : page.header["columns"]) EXPECT_NE(entry["name"], "storage.place") << "of the recorded step";
}

TEST(Page, ViewsSayWhereTheyBegin) {
  TestGraph t;
  const auto x = t.input("x", {10});
  const auto view = t.view("aten::slice.Tensor", {x}, x.value(), {4});
  mutable_value(t.graph, view.value()).offset = 3;
  t.output({view});
  const auto offsets = PageReader::of(to_html(profile(t.graph)), "graph-data").column("value.offset");
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 3}));
}

TEST(Page, SameGraphSamePage) {
  const TestGraph a = network();
  const TestGraph b = network();
  EXPECT_EQ(to_html(profile(a.graph)), to_html(profile(b.graph)));
}

TEST(Page, AsksForNothingFromOutside) {
  const TestGraph t = network();
  const std::string html = to_html(profile(t.graph));
  EXPECT_NE(html.find("default-src 'none'"), html.npos);
  const std::string before_program = html.substr(0, html.rfind("<script>"));
  EXPECT_EQ(count(before_program, "http:") + count(before_program, "https:"), 0U);
  EXPECT_EQ(count(html, " src=\"") + count(html, "<link"), 0U);
}

TEST(Page, NamesStayInTheirPlace) {
  const std::string hostile = "</script><script>alert(1)</script><!-- \"quoted\" \x07 \xe2\x80\xae \xff";
  TestGraph t;
  t.graph.metadata.model = hostile;
  const auto x = t.input(hostile, {2});
  {
    auto module = t.module(hostile, hostile);
    t.output({t.call("aten::relu", {x}, {{2}})});
  }
  const std::string html = to_html(profile(t.graph));
  const std::string plain = to_html(profile(network().graph));
  EXPECT_EQ(count(html, "</script"), count(plain, "</script"));
  EXPECT_EQ(count(html, "<script"), count(plain, "<script"));
  EXPECT_EQ(html.find("alert(1)"), html.find("alert(1)&lt;/script"));  // in the title, escaped
  EXPECT_EQ(html.find('\x07'), html.npos);
  const PageReader page = PageReader::of(html, "graph-data");
  // Complete except for the byte that is not UTF-8.
  EXPECT_EQ(page.header["title"], hostile.substr(0, hostile.size() - 1) + "\xef\xbf\xbd");
}

TEST(Page, AMegabyteOfModulePath) {
  TestGraph t;
  const auto x = t.input("x", {2});
  {
    auto module = t.module(std::string(1'000'000, 'm'), "Deep");
    t.output({t.call("aten::relu", {x}, {{2}})});
  }
  const Profile costs = profile(t.graph);
  EXPECT_LT(to_html(costs, {.title = std::string(1'000'000, 't')}).size(), 400'000U);
}

TEST(Page, ComparesTwoGraphs) {
  const TestGraph before = network(1);
  const TestGraph after = network(3);
  const Profile was = profile(before.graph);
  const std::string html = to_html(profile(after.graph), {.title = "after", .before = &was, .before_title = "before"});
  const PageReader now = PageReader::of(html, "graph-data");
  const PageReader old = PageReader::of(html, "before-data");
  EXPECT_EQ(now.header["title"], "after");
  EXPECT_EQ(old.header["title"], "before");
  const GraphDiff diff = GraphDiff::of(before.graph, after.graph);
  const auto state = now.column("node.different");
  EXPECT_EQ(static_cast<size_t>(std::count(state.begin(), state.end(), 1)), diff.added);
  const auto gone = old.column("node.different");
  EXPECT_EQ(static_cast<size_t>(std::count(gone.begin(), gone.end(), 1)), diff.removed);
  EXPECT_GT(diff.added, 0U);
}

// A saved profile has costs but no graph: it is embedded as JSON, whatever names it contains.
TEST(Page, ComparesWithASavedProfile) {
  TestGraph before = network(1);
  before.graph.metadata.model = "</script>before";
  const TestGraph after = network(3);
  const Profile was = profile(before.graph);
  const std::string html = to_html(profile(after.graph), {.before_json = to_json(was).dump()});
  const json saved = json::parse(PageReader::unpacked(html, "before-profile"));
  EXPECT_EQ(saved["title"], "</script>before");
  EXPECT_EQ(saved["peak"]["bytes"], was.peak.bytes);
  EXPECT_EQ(saved["modules"], to_json(was)["modules"]);
  EXPECT_EQ(count(html, "</script"), count(to_html(profile(after.graph)), "</script") + 1);
  EXPECT_EQ(html.find("before-data\">"), html.npos);
}

TEST(Page, RefusesWhatIsNoProfile) {
  const TestGraph t = network();
  const Profile costs = profile(t.graph);
  for (const char* text : {"{", "[]", "7", "{}", R"({"nodes": 3, "peak": {"bytes": 1}})",
                           R"({"nodes": 3, "operators": {}, "peak": {"bytes": "much", "by_kind": {}}})"}) {
    EXPECT_THROW(to_html(costs, {.before_json = text}), Error) << text;
  }
  try {
    to_html(costs, {.before_json = R"({"batches": []})"});
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("several batch sizes"), std::string::npos) << error.what();
  }
}

TEST(Page, EmptyGraph) {
  const Graph graph;
  const PageReader page = PageReader::of(to_html(profile(graph)), "graph-data");
  EXPECT_EQ(page.header["nodes"], 0);
  EXPECT_TRUE(page.column("node.target").empty());
}

}  // namespace
}  // namespace shadowgraph
