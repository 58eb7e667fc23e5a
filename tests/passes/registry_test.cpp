// The pass registry: names, errors, user-defined passes.
#include <gtest/gtest.h>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/pass.h"
#include "shadowgraph/passes/pipeline.h"

namespace shadowgraph {
namespace {

Pass pass_named(std::string name) {
  return {.name = std::move(name), .summary = "", .run = [](Graph&, const PassOptions&) { return PassResult{}; }};
}

TEST(PassRegistry, FindsWhatTheUserRegistered) {
  EXPECT_EQ(find_pass("registry-test"), nullptr);
  register_pass(pass_named("registry-test"));
  ASSERT_NE(find_pass("registry-test"), nullptr);
  EXPECT_EQ(find_pass("registry-test")->name, "registry-test");
  EXPECT_THROW(register_pass(pass_named("registry-test")), Error);
}

TEST(PassRegistry, RefusesWhatIsNoName) {
  for (const char* name : {"", "Upper", "1st", "under_score", "-dash", "two words"}) {
    EXPECT_THROW(register_pass(pass_named(name)), Error) << name;
  }
  EXPECT_THROW(register_pass({.name = "no-function"}), Error);
}

// A user-defined pass: options as a struct with its table, and a typed result.
struct CountOptions {
  enum class Of : uint8_t { kNodes, kRegions };
  Of of = Of::kNodes;
  int64_t least = 3;
  std::string label = "all";
  std::vector<int64_t> weights = {1, 2};

  static std::vector<int64_t> weights_of(const std::string& text) {
    std::vector<int64_t> weights;
    for (const char c : text) weights.push_back(c - '0');
    return weights;
  }
  static std::string text_of(const std::vector<int64_t>& weights) {
    std::string text;
    for (const int64_t weight : weights) text += std::to_string(weight);
    return text;
  }
  static OptionTable<CountOptions> table() {
    return OptionTable<CountOptions>()
        .choice("of", &CountOptions::of, {"nodes", "regions"}, "what is counted")
        .add("least", &CountOptions::least, "at least", {.min = 1, .max = 9})
        .add("label", &CountOptions::label, "what it is called")
        .parsed("weights", &CountOptions::weights, &weights_of, &text_of, "digits");
  }
};
struct CountResult {
  CountOptions options;
  PassResult summary() const {
    return {.counters = {{options.label + std::to_string(options.weights.size()), options.least}},
            .report = options.of == CountOptions::Of::kNodes ? "nodes" : "regions"};
  }
};
CountResult count_things(Graph&, const CountOptions& options) { return {options}; }

TEST(PassRegistry, ATypedPassIsReachedByText) {
  register_pass(pass_row("count-things", "Counts", count_things));
  const Pass& pass = *find_pass("count-things");
  ASSERT_EQ(pass.options.size(), 4U);
  EXPECT_EQ(pass.options[0].name, "of");
  EXPECT_EQ(pass.options[0].default_value, "nodes");
  EXPECT_EQ(pass.options[1].default_value, "3");
  EXPECT_EQ(pass.options[2].default_value, "all");
  EXPECT_EQ(pass.options[3].default_value, "12");
  EXPECT_EQ(pass.options[3].summary, "digits");

  Graph graph;
  const PassResult plain = run_pass(graph, "count-things");
  EXPECT_EQ(plain.report, "nodes");
  EXPECT_EQ(plain.counters[0], (std::pair<std::string, int64_t>("all2", 3)));
  const PassResult given =
      run_pass(graph, "count-things", {{"of", "regions"}, {"least", "9"}, {"label", "x"}, {"weights", "7"}});
  EXPECT_EQ(given.report, "regions");
  EXPECT_EQ(given.counters[0], (std::pair<std::string, int64_t>("x1", 9)));
  EXPECT_THROW(run_pass(graph, "count-things", {{"least", "10"}}), Error);
  EXPECT_THROW(run_pass(graph, "count-things", {{"of", "values"}}), Error);
}

// Parsing the printed defaults of each pass gives the defaults.
TEST(PassRegistry, DefaultsCanBeRead) {
  for (const Pass* pass : all_passes()) {
    Graph graph = parse("shadowgraph 1 libtorch 2.13.0\nn0: sg::output(values=[])\n");
    PassOptions defaults;
    for (const PassOption& option : pass->options) defaults.emplace(option.name, option.default_value);
    if (pass->name == "rewrite")
      defaults["rules"] = "rule r;%y = aten::relu(self=%x);return %y;=>;%y = aten::neg(self=%x);return %y";
    EXPECT_NO_THROW(pass->run(graph, defaults)) << pass->name;
    defaults["no-such-option"] = "1";
    if (pass->options.empty()) continue;
    EXPECT_THROW(pass->run(graph, defaults), Error) << pass->name;
  }
}

}  // namespace
}  // namespace shadowgraph
