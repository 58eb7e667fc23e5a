// DOT text (a golden), escaping, and SVG that is well-formed XML.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "ir/records.h"
#include "shadowgraph/draw/draw.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;

// Two equal blocks around a view, a head, backward of the head and an optimizer step.
TestGraph small_network() {
  TestGraph t;
  t.graph.metadata.model = "small";
  auto x = t.input("tokens", {4, 8});
  std::vector<TestGraph::Call> weights;
  for (const char* name : {"blocks.0.fc.weight", "blocks.1.fc.weight", "head.weight"}) {
    weights.push_back(t.parameter(name, {8, 8}));
  }
  for (int i = 0; i < 2; ++i) {
    const std::string path = "blocks." + std::to_string(i);
    auto block = t.module(path, "Block");
    {
      auto fc = t.module(path + ".fc", "Linear");
      const auto& weight = weights[static_cast<size_t>(i)];
      x = t.call("aten::mm", {x, t.view("aten::t", {weight}, weight.value(), {8, 8})}, {{4, 8}});
    }
    x = t.call("aten::relu", {x}, {{4, 8}});
  }
  TestGraph::Call y;
  {
    auto head = t.module("head", "Linear");
    y = t.call("aten::mm", {x, weights[2]}, {{4, 8}});
  }
  const auto loss = t.call("aten::sum", {y}, {{}});
  t.phase = Graph::kBackward;
  const auto ones = t.call("aten::ones_like", {loss}, {{}});
  const auto expanded = t.view("aten::expand", {ones}, ones.value(), {4, 8}, loss.node);
  const auto x_t = t.view("aten::t", {x}, x.value(), {8, 4}, y.node);
  const auto gradient = t.call("aten::mm", {x_t, expanded}, {{8, 8}}, y.node);
  t.gradient(weights[2], gradient);
  t.phase = Graph::kOptimizer;
  t.view("aten::add_.Tensor", {weights[2], gradient, Argument::of_float(-0.1)}, weights[2].value(), {8, 8});
  t.output({loss});
  return t;
}

// A minimal XML check: tags nest and close, attributes are quoted, '<' and '&' occur only where allowed.
std::string xml_error(const std::string& xml) {
  std::vector<std::string> open;
  size_t elements = 0;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const size_t end = xml.find(';', at);
      if (end == std::string::npos || end - at > 10) return "bare & at " + std::to_string(at);
      at = end + 1;
    } else if (xml[at] != '<') {
      ++at;
    } else if (xml.compare(at, 4, "<!--") == 0) {
      const size_t end = xml.find("-->", at);
      if (end == std::string::npos || xml.substr(at + 4, end - at - 4).find("--") != std::string::npos)
        return "comment";
      at = end + 3;
    } else if (xml[at + 1] == '?' || xml[at + 1] == '!') {
      at = xml.find('>', at) + 1;
    } else {
      size_t end = at + 1;
      bool quoted = false;
      while (end < xml.size() && (quoted || xml[end] != '>')) {
        if (xml[end] == '"') quoted = !quoted;
        if (xml[end] == '<') return "< in a tag at " + std::to_string(end);
        ++end;
      }
      if (end == xml.size()) return "tag without end at " + std::to_string(at);
      const std::string tag = xml.substr(at + 1, end - at - 1);
      const std::string name =
          tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" \n/", 1) - (tag[0] == '/' ? 1 : 0));
      ++elements;
      if (tag[0] == '/') {
        if (open.empty() || open.back() != tag.substr(1)) return "closes " + tag;
        open.pop_back();
      } else if (tag.back() != '/') {
        open.push_back(name);
      }
      at = end + 1;
    }
  }
  if (!open.empty()) return "not closed: " + open.back();
  return elements == 0 ? "no elements" : "";
}

TEST(DotWriter, Golden) {
  const TestGraph t = small_network();
  const std::string dot = write_dot(ViewModel::of(t.graph));
  const std::string path = std::string(SHADOWGRAPH_SOURCE_DIR) + "/tests/golden/viz/small.dot";
  if (std::getenv("UPDATE_GOLDEN") != nullptr) std::ofstream(path) << dot;
  std::ifstream in(path);
  std::stringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(dot, golden.str()) << path << "; UPDATE_GOLDEN=1 rewrites it";
  EXPECT_EQ(write_dot(ViewModel::of(small_network().graph)), dot);
}

TEST(DotWriter, Escapes) {
  EXPECT_EQ(escape_dot("plain"), "plain");
  EXPECT_EQ(escape_dot(R"(say "hi" \n {a|b} <c> & d)"), R"(say \"hi\" \\n {a|b} <c> &amp; d)");
  EXPECT_EQ(escape_dot("two\nlines"), "two\\nlines");
  EXPECT_EQ(escape_dot("two\nlines", " "), "two lines");
  EXPECT_EQ(escape_dot("gr\xC3\xBC\xC3\x9F \xE5\xB1\x82"), "gr\xC3\xBC\xC3\x9F \xE5\xB1\x82");
  EXPECT_EQ(escape_dot("\xFF\xC3("), "\?\?(");      // not UTF-8
  EXPECT_EQ(escape_dot("\xED\xA0\x80"), "\?\?\?");  // a surrogate
  EXPECT_EQ(escape_dot(std::string("a\0b\x1b", 4)), "a b ");
}

