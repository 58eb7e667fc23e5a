// Graphs written by other versions of libtorch: operators are mapped to this version's if the call means the same.
#include "ir/operators/schema_changes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

// Reads a `call` of an operator with `schema`, as libtorch `version` would have written it.
Graph read_call(const std::string& schema, const std::string& call, const std::string& version = "2.99.0",
                const std::string& attributes = "") {
  return parse(
      fmt::format("shadowgraph 1 libtorch {}\noperator {}\ns0 = 16 cpu input\ns1 = 16 cpu temporary\n"
                  "%0 = sg::input(name=\"x\") : f32[2,2] @s0 cpu\n%1 = {} : f32[2,2] @s1 cpu{}\n",
                  version, schema, call, attributes));
}

const Target& target_of_call(const Graph& graph) { return graph.target(NodeId(1)); }

bool is_of_here(const Graph& graph) { return find_operator(target_of_call(graph)).has_value(); }

TEST(SchemaChanges, AnAddedArgumentIsItsDefault) {
  const Graph graph = read_call("aten::gelu(Tensor self) -> Tensor", "aten::gelu(self=%0)");
  ASSERT_TRUE(is_of_here(graph));
  // The text omits defaults, so an added default shows only in the schema.
  EXPECT_EQ(target_of_call(graph).schema_text(), "aten::gelu(Tensor self, *, str approximate=\"none\") -> Tensor");
  EXPECT_EQ(graph.arguments(NodeId(1)).size(), 2);
}

TEST(SchemaChanges, ADroppedArgumentMayNotBeStated) {
  const std::string schema = "aten::relu(Tensor self, *, int fast=0) -> Tensor";
  EXPECT_TRUE(is_of_here(read_call(schema, "aten::relu(self=%0)")));
  try {
    read_call(schema, "aten::relu(self=%0, fast=1)");
    FAIL() << "accepted an argument that this libtorch does not have";
  } catch (const ParseError& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown argument \"fast\""));
  }
}

TEST(SchemaChanges, WhatMeansSomethingElseStaysAnotherOperator) {
  for (const char* schema : {
           "aten::mm(Tensor self) -> Tensor",                                 // takes more arguments here
           "aten::gelu(Tensor self, *, str approximate=\"tanh\") -> Tensor",  // a different default
           "aten::relu(Tensor(a!) self) -> Tensor(a!)",                       // writes
           "aten::relu(Tensor self) -> (Tensor, Tensor)",                     // returns more
           "aten::relu(Tensor self, int how) -> Tensor",                      // takes more arguments there
           "aten::relu(int self) -> Tensor",                                  // another type
       }) {
    const Target target(TargetKind::kOperator, schema);
    EXPECT_TRUE(has_another_schema(target)) << schema;
    EXPECT_FALSE(in_this_libtorch(target)) << schema;
  }
}

// A text of the current version is taken literally: another schema means another operator.
TEST(SchemaChanges, ATextOfThisVersionIsReadAsItStands) {
  const Graph graph = read_call("aten::gelu(Tensor self) -> Tensor", "aten::gelu(self=%0)", TORCH_VERSION);
  EXPECT_FALSE(is_of_here(graph));
  EXPECT_EQ(target_of_call(graph).schema_text(), "aten::gelu(Tensor self) -> Tensor");
}

TEST(SchemaChanges, RenamedArgumentsAreFoundByEitherName) {
  for (const std::string name : {"grad", "grad_output"}) {
    const Graph graph = read_call(
        fmt::format("aten::_cdist_backward(Tensor {}, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor", name),
        fmt::format("aten::_cdist_backward({}=%0, x1=%0, x2=%0, p=2.0, cdist=%0)", name), "2.99.0",
        fmt::format(" | grad_mode saved({})", name));
    EXPECT_TRUE(is_of_here(graph)) << name;
    EXPECT_EQ(graph.arguments(NodeId(1))[0].ref.value, ValueId(0)) << name;
    ASSERT_EQ(graph.saved(NodeId(1)).size(), 1) << name;
    EXPECT_EQ(graph.saved(NodeId(1))[0].index, 0) << name;
  }
}

TEST(SchemaChanges, RenamedOperatorsAreThoseOfHere) {
  const Graph old =
      read_call("aten::cholesky(Tensor self, bool upper=False) -> Tensor", "aten::cholesky(self=%0, upper=true)");
  EXPECT_TRUE(is_of_here(old));
  const Graph later =
      read_call("aten::linalg_cholesky(Tensor self, *, bool upper=False) -> Tensor", "aten::linalg_cholesky(self=%0)");
  EXPECT_EQ(target_of_call(later).name(), "aten::linalg_cholesky");
  // Both names in one text refer to one operator if this libtorch has only the later one.
  const Graph both = parse(
      "shadowgraph 1 libtorch 2.99.0\noperator aten::linalg_cholesky(Tensor self, *, bool upper=False) -> Tensor\n"
      "operator aten::cholesky(Tensor self, bool upper=False) -> Tensor\ns0 = 16 cpu input\ns1 = 16 cpu temporary\n"
      "%0 = sg::input(name=\"x\") : f32[2,2] @s0 cpu\n%1 = aten::cholesky(self=%0) : f32[2,2] @s1 cpu\n");
  EXPECT_TRUE(is_of_here(both));
}

TEST(SchemaChanges, WhatIsGoneSaysWhatIsThereInstead) {
  EXPECT_THAT(std::string(why_removed("aten::qr")), HasSubstr("torch.linalg.qr"));
  EXPECT_EQ(why_removed("aten::mm"), "");
}

}  // namespace
}  // namespace shadowgraph
