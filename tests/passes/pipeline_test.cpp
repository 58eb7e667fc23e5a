// Pass pipelines: their text, checks, dumps and error messages.
#include "shadowgraph/passes/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>

#include "ir/records.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/simplify.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

Graph sample() {
  return parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::relu(Tensor self) -> Tensor
s0 = 16 cpu input
s1 = 16 cpu temporary
s2 = 16 cpu temporary
n0: %0 = sg::input(name="x") : f32[4] @s0
n1: %1 = aten::relu(self=%0) : f32[4] @s1
n2: %2 = aten::relu(self=%1) : f32[4] @s2
n3: sg::output(values=[%1])
)");
}

// Returns the message of the E that a call throws, or "".
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

std::string parse_error(const std::string& text) {
  return message_of<PassError>([&] { Pipeline::parse(text); });
}

Pass pass_that(std::string name, PassFunction run) {
  return {.name = std::move(name), .summary = "", .run = std::move(run)};
}

// Erases the dead relu and reports whether it did.
PassResult erase_dead(Graph& graph, const PassOptions&) {
  for (NodeId n : graph.nodes()) {
    if (graph.target(n).name() == "aten::relu" && graph.can_erase(n)) {
      graph.erase(n);
      return {.changed = true, .counters = {{"erased", 1}}, .report = "one relu\n"};
    }
  }
  return {};
}

TEST(Pipeline, ReadsAndWritesItsText) {
  for (const char* text : {"dce", "dce,cse", "dce{random=drop},cse", "const-fold{max_bytes=16},dce",
                           "find-repeats{min_blocks=3;min_nodes=2}"}) {
    EXPECT_EQ(Pipeline::parse(text).text(), text);
  }
  EXPECT_EQ(Pipeline::parse(" dce { random = drop } , cse ").text(), "dce{random=drop},cse");
  EXPECT_EQ(Pipeline::parse("dce{}").text(), "dce");
  EXPECT_EQ(Pipeline::parse("dce{random=drop;}").text(), "dce{random=drop}");
  EXPECT_EQ(Pipeline::parse("dce{random='a;b}'}").text(), "dce{random=\"a;b}\"}");
  EXPECT_EQ(Pipeline().add("dce", {{"random", "drop"}}).add("cse").text(), "dce{random=drop},cse");
}

TEST(Pipeline, SaysWhatIsWrongWithAText) {
  EXPECT_THAT(parse_error("dce,cze"), HasSubstr("unknown pass 'cze'; did you mean cse?\n  dce,cze\n      ^"));
  EXPECT_THAT(parse_error("fuse"), HasSubstr("did you mean fuse-groups?"));
  EXPECT_THAT(parse_error("xxxxxxxxxxxx"), HasSubstr("available passes: canonicalize, checkpoint, collapse"));
  EXPECT_THAT(parse_error("dce{randon=drop}"), HasSubstr("pass 'dce' has no option 'randon'; did you mean random?"));
  EXPECT_THAT(parse_error("dce{xxxxxxxxxxxx=1}"), HasSubstr("options: random"));
  EXPECT_THAT(parse_error("canonicalize{x=1}"), HasSubstr("it takes no options"));
  EXPECT_THAT(parse_error(""), HasSubstr("expected the name of a pass"));
  EXPECT_THAT(parse_error("dce,"), HasSubstr("expected the name of a pass here\n  dce,\n      ^"));
  EXPECT_THAT(parse_error("dce,,cse"), HasSubstr("expected the name of a pass"));
  EXPECT_THAT(parse_error("dce{random}"), HasSubstr("name=value, here\n  dce{random}\n      ^"));
  EXPECT_THAT(parse_error("dce{random=drop"), HasSubstr("not terminated"));
  EXPECT_THAT(parse_error("dce{random='drop}"), HasSubstr("unterminated quote"));
  EXPECT_THAT(parse_error("dce{random=drop;random=keep}"), HasSubstr("given more than once"));
  EXPECT_THAT(parse_error("dce{random=drop} cse"), HasSubstr("a comma or the end"));
  EXPECT_THAT(parse_error("dce}"), HasSubstr("a comma, options in braces, or the end"));
}

TEST(Pipeline, OptionsAreCheckedByThePass) {
  Graph graph = sample();
  const std::string before = to_text(graph);
  const std::string said = message_of<PassError>([&] { Pipeline::parse("cse,dce{random=maybe}").run(graph); });
  EXPECT_THAT(
      said, HasSubstr("pass 'dce{random=maybe}' (step 2 of 2): option random=maybe: 'maybe' is not one of keep, drop"));
  EXPECT_EQ(to_text(graph), before);
  EXPECT_THAT(message_of<PassError>([&] { Pipeline::parse("const-fold{max_bytes=-1}").run(graph); }),
              HasSubstr("a size such as 24GiB"));
  EXPECT_THAT(message_of<PassError>([&] { Pipeline::parse("const-fold{max_bytes=1k}").run(graph); }),
              HasSubstr("max_bytes=1k"));
  EXPECT_THROW(find_pass("dce")->run(graph, {{"nothing", "1"}}), Error);
  EXPECT_THROW(run_pass(graph, "dce", {{"nothing", "1"}}), PassError);
}

