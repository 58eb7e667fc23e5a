// Every tests/golden/passes/NAME.before.sg, run through the passes that its meta "passes" names, gives NAME.after.sg (and
// NAME.report.txt, where they have something to say). UPDATE_GOLDEN=1 writes them; review the diff.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(SHADOWGRAPH_SOURCE_DIR) / "tests/golden/passes";

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kEnd = ".before.sg";
    if (name.ends_with(kEnd)) names.push_back(name.substr(0, name.size() - kEnd.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void expect_golden(const fs::path& path, const std::string& text) {
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    if (text.empty()) {
      fs::remove(path);
    } else {
      std::ofstream(path) << text;
    }
  }
  std::ifstream file(path);
  ASSERT_TRUE(file || text.empty()) << "run with UPDATE_GOLDEN=1 to write " << path;
  std::ostringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str()) << path;
}

class PassGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(PassGolden, GivesTheGolden) {
  Graph graph = read_graph_file((kFolder / (GetParam() + ".before.sg")).string());
  const Pipeline pipeline = Pipeline::parse(graph.metadata.at("passes"));
  const PipelineReport report = pipeline.run(graph, PipelineOptions::checked());
  EXPECT_TRUE(report.changed()) << "a golden that shows nothing";
  expect_golden(kFolder / (GetParam() + ".after.sg"), to_text(graph));
  std::string said;
  for (const PassRun& run : report.runs) said += run.result.report;
  expect_golden(kFolder / (GetParam() + ".report.txt"), said);

  // Once is enough.
  const PipelineReport again = pipeline.run(graph, PipelineOptions::checked());
  EXPECT_FALSE(again.changed()) << to_text(again);
}

INSTANTIATE_TEST_SUITE_P(All, PassGolden, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shadowgraph
