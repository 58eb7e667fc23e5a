// Tables of measured operators in a device spec: time estimates from them, their files, and errors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/step_time.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using nlohmann::json;
using shadowgraph::testing::TestGraph;
using ::testing::HasSubstr;

// 1e13 FLOP/s, 1e12 bytes per second and no fixed time, so that the roofline is easy to compute.
DeviceSpec with_tables(const char* tables) {
  json object{{"version", 1}, {"bandwidth", 1e12}, {"matmul", {{"float32", 1e13}, {"bfloat16", 1e13}}}};
  object["tables"] = json::parse(tables);
  return device_spec_from_json(object, "mine");
}

NodeTime time_of_add(const DeviceSpec& spec, int64_t elements, c10::ScalarType dtype = c10::kFloat) {
  TestGraph t;
  t.dtype = dtype;
  const auto a = t.input("a", {elements});
  const auto b = t.input("b", {elements});
  const auto sum = t.call("aten::add.Tensor", {a, b}, {{elements}});
  return StepTime::of(t.graph, spec).of(sum.node);
}

NodeTime time_of_mm(const DeviceSpec& spec, int64_t m, int64_t n, int64_t k) {
  TestGraph t;
  const auto a = t.input("a", {m, k});
  const auto b = t.input("b", {k, n});
  const auto product = t.call("aten::mm", {a, b}, {{m, n}});
  return StepTime::of(t.graph, spec).of(product.node);
}

TEST(OperatorTables, SizesInTheTableTakeWhatWasMeasured) {
  const DeviceSpec spec = with_tables(R"({"pointwise": {"float32": [[1200, 1e-6], [120000, 3e-6]]}})");
  EXPECT_DOUBLE_EQ(time_of_add(spec, 100).seconds, 1e-6);  // 3 x 100 x 4 bytes
  EXPECT_DOUBLE_EQ(time_of_add(spec, 10000).seconds, 3e-6);
  EXPECT_EQ(time_of_add(spec, 100).bound, TimeBound::kTable);
  EXPECT_EQ(to_string(TimeBound::kTable), "table");
}

TEST(OperatorTables, BetweenSizesLinearInLogarithms) {
  const DeviceSpec spec = with_tables(R"({"pointwise": {"float32": [[1200, 1e-6], [120000, 3e-6]]}})");
  // 3,000 bytes are 2.5 times 1,200, and 120,000 are a hundred times; measured seconds grow by a factor of three.
  const NodeTime between = time_of_add(spec, 250);
  EXPECT_NEAR(between.seconds, 1e-6 * std::pow(3, std::log(2.5) / std::log(100)), 1e-15);
  EXPECT_EQ(between.bound, TimeBound::kTable);
}

TEST(OperatorTables, BeyondAnEndTheRooflineScaledAsThere) {
  const DeviceSpec spec = with_tables(R"({"pointwise": {"float32": [[1200, 1e-6], [120000, 3e-6]]}})");
  // 120,000 bytes took 3 us instead of 0.12: 25 times the roofline; for 12,000,000 bytes the roofline is 12 us.
  EXPECT_NEAR(time_of_add(spec, 1000000).seconds, 25 * 12e-6, 1e-12);
  EXPECT_EQ(time_of_add(spec, 1000000).bound, TimeBound::kTableEnd);
  EXPECT_NEAR(time_of_add(spec, 10).seconds, 1e-7, 1e-15);
  EXPECT_EQ(time_of_add(spec, 10).bound, TimeBound::kTableEnd);
}

TEST(OperatorTables, AnOperatorsTableComesBeforeItsClasss) {
  const DeviceSpec spec =
      with_tables(R"({"pointwise": {"float32": [[1200, 1e-6]]}, "aten::add": {"float32": [[1200, 2e-6]]}})");
  EXPECT_DOUBLE_EQ(time_of_add(spec, 100).seconds, 2e-6);
  const DeviceSpec overload =
      with_tables(R"({"aten::add.Tensor": {"float32": [[1200, 3e-6]]}, "aten::add": {"float32": [[1200, 2e-6]]}})");
  EXPECT_DOUBLE_EQ(time_of_add(overload, 100).seconds, 3e-6);
  EXPECT_NE(time_of_add(spec, 100, c10::kBFloat16).bound, TimeBound::kTable) << "there is no table for bfloat16";
}

