// Operator support reports, compared with the tables they are generated from and with the source tree.
#include "shadowgraph/profile/operator_support.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "core/fake/dispatch/operator_info.h"
#include "core/fake/rules/registry.h"
#include "ir/operators/operator_forms.h"
#include "kernels/compiler/operator_table.h"
#include "passes/decompose/decompositions.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "profiler/cost/scratch_rules.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "support/json.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// All reports of aten operators, by full name: looked up once per name without overload.
const std::map<std::string, OperatorSupport>& cards_of_aten() {
  static const auto* const cards = [] {
    std::set<std::string> names;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.starts_with("aten::") && c10::Dispatcher::singleton().findSchema(name)) names.insert(name.name);
    }
    auto* all = new std::map<std::string, OperatorSupport>;
    for (const std::string& name : names) {
      for (OperatorSupport& card : operator_support(name)) all->emplace(card.name, std::move(card));
    }
    return all;
  }();
  return *cards;
}

const OperatorSupport& card_of(const std::string& name) { return cards_of_aten().at(name); }

std::string says(const std::string& name, std::string_view table) { return card_of(name).row(table).entry; }
std::string place(const std::string& name, std::string_view table) { return card_of(name).row(table).place; }
bool is_missing(const std::string& name, std::string_view table) { return card_of(name).row(table).missing; }

std::string file_of(const std::string& place) { return place.substr(0, place.find(':')); }

std::string line_at(const std::string& place) {
  const std::string text = read_file(std::string(SHADOWGRAPH_SOURCE_DIR) + "/" + file_of(place));
  std::istringstream lines(text);
  std::string line;
  for (int i = std::stoi(place.substr(place.find(':') + 1)); i > 0; --i) std::getline(lines, line);
  return line;
}

std::string error_of(const std::string& name) {
  try {
    operator_support(name);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(OperatorCards, EveryOverloadOfAtenHasARowForEachTable) {
  size_t overloads = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!name.name.starts_with("aten::") || !op) continue;
    ++overloads;
    const OperatorSupport& card = card_of(toString(name));
    EXPECT_EQ(card.schema, toString(op->schema()));
    ASSERT_EQ(card.rows.size(), OperatorSupport::tables().size()) << card.name;
    for (size_t i = 0; i < card.rows.size(); ++i) {
      EXPECT_EQ(card.rows[i].table, OperatorSupport::tables()[i]) << card.name;
      EXPECT_FALSE(card.rows[i].entry.empty()) << card.name << ": " << card.rows[i].table;
    }
  }
  EXPECT_EQ(cards_of_aten().size(), overloads);
  EXPECT_GT(overloads, 3000u);
}

TEST(OperatorCards, EveryPlaceIsInTheSourceTree) {
  const std::filesystem::path root(SHADOWGRAPH_SOURCE_DIR);
  std::set<std::string> places;
  for (const auto& [name, card] : cards_of_aten()) {
    for (const OperatorSupport::Row& row : card.rows) {
      if (row.missing) {
        EXPECT_EQ(row.place, "") << name << ": " << row.table;
      }
      if (!row.place.empty()) places.insert(row.place);
    }
  }
  std::set<std::string> files;
  for (const std::string& one : places) {
    files.insert(file_of(one));
    const size_t colon = one.find(':');
    if (colon == one.npos) continue;
    const std::string line = line_at(one);
    EXPECT_NE(line.find_first_not_of(' '), line.npos) << one << " has an empty line";
  }
  for (const std::string& file : files) {
    EXPECT_FALSE(std::filesystem::path(file).is_absolute()) << file;
    EXPECT_TRUE(std::filesystem::is_regular_file(root / file)) << file;
  }
  EXPECT_GT(files.size(), 30u);  // shape rules, fast paths, decompositions, kernels, tables
}

TEST(OperatorCards, RowsAreThereWhereTheTablesAnswer) {
  for (const auto& [name, card] : cards_of_aten()) {
    SCOPED_TRACE(name);
    const auto op = c10::Dispatcher::singleton().findSchema(
        {name.substr(0, name.find('.')),
         name.find('.') == name.npos ? std::string() : name.substr(name.find('.') + 1)});
    ASSERT_TRUE(op);
    const OperatorInfo& info = OperatorInfo::of(*op);
    const Target& target = info.target;
    EXPECT_EQ(!card.row("FLOPs").missing, find_flop_row(name) != nullptr);
    EXPECT_EQ(!card.row("elementwise work").missing,
              ElementwiseFormula::of(target).coverage != ElementwiseCoverage::kNone);
    EXPECT_EQ(!card.row("decomposition").missing, decompositions::all().has(name));
    EXPECT_EQ(!card.row("kernel").missing, find_kernel_row(name) != nullptr);
    EXPECT_EQ(!card.row("composite rule").missing, RuleRegistry::global().find_composite(name) != nullptr);
    if (RuleRegistry::global().find(name)) {
      EXPECT_FALSE(card.row("shape rule").missing);
      EXPECT_THAT(card.row("shape rule").place, StartsWith("core/fake/rules/"));
    }
    if (info.route == Route::kComposite || info.route == Route::kMeta) {
      EXPECT_FALSE(card.row("shape rule").missing);
    }
    for (const auto& [device, table] : {std::pair(c10::kCPU, "scratch on a CPU"), {c10::kCUDA, "scratch on CUDA"}}) {
      if (const ScratchRow* row = find_scratch_row(target, device); row != nullptr && !card.row(table).place.empty()) {
        EXPECT_EQ(card.row(table).entry, row->reason);
      }
    }
    EXPECT_EQ(card.row("writes").missing, target.facts().unknown);
    if (!target.facts().unknown) {
      EXPECT_EQ(card.row("writes").entry == "nothing", target.facts().written.empty());
    }
    if (!target.facts().written.empty()) {
      EXPECT_EQ(!card.row("functional form").missing, functional_form(target) != nullptr);
    } else {
      EXPECT_EQ(!card.row("in-place form").missing, in_place_form(target) != nullptr);
    }
  }
}

