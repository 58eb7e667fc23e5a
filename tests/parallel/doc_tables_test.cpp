// Tables in the documentation match the tables in the source that they are generated from.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "parallel/export/planned_model.h"
#include "parallel/schedule/known_schedules.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

// The table is between the line that begins with `mark` and "<!-- end -->".
void expect_table(const std::string& page, const std::string& mark, const std::string& rows) {
  const std::string table = "\n" + rows + "\n";
  const std::string path = std::string(SHADOWGRAPH_SOURCE_DIR) + "/docs/" + page;
  std::string text = read_file(path);
  const size_t marked = text.find("<!-- " + mark + ":");
  ASSERT_NE(marked, std::string::npos) << path << ": " << mark;
  const size_t begin = text.find('\n', marked) + 1, end = text.find("<!-- end -->", begin);
  ASSERT_NE(end, std::string::npos);
  const std::string found = text.substr(begin, end - begin);
  if (std::getenv("UPDATE_GOLDEN") != nullptr && found != table) {
    std::ofstream(path) << text.replace(begin, end - begin, table);
    return;
  }
  EXPECT_EQ(found, table) << path << "; UPDATE_GOLDEN=1 rewrites it";
}

TEST(DocTables, HaveAllSchedules) {
  std::string table =
      "| name | what it does | stages of a rank | torch, torchtitan | Megatron-LM | tried by `plan` |\n"
      "|---|---|---|---|---|---|\n";
  for (const KnownSchedule& known : known_schedules()) {
    const std::string stages = known.v_shaped              ? "V"
                               : known.stages_per_rank > 0 ? std::to_string(known.stages_per_rank)
                                                           : std::to_string(known.min_stages_per_rank) + " or more";
    table += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", known.name, known.about, stages,
                         known.torch_class.empty() ? "rows" : fmt::format("`{}`", known.torch_class),
                         known.in_megatron ? "yes" : "no", known.searched ? "yes" : "if named");
  }
  expect_table("many-devices.md", "schedules", table);
}

TEST(DocTables, HaveAllFrameworks) {
  std::string table = "| file | for | not supported |\n|---|---|---|\n";
  for (const TargetFramework& framework : target_frameworks()) {
    table += fmt::format("| `{}` | {} | {} |\n", framework.file, framework.about, framework.cannot_express);
  }
  expect_table("cluster-plans.md", "frameworks", table);
}

}  // namespace
}  // namespace shadowgraph