TEST(DotWriter, HoldsBoxesWithoutEdgesBesideTheirNeighbors) {
  ViewModel model;
  model.clusters.resize(1);
  for (const char* id : {"n0", "n1", "n2", "n3"}) model.boxes.push_back({.id = id, .lines = {id}});
  model.edges.push_back({.from = 1, .to = 2});
  const std::string dot = write_dot(model);
  EXPECT_NE(dot.find("n0 -> n1 [style=invis]"), std::string::npos) << dot;  // to the next node that is laid out
  EXPECT_NE(dot.find("n2 -> n3 [style=invis]"), std::string::npos) << dot;  // without a next one, from the previous
  EXPECT_EQ(dot.find("n1 -> n2 [style=invis]"), std::string::npos) << dot;
}

// An edge to the next copy of a layer does not affect ranks in dot.
TEST(DotWriter, EdgesIntoTheNextCopyHoldNothing) {
  ViewModel model;
  model.clusters.resize(1);
  for (const char* id : {"n0", "n1"}) model.boxes.push_back({.id = id, .lines = {id}});
  model.edges.push_back({.from = 0, .to = 1, .to_next_copy = true});
  const std::string dot = write_dot(model, {.legend = true});
  EXPECT_NE(dot.find("n0 -> n1 [style=invis]"), std::string::npos) << dot;
  EXPECT_NE(dot.find("dashed: to the next copy"), std::string::npos) << dot;
  model.edges[0].to_next_copy = false;
  const std::string held = write_dot(model, {.legend = true});
  EXPECT_EQ(held.find("[style=invis]"), std::string::npos) << held;
  EXPECT_EQ(held.find("to the next copy"), std::string::npos) << held;
}

TEST(SvgWriter, IsWellFormedAndNamesEveryBox) {
  const ViewModel model = ViewModel::of(small_network().graph);
  const std::string svg = render_svg(write_dot(model));
  EXPECT_EQ(xml_error(svg), "");
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  for (const ViewBox& box : model.boxes)
    EXPECT_NE(svg.find("<title>" + box.id + "</title>"), std::string::npos) << box.id;
  EXPECT_TRUE(render_svg(write_dot(model)) == svg);  // deterministic; not EXPECT_EQ, which would print both
}

TEST(SvgWriter, AnyNameIsDrawn) {
  const std::string names[] = {
      R"("quoted")",  R"(back\slash\N\G)", "{brace|pipe}", "<b>angle</b>", "a & b &lt; c", "gr\xC3\xBC\xC3\x9F",
      "\xE5\xB1\x82", "\xFF\xFE",          "new\nline",    "]]>",          "<!-- -->",     "-->"};
  for (const std::string& name : names) {
    TestGraph t;
    t.graph.metadata.model = name;
    const auto x = t.input(name, {2});
    TestGraph::Call y;
    {
      auto scope = t.module(name, name);
      y = t.call("aten::relu", {x}, {{2}});
      y = t.call("aten::neg", {y}, {{2}});
    }
    mutable_node(t.graph, y.node).source = t.graph.intern(name);
    t.output({y});
    const std::string svg = render_svg(write_dot(ViewModel::of(t.graph)));
    EXPECT_EQ(xml_error(svg), "") << name;
  }
}

TEST(SvgWriter, BadInputIsATypedErrorAndDoesNoHarm) {
  const std::string good = write_dot(ViewModel::of(small_network().graph));
  const std::string before = render_svg(good);
  ::testing::internal::CaptureStderr();
  for (const char* bad : {"", "digraph {", "digraph { a -> }", "not dot at all", "digraph { a [label=<<B>] }"}) {
    try {
      render_svg(bad);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "") << bad;
    }
    EXPECT_TRUE(render_svg(good) == before) << "after " << bad;
  }
  EXPECT_THROW(render_svg("digraph { a -> "), Error);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// An error message of Graphviz does not appear again in the next drawing.
TEST(SvgWriter, EachFailureSaysItsOwnWords) {
  const auto words = [](const char* dot) {
    try {
      render_svg(dot);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string first = words("digraph { a -> ");
  EXPECT_NE(first, "");
  EXPECT_EQ(words("digraph { a -> "), first);
}

TEST(SvgWriter, FromSeveralThreads) {
  const std::string dot = write_dot(ViewModel::of(small_network().graph));
  const std::string expected = render_svg(dot);
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) result = render_svg(dot);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_TRUE(result == expected);
}

}  // namespace
}  // namespace shadowgraph