// A call that registers many operators is identified by its last line.
TEST(OperatorCards, LinesAreThoseOfTheRegistrations) {
  EXPECT_THAT(line_at(place("aten::convolution", "shape rule")), HasSubstr("\"aten::convolution\""));
  EXPECT_THAT(line_at(place("aten::addmm", "decomposition")), HasSubstr("\"aten::addmm\""));
  EXPECT_THAT(line_at(place("aten::mm", "sharding rule")), StartsWith("aten::mm: m k, k n -> m n"));
  EXPECT_THAT(line_at(place("aten::gelu", "fast path")), EndsWith(">(aten);"));
}

TEST(OperatorCards, Gelu) {
  const std::vector<OperatorSupport> cards = operator_support("aten::gelu");
  std::vector<std::string> names;
  for (const OperatorSupport& card : cards) names.push_back(card.name);
  EXPECT_THAT(names, ElementsAre("aten::gelu", "aten::gelu.out"));
  EXPECT_THAT(cards[0].schema, StartsWith("aten::gelu(Tensor self, *, str approximate="));
  EXPECT_EQ(says("aten::gelu", "writes"), "nothing");
  EXPECT_THAT(says("aten::gelu", "aliases"), StartsWith("none"));
  EXPECT_EQ(says("aten::gelu", "in-place form"), "aten::gelu_");
  EXPECT_THAT(place("aten::gelu", "fast path"), StartsWith("core/fake/dispatch/unboxed_pointwise.cpp:"));
  EXPECT_EQ(says("aten::gelu", "FLOPs"), "none: only elementwise work is counted");
  EXPECT_EQ(says("aten::gelu", "elementwise work"), "4 FLOPs and 1 transcendental functions per element");
  EXPECT_EQ(place("aten::gelu", "elementwise work"), file_of(place("aten::add.Tensor", "elementwise work")));
  EXPECT_EQ(says("aten::gelu", "time class"), "transcendental");
  EXPECT_THAT(place("aten::gelu", "time class"), EndsWith("/kernel_class.cpp"));
  EXPECT_THAT(says("aten::gelu", "sharding rule"), StartsWith("class pointwise"));
  EXPECT_THAT(says("aten::gelu", "category"), StartsWith("activation"));
}

TEST(OperatorCards, AddAndItsFormInPlace) {
  ASSERT_EQ(operator_support("aten::add.Tensor").size(), 1u);
  EXPECT_GT(operator_support("aten::add").size(), 1u);
  EXPECT_EQ(says("aten::add.Tensor", "in-place form"), "aten::add_.Tensor");
  EXPECT_EQ(says("aten::add.Tensor", "functional form"), "itself");
  EXPECT_THAT(says("aten::add.Tensor", "effects"), HasSubstr("pointwise"));
  EXPECT_THAT(says("aten::add.Tensor", "kernel"), StartsWith("pointwise"));
  EXPECT_EQ(place("aten::add.Tensor", "kernel"), "kernels/compiler/pointwise_rows.cpp");
  EXPECT_EQ(says("aten::add.Tensor", "sharding rule"), "class pointwise; linear self other");

  EXPECT_EQ(says("aten::add_.Tensor", "writes"), "self");
  EXPECT_EQ(says("aten::add_.Tensor", "aliases"), "result 0 of self");
  EXPECT_EQ(says("aten::add_.Tensor", "functional form"), "aten::add.Tensor");
  EXPECT_EQ(says("aten::add_.Tensor", "in-place form"), "itself");
  EXPECT_EQ(place("aten::add_.Tensor", "sharding rule"), place("aten::add.Tensor", "sharding rule"));
}