TEST(OperatorTables, ProductsGoByTheirSizes) {
  const DeviceSpec spec = with_tables(R"({"matmul": {"float32": [
      [1, 64, 64, 64, 1e-5], [1, 128, 64, 64, 2e-5], [1, 64, 128, 64, 3e-5], [1, 64, 64, 128, 4e-5],
      [1, 128, 128, 128, 9e-5]]}})");
  EXPECT_DOUBLE_EQ(time_of_mm(spec, 128, 64, 64).seconds, 2e-5);
  EXPECT_DOUBLE_EQ(time_of_mm(spec, 64, 128, 64).seconds, 3e-5);
  EXPECT_DOUBLE_EQ(time_of_mm(spec, 64, 64, 128).seconds, 4e-5);
  const NodeTime between = time_of_mm(spec, 96, 96, 96);
  EXPECT_EQ(between.bound, TimeBound::kTable);
  EXPECT_GT(between.seconds, 1e-5);
  EXPECT_LT(between.seconds, 9e-5);
  EXPECT_EQ(time_of_mm(spec, 256, 64, 64).bound, TimeBound::kTableEnd);
  // Twice the rows beyond the table's end take twice as long, because both sizes are memory-bound.
  EXPECT_NEAR(time_of_mm(spec, 256, 64, 64).seconds / 2e-5, (256 + 64 + 256) / (128 + 64 + 128.0), 0.2);
}

TEST(OperatorTables, FilesComeBackAsTheyWere) {
  const char* const tables = R"({"aten::mm": {"float32": [[1, 64, 64, 64, 1.1e-5], [2, 64, 64, 64, 1.7e-5]]},
      "attention": {"bfloat16": [[1000, 2000, 1e-6], [1000, 4000, 1.5e-6]]},
      "pointwise": {"float32": [[1200, 1e-6], [120000, 3.3333333333333337e-06]]}})";
  const DeviceSpec spec = with_tables(tables);
  EXPECT_EQ(to_json(spec)["tables"], json::parse(tables));
  const DeviceSpec again = device_spec_from_json(json::parse(to_json(spec).dump()), "mine");
  EXPECT_EQ(again.tables, spec.tables);
  EXPECT_FALSE(
      to_json(device_spec_from_json(json::parse(R"({"version": 1, "bandwidth": 1, "matmul": {"float32": 1}})"), "none"))
          .contains("tables"));
}

TEST(OperatorTables, WhatIsNoTableIsRefused) {
  const std::pair<const char*, const char*> kWrong[] = {
      {R"({"matmull": {"float32": [[1, 1]]}})", "is neither an operator"},
      {R"({"free": {"float32": [[1, 1]]}})", "calls without a kernel"},
      {R"({"pointwise": {"float33": [[1, 1]]}})", "is not a dtype"},
      {R"({"pointwise": {"float32": []}})", "must not be empty"},
      {R"({"pointwise": {"float32": [[1, 0]]}})", "must be positive"},
      {R"({"pointwise": {"float32": [[1, 1], [1, 2]]}})", "repeats a size"},
      {R"({"pointwise": {"float32": [[1, 1], [1, 2, 3]]}})", "as many numbers"},
      {R"({"pointwise": {"float32": [[1, 1, 1, 1]]}})", "must be [bytes, seconds]"},
      {R"({"matmul": {"float32": [[1, 1.5, 1, 1, 1]]}})", "must be an integer"},
      {R"({"matmul": {"float32": [[1, -1, 1, 1, 1]]}})", "matmul.float32[0][1]"},
  };
  for (const auto& [tables, message] : kWrong) {
    try {
      with_tables(tables);
      ADD_FAILURE() << tables << " is taken";
    } catch (const ParseError& error) {
      EXPECT_THAT(error.what(), HasSubstr(message)) << tables;
    }
  }
}