TEST(Pipeline, TheTableAddsUpItsTimes) {
  PipelineReport report;
  report.runs = {{.pass = "dce", .seconds = 1.5e-3}, {.pass = "cse", .seconds = 2.25e-3}};
  report.check_seconds = 4e-3;
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("    1.500"));
  EXPECT_THAT(text, HasSubstr("    3.750\n"));
  EXPECT_THAT(text, HasSubstr("    4.000\n"));
}

TEST(Pipeline, TimesAndCounts) {
  Graph graph = sample();
  const PipelineReport report = Pipeline()
                                    .add(pass_that("erase", erase_dead))
                                    .add(pass_that("erase", erase_dead))
                                    .run(graph, PipelineOptions::checked());
  ASSERT_EQ(report.runs.size(), 2U);
  EXPECT_EQ(report.runs[0].nodes_before, 4U);
  EXPECT_EQ(report.runs[0].nodes_after, 3U);
  EXPECT_TRUE(report.runs[0].result.changed);
  EXPECT_FALSE(report.runs[1].result.changed);
  EXPECT_TRUE(report.changed());
  EXPECT_GT(report.check_seconds, 0);
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("1 erased"));
  EXPECT_THAT(text, HasSubstr("nothing to do"));
  EXPECT_THAT(text, HasSubstr("\nerase:\none relu\n"));
  const nlohmann::json json = to_json(report);
  EXPECT_EQ(json["passes"][0]["counters"]["erased"], 1);
  EXPECT_EQ(json["passes"][1]["nodes_after"], 3);
}

TEST(Pipeline, AFailedPassLeavesTheGraphAsItWas) {
  const auto broken = [](Graph& graph, const PassOptions&) {
    graph.move_before(graph.last(), NodeId());
    mutable_node(graph, graph.first()).region = RegionId(77);
    return PassResult{.changed = true};
  };
  const auto liar = [](Graph& graph, const PassOptions& options) {
    erase_dead(graph, options);
    return PassResult{};
  };
  const auto thrower = [](Graph& graph, const PassOptions& options) -> PassResult {
    erase_dead(graph, options);
    throw std::runtime_error("no luck");
  };
  const auto torch_thrower = [](Graph&, const PassOptions&) -> PassResult { TORCH_CHECK(false, "of libtorch"); };
  const std::pair<Pass, const char*> cases[] = {
      {pass_that("broken", broken), "it produced an invalid graph, which is a bug in the pass"},
      {pass_that("liar", liar), "it reported no changes but changed the graph"},
      {pass_that("thrower", thrower), "pass 'thrower' (step 2 of 2): no luck"},
      {pass_that("torch-thrower", torch_thrower), "of libtorch"},
  };
  for (const auto& [pass, expected] : cases) {
    Graph graph = sample();
    const auto idle = pass_that("idle", [](Graph&, const PassOptions&) { return PassResult{}; });
    const Pipeline pipeline = Pipeline().add(idle).add(pass);
    std::string named;
    try {
      pipeline.run(graph, PipelineOptions::checked());
      ADD_FAILURE() << pass.name;
    } catch (const PassError& error) {
      EXPECT_THAT(error.what(), HasSubstr(expected));
      named = error.pass();
    }
    EXPECT_EQ(named, pass.name);
    EXPECT_EQ(first_difference(graph, sample()), std::nullopt) << pass.name;
  }
}

TEST(Pipeline, ABrokenInputIsNotThePasssFault) {
  Graph graph = sample();
  mutable_node(graph, NodeId(1)).region = RegionId(77);
  EXPECT_THROW(Pipeline::parse("dce").run(graph, PipelineOptions::checked()), GraphError);
}

TEST(Pipeline, DumpsWhereTheEnvironmentSays) {
  const auto folder = std::filesystem::temp_directory_path() / ("shadowgraph-dump-" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  ASSERT_EQ(setenv("SHADOWGRAPH_DUMP", folder.c_str(), 1), 0);
  Graph graph = sample();
  Pipeline().add(pass_that("erase", erase_dead)).run(graph);
  unsetenv("SHADOWGRAPH_DUMP");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string().substr(3));
    const uint32_t nodes = read_graph_file(entry.path().string()).node_count();
    EXPECT_EQ(nodes, names.back() == "erase.before.sg" ? 4U : 3U);
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("erase.before.sg", "erase.after.sg"));
  std::filesystem::remove_all(folder);

  PipelineOptions options;
  options.dump_folder = "/proc/no/such";
  EXPECT_THROW(Pipeline::parse("dce").run(graph, options), FileError);
}

TEST(Pipeline, EveryPassHasItsLines) {
  for (const Pass* pass : all_passes()) {
    EXPECT_FALSE(pass->summary.empty() && !pass->name.starts_with("registry-test")) << pass->name;
    EXPECT_LE(pass->summary.size(), 110U) << pass->name;
    for (const PassOption& option : pass->options) EXPECT_FALSE(option.summary.empty()) << pass->name;
  }
}

}  // namespace
}  // namespace shadowgraph