TEST(OperatorCards, ProductsAndConvolutions) {
  EXPECT_EQ(says("aten::mm", "FLOPs"), "2mnk");
  EXPECT_EQ(says("aten::mm", "time class"), "matmul");
  EXPECT_EQ(says("aten::mm", "sharding rule"), "m k, k n -> m n; linear self | mat2");
  EXPECT_THAT(place("aten::mm", "sharding rule"), StartsWith("sharding/rules/builtin.txt:"));
  EXPECT_THAT(place("aten::mm", "fast path"), StartsWith("core/fake/dispatch/unboxed_products.cpp:"));
  EXPECT_THAT(says("aten::mm", "scratch on CUDA"), StartsWith("cuBLAS"));
  EXPECT_TRUE(is_missing("aten::mm", "decomposition"));
  EXPECT_TRUE(is_missing("aten::mm", "kernel"));
  EXPECT_THAT(says("aten::mm", "kernel"), HasSubstr("a matrix product"));
  EXPECT_THAT(says("aten::cumsum", "kernel"), HasSubstr("a scan"));
  EXPECT_THAT(says("aten::bernoulli_.float", "kernel"), HasSubstr("draws random numbers"));
  EXPECT_THAT(says("aten::view", "kernel"), HasSubstr("computes nothing"));

  EXPECT_THAT(place("aten::convolution", "shape rule"), StartsWith("core/fake/rules/convolution.cpp:"));
  EXPECT_EQ(says("aten::convolution", "FLOPs"), "2 N prod(weight) prod(spatial)");
  EXPECT_EQ(says("aten::convolution", "time class"), "convolution; depends on the operands");
  EXPECT_THAT(says("aten::convolution", "sharding rule"), AllOf(StartsWith("if !transposed: "), HasSubstr(" || ")));
  EXPECT_THAT(says("aten::convolution", "category"), StartsWith("matmul, convolution"));
}

TEST(OperatorCards, ResultsThatDependOnData) {
  EXPECT_THAT(says("aten::nonzero", "shape rule"), HasSubstr("DataDependentError"));
  EXPECT_EQ(says("aten::nonzero", "time class"), "gather");
  EXPECT_TRUE(is_missing("aten::nonzero", "FLOPs"));
}

TEST(OperatorCards, OptimizersWriteTheirLists) {
  EXPECT_EQ(says("aten::_fused_adamw_", "writes"), "self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs");
  EXPECT_EQ(says("aten::_fused_adamw_", "functional form"), "aten::_fused_adamw");
  EXPECT_EQ(place("aten::_fused_adamw_", "kernel"), "kernels/compiler/pointwise_rows.cpp");
  EXPECT_THAT(place("aten::_fused_adamw_", "decomposition"), StartsWith("passes/decompose/"));
  EXPECT_EQ(says("aten::_fused_adamw_", "time class"), "optimizer");
}

TEST(OperatorCards, ViewsAndRandomNumbers) {
  EXPECT_EQ(says("aten::view", "aliases"), "result 0 of self; a view");
  EXPECT_EQ(says("aten::view", "time class"), "free");
  EXPECT_THAT(says("aten::view", "elementwise work"), StartsWith("nothing to count"));
  EXPECT_THAT(says("aten::view", "scratch on CUDA"), StartsWith("none, "));

  const std::string bernoulli = "aten::bernoulli_.float";
  EXPECT_EQ(says(bernoulli, "writes"), "self; overwritten: self");
  EXPECT_THAT(says(bernoulli, "effects"), HasSubstr("draws random numbers"));
  EXPECT_EQ(says(bernoulli, "time class"), "random");
  EXPECT_EQ(place(bernoulli, "writes"), "ir/operators/operator_table.cpp");
  EXPECT_THAT(says(bernoulli, "scratch on CUDA"), HasSubstr("DistributionTemplates.h"));
}

TEST(OperatorCards, UnknownNamesAreErrorsThatSayANearOne) {
  EXPECT_THAT(error_of("aten::gelo"), EndsWith("did you mean aten::gelu?"));
  EXPECT_THAT(error_of("gelu"), EndsWith("did you mean aten::gelu?"));
  EXPECT_THAT(error_of("aten::add.Tensr"), EndsWith("did you mean aten::add.Tensor?"));
  EXPECT_THAT(error_of("nothing like any operator of libtorch"), HasSubstr("use names such as"));
  EXPECT_THAT(error_of(""), HasSubstr("unknown operator ''"));
  EXPECT_THROW(card_of("aten::mm").row("color of its eyes"), Error);
}

TEST(OperatorCards, AreWrittenAsTextAndJson) {
  const std::string text = to_text(card_of("aten::mm"));
  EXPECT_THAT(text, StartsWith("aten::mm(Tensor self, Tensor mat2) -> Tensor\n  shape rule "));
  EXPECT_THAT(text, HasSubstr("  decomposition    - none: unchanged by the pass `decompose`\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + static_cast<int64_t>(OperatorSupport::tables().size()));

  const auto json = parse_json(to_json(operator_support("aten::mm.out")), "cards");
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["name"], "aten::mm.out");
  EXPECT_EQ(json[0]["rows"].size(), OperatorSupport::tables().size());
  EXPECT_EQ(json[0]["rows"][0]["table"], "shape rule");
  EXPECT_EQ(json[0]["rows"][0]["missing"], false);
}

}  // namespace
}  // namespace shadowgraph