class CsvFile {
 public:
  explicit CsvFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("operator_tables_" + std::to_string(::getpid()) + ".csv")) {
    write_file(path_, text);
  }
  ~CsvFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(OperatorTables, RowsOfAFileBecomeTables) {
  const CsvFile file(
      "seconds,operator,dtype,m,n,k,batch,bytes,flops\n"
      "1e-5,aten::mm,float32,64,128,256,,,\n"
      "3e-5,aten::mm,float32,64,128,256,1,,\n"
      "2e-5,aten::mm,float32,64,128,256,1,,\n"
      "\"4e-6\",pointwise,bfloat16,,,,,1000,\n"
      "5e-6,attention,bfloat16,,,,,1000,2000\n");
  const OperatorTables tables = read_operator_csv(file.path());
  const auto& mm = tables.by_name.at("aten::mm").at(c10::kFloat);
  ASSERT_EQ(mm.size(), 1) << "one size";
  EXPECT_EQ(mm[0], (MeasuredSize{.batch = 1, .m = 64, .n = 128, .k = 256, .seconds = 2e-5})) << "the median";
  EXPECT_EQ(tables.by_name.at("pointwise").at(c10::kBFloat16)[0], (MeasuredSize{.bytes = 1000, .seconds = 4e-6}));
  EXPECT_EQ(tables.by_name.at("attention").at(c10::kBFloat16)[0],
            (MeasuredSize{.bytes = 1000, .flops = 2000, .seconds = 5e-6}));
  DeviceSpec spec = with_tables(R"({"pointwise": {"bfloat16": [[1000, 1e-6], [2000, 2e-6]]}})");
  spec.tables.add(tables);
  EXPECT_EQ(spec.tables.by_name.at("pointwise").at(c10::kBFloat16)[0].seconds, 4e-6) << "added tables take precedence";
  EXPECT_EQ(spec.tables.by_name.at("pointwise").at(c10::kBFloat16).size(), 2);
}

TEST(OperatorTables, BadRowsAreRefusedByFileAndLine) {
  const std::string kHead = "operator,dtype,m,n,k,bytes,seconds\n";
  const std::pair<std::string, const char*> kWrong[] = {
      {"", ":1: the file is empty"},
      {"operator,dtype,secs\n", ":1: unknown column 'secs'"},
      {"operator,dtype,dtype\n", ":1: duplicate column 'dtype'"},
      {kHead, "has no rows"},
      {kHead + "aten::mm,float32,64,64\n", ":2: expected 7 fields, got 4"},
      {kHead + "aten::mm,float32,64,64,64,,1e-5\naten::mm,float32,x,64,64,,1e-5\n", ":3: m is 'x'"},
      {kHead + "aten::mm,float32,64,64,64.5,,1e-5\n", "expected an integer"},
      {kHead + "aten::mm,float32,64,64,,,1e-5\n", ":2: has no k"},
      {kHead + "aten::mm,float32,64,64,64,,-1e-5\n", "seconds is '-1e-5'"},
      {kHead + "aten::mm,float32,64,64,64,,nan\n", "expected a number > 0"},
      {kHead + "aten::mm,float32,64,64,64,100,1\n", "one or the other"},
      {kHead + "aten::mm,float32,,,,,1\n", "has no size"},
      {kHead + "mm,float32,64,64,64,,1\n", "operator 'mm'"},
      {kHead + "aten::mm,fp32,64,64,64,,1\n", "dtype 'fp32'"},
      {kHead + "aten::mm,float32,64,64,64,,1\naten::mm,float32,,,,5,1\n", ":3: must have the same size columns"},
      {kHead + "\"aten::mm,float32\n", "quoted field is not terminated"},
  };
  for (const auto& [text, message] : kWrong) {
    const CsvFile file(text);
    try {
      read_operator_csv(file.path());
      ADD_FAILURE() << text << " is taken";
    } catch (const ParseError& error) {
      EXPECT_THAT(error.what(), HasSubstr(message)) << text;
      EXPECT_THAT(error.what(), ::testing::StartsWith(file.path()));
    }
  }
  EXPECT_THROW(read_operator_csv("/nowhere.csv"), FileError);
}

const ProcessGroupInfo kEight{.name = "dp", .size = 8, .rank = 0, .ranks = {0, 1, 2, 3, 4, 5, 6, 7}, .axis = "dp"};

TEST(CollectiveTables, ByProcessesAndByAxis) {
  Interconnect links = Interconnect::named("h100");
  const CsvFile file(
      "collective,processes,bytes,seconds,axis\n"
      "all_reduce,8,1000000,1e-5,\n"
      "all_reduce,8,3000000,5e-5,\n"
      "all_reduce,8,2000000,4e-5,\n"
      "all_reduce,8,2000000,2e-5,\n"
      "all_gather,8,1000000,7e-5,tp\n");
  links.add_csv(file.path());
  const auto seconds = [&](CollectiveKind kind, int64_t bytes, const ProcessGroupInfo& group) {
    return collective_cost(kind, bytes, group, links, -1).seconds();
  };
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::kAllReduce, 1000000, kEight), 1e-5);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::kAllReduce, 2000000, kEight), 3e-5) << "the median of two";
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::kAllReduce, 1500000, kEight), 2e-5);
  ProcessGroupInfo apart = kEight;
  apart.ranks = {0, 8, 16, 24, 32, 40, 48, 56};
  EXPECT_GT(seconds(CollectiveKind::kAllReduce, 1000000, apart), 2e-5) << "a different placement from the measured one";
  ProcessGroupInfo tp = kEight;
  tp.axis = "tp";
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::kAllGather, 1000000, tp), 7e-5);
  EXPECT_LT(seconds(CollectiveKind::kAllGather, 1000000, kEight), 7e-5);
  const Interconnect again = interconnect_from_json(json::parse(to_json(links).dump()), "again");
  EXPECT_EQ(again.tables, links.tables);
  EXPECT_EQ(again.axes, links.axes);
  EXPECT_EQ(again.levels, links.levels);
}

TEST(CollectiveTables, BadRowsAreRefusedByFileAndLine) {
  const std::string kHead = "collective,processes,bytes,seconds,axis\n";
  const std::pair<std::string, const char*> kWrong[] = {
      {kHead + "all_reduc,8,1,1,\n", ":2: unknown collective 'all_reduc'"},
      {kHead + "all_reduce,1,1,1,\n", "between 2 and"},
      {kHead + "all_reduce,8,0,1,\n", "bytes is '0'"},
      {kHead + "all_reduce,8,1,1,dp\nall_reduce,4,1,1,dp\n", ":3: axis 'dp'"},
  };
  for (const auto& [text, message] : kWrong) {
    const CsvFile file(text);
    Interconnect links = Interconnect::named("h100");
    try {
      links.add_csv(file.path());
      ADD_FAILURE() << text << " is taken";
    } catch (const ParseError& error) {
      EXPECT_THAT(error.what(), HasSubstr(message)) << text;
    }
  }
}

TEST(Links, FewerProcessesThanAMeshHasReachEachOtherByFewerLinks) {
  const Interconnect links = Interconnect::named("v100");
  const auto bandwidth = [&](int64_t n) {
    ProcessGroupInfo group{.name = "g", .size = n, .rank = 0, .ranks = {}, .axis = ""};
    const CollectiveCost cost = collective_cost(CollectiveKind::kAllReduce, int64_t{1} << 32, group, links, -1);
    return static_cast<double>(cost.wire) / cost.transfer;
  };
  // A ring of n fills its pipeline in a quarter step: 2 n - 2 of 2 n - 1.75 steps.
  EXPECT_NEAR(bandwidth(2), 22e9 * 2 / 2.25, 1e6);
  EXPECT_NEAR(bandwidth(4), 80.6e9 * 6 / 6.25, 1e6);
  EXPECT_NEAR(bandwidth(8), 132e9 * 14 / 14.25, 1e6);
  EXPECT_NEAR(bandwidth(5), 80.6e9 * 8 / 8.25, 1e6) << "as four";
  ProcessGroupInfo eight{.name = "g", .size = 8, .rank = 0, .ranks = {}, .axis = ""};
  const CollectiveCost all = collective_cost(CollectiveKind::kAllToAll, int64_t{1} << 32, eight, links, -1);
  EXPECT_NEAR(static_cast<double>(all.wire) / all.transfer, 46.9e9 * 7 / 7.25, 1e6) << "pairs have no dedicated link";
}

}  // namespace
}  // namespace shadowgraph
