// Pattern matching, in particular cases that must not match.
#include <gtest/gtest.h>

#include "shadowgraph/graph/edit.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

const char* const kOperators =
    "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
    "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
    "operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n"
    "operator aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\n"
    "operator aten::relu(Tensor self) -> Tensor\n"
    "operator aten::cat(Tensor[] tensors, int dim=0) -> Tensor\n"
    "operator aten::var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) "
    "-> (Tensor, Tensor)\n"
    "s0 = 16 cpu input\ns1 = 16 cpu parameter\ns2 = 16 cpu temporary\ns3 = 16 cpu temporary\ns4 = 16 cpu temporary\n"
    "s5 = 16 cpu temporary\n"
    "%0 = sg::input(name=\"x\") : f32[2,2] @s0\n%1 = sg::parameter(name=\"w\") : f32[2,2] @s1\n";

Graph graph_of(const std::string& nodes) { return samples::graph_of(kOperators + nodes); }

size_t matches(const std::string& nodes, const char* pattern) {
  const Graph graph = graph_of(nodes);
  verify(graph);
  const Pattern parsed = Pattern::parse(pattern);
  return find_matches(graph, parsed).size();
}

const char* const kMmAdd = "%p = aten::mm(self=%x, mat2=%w)\n%y = aten::add.Tensor(self=%p, other=%b)\nreturn %y\n";
const std::string kProduct = "%2 = aten::mm(self=%0, mat2=%1) : f32[2,2] @s2\n";

TEST(IrPattern, FindsCallsAndBindsValuesAndArguments) {
  const Graph graph = graph_of(kProduct + "%3 = aten::add.Tensor(self=%2, other=%0, alpha=2) : f32[2,2] @s3\n");
  const Pattern pattern = Pattern::parse(
      "# a product and a sum\n%p = aten::mm(self=%x, mat2=%w)\n%y = aten::add.Tensor(self=%p, other=%b, "
      "alpha=$a)\nreturn %y");
  const auto found = find_matches(graph, pattern);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].value("%b"), ValueId(0));
  EXPECT_EQ(found[0].value("%y"), ValueId(3));
  EXPECT_EQ(found[0].argument("$a").i, 2);
  EXPECT_EQ(found[0].last, NodeId(3));
  EXPECT_THROW(found[0].value("%z"), Error);
  EXPECT_THROW(found[0].argument("$z"), Error);
}

TEST(IrPattern, ConstantsAreMatchedExactly) {
  const std::string sum = "%3 = aten::add.Tensor(self=%2, other=%0, alpha=2) : f32[2,2] @s3\n";
  EXPECT_EQ(matches(kProduct + sum, kMmAdd), 0U);  // alpha=1 is left out
  const auto with = [&](const std::string& alpha) {
    const std::string text =
        "%p = aten::mm(self=%x, mat2=%w)\n%y = aten::add.Tensor(self=%p, other=%b" + alpha + ")\nreturn %y";
    return matches(kProduct + sum, text.c_str());
  };
  EXPECT_EQ(with(", alpha=2"), 1U);
  EXPECT_EQ(with(", alpha=2.0"), 0U);
  EXPECT_EQ(with(", alpha=_"), 1U);
  EXPECT_EQ(with(", ..."), 1U);
}

TEST(IrPattern, RepeatedNamesMustBeTheSame) {
  const char* square = "%y = aten::mm(self=%x, mat2=%x)\nreturn %y";
  EXPECT_EQ(matches(kProduct, square), 0U);
  EXPECT_EQ(matches("%2 = aten::mm(self=%0, mat2=%0) : f32[2,2] @s2\n", square), 1U);
}

TEST(IrPattern, InnerValuesMustNotBeUsedOutside) {
  const std::string sum = "%3 = aten::add.Tensor(self=%2, other=%0) : f32[2,2] @s3\n";
  EXPECT_EQ(matches(kProduct + sum, kMmAdd), 1U);
  EXPECT_EQ(matches(kProduct + sum + "%4 = aten::relu(self=%2) : f32[2,2] @s4\n", kMmAdd), 0U);
  EXPECT_EQ(matches(kProduct + sum + "%4 = aten::relu(self=%3) : f32[2,2] @s4 | saved(internal=%2)\n", kMmAdd), 0U);
  EXPECT_EQ(matches(kProduct + sum + "%4 = aten::relu(self=%2) : f32[2,2] @s4\n",
                    "%p = aten::mm(self=%x, mat2=%w)\n%y = aten::add.Tensor(self=%p, other=%b)\nreturn %y, %p"),
            1U);
}

TEST(IrPattern, NotAcrossAWriteToWhatIsRead) {
  const std::string write = "%3 = aten::add_.Tensor(self=%0, other=%1) : f32[2,2] @s0\n";
  const std::string sum = "%4 = aten::add.Tensor(self=%2, other=%1) : f32[2,2] @s3\n";
  EXPECT_EQ(matches(kProduct + write + sum, kMmAdd), 1U);  // the replacement goes before the write
  const std::string late = "%4 = aten::add.Tensor(self=%2, other=%3) : f32[2,2] @s3\n";
  // mm reads x before the write; its replacement would come after
  EXPECT_EQ(matches(kProduct + write + late, kMmAdd), 0U);
  const std::string fits =
      "%2 = aten::add_.Tensor(self=%0, other=%1) : f32[2,2] @s0\n"
      "%3 = aten::mm(self=%0, mat2=%1) : f32[2,2] @s2\n"
      "%4 = aten::add.Tensor(self=%3, other=%1) : f32[2,2] @s3\n";
  EXPECT_EQ(matches(fits, kMmAdd), 1U);
}

TEST(IrPattern, NotIfAReturnedValueIsNeededForTheRest) {
  const char* both = "%p = aten::mm(self=%x, mat2=%w)\n%y = aten::add.Tensor(self=%p, other=%b)\nreturn %p, %y";
  const std::string use = "%3 = aten::relu(self=%2) : f32[2,2] @s3\n";
  const std::string sum = "%4 = aten::add.Tensor(self=%2, other=%1) : f32[2,2] @s4\n";
  EXPECT_EQ(matches(kProduct + use + sum, both), 1U);  // the replacement goes before that use
  const std::string of_use = "%4 = aten::add.Tensor(self=%2, other=%3) : f32[2,2] @s4\n";
  EXPECT_EQ(matches(kProduct + use + of_use, both), 0U);  // the use is itself needed by a matched node
  EXPECT_EQ(matches(kProduct + "%3 = aten::add.Tensor(self=%2, other=%1) : f32[2,2] @s4\n"
                               "%4 = aten::relu(self=%2) : f32[2,2] @s3\n",
                    both),
            1U);
}

TEST(IrPattern, MatchesDoNotOverlap) {
  const char* twice = "%a = aten::relu(self=%x)\n%b = aten::relu(self=%a)\nreturn %b";
  EXPECT_EQ(matches("%2 = aten::relu(self=%0) : f32[2,2] @s2\n%3 = aten::relu(self=%2) : f32[2,2] @s3\n"
                    "%4 = aten::relu(self=%3) : f32[2,2] @s4\n%5 = aten::relu(self=%4) : f32[2,2] @s5\n",
                    twice),
            2U);
  EXPECT_EQ(matches("%2 = aten::relu(self=%0) : f32[2,2] @s2\n%3 = aten::relu(self=%2) : f32[2,2] @s3\n"
                    "%4 = aten::relu(self=%3) : f32[2,2] @s4\n",
                    twice),
            1U);
}

TEST(IrPattern, SiblingsListsAndSeveralResults) {
  EXPECT_EQ(matches("%2 = aten::relu(self=%0) : f32[2,2] @s2\n%3 = aten::mm(self=%0, mat2=%1) : f32[2,2] @s3\n"
                    "%4 = aten::mm(self=%0, mat2=%0) : f32[2,2] @s4\n",
                    "%a = aten::mm(self=%x, mat2=%v)\n%b = aten::mm(self=%x, mat2=%w)\nreturn %a, %b"),
            1U);
  EXPECT_EQ(matches("%2 = aten::relu(self=%0) : f32[2,2] @s2\n%3 = aten::cat(tensors=[%2, %0]) : f32[2,2] @s3\n",
                    "%a = aten::relu(self=%x)\n%b = aten::cat(tensors=[%a, %x])\nreturn %b"),
            1U);
  EXPECT_EQ(matches("%2 = aten::relu(self=%0) : f32[2,2] @s2\n%3 = aten::cat(tensors=[%2, %0, %0]) : f32[2,2] @s3\n",
                    "%a = aten::relu(self=%x)\n%b = aten::cat(tensors=[%a, %x])\nreturn %b"),
            0U);
  const std::string moments = "%2, %3 = aten::var_mean.correction(self=%0, dim=[1]) : f32[2] @s2, f32[2] @s3\n";
  EXPECT_EQ(matches(moments, "%v, %m = aten::var_mean.correction(self=%x, dim=[1])\nreturn %v, %m"), 1U);
  EXPECT_EQ(matches(moments, "%v, %m = aten::var_mean.correction(self=%x, dim=[1, 2])\nreturn %v, %m"), 0U);
  EXPECT_EQ(matches(moments, "_, %m = aten::var_mean.correction(self=%x, ...)\nreturn %m"), 1U);
  EXPECT_EQ(matches(moments + "%4 = aten::relu(self=%2) : f32[2] @s4\n",
                    "_, %m = aten::var_mean.correction(self=%x, ...)\nreturn %m"),
            0U);
}

TEST(IrPattern, Refusals) {
  const std::pair<const char*, const char*> cases[] = {
      {"%y = aten::relu(self=%x)", "no 'return' line"},
      {"%y = aten::relu(x=%x)\nreturn %y", "no argument of this name"},
      {"%y = aten::relu()\nreturn %y", "argument 'self' is missing"},
      {"%y = aten::nonsense(self=%x)\nreturn %y", "unknown operator 'aten::nonsense'"},
      {"%y = aten::relu(self=%x)\n%y = aten::relu(self=%x)\nreturn %y", "a value that an earlier line defines"},
      {"%y = aten::relu(self=%x)\n%x = aten::relu(self=%y)\nreturn %y",
       "a value that an earlier line uses before its definition"},
      {"return %y\n%y = aten::relu(self=%x)", "a line after 'return'"},
      {"%y = aten::relu(self=%x, self=%x)\nreturn %y", "an argument given twice"},
      {"%y = aten::relu(self=%x) : f32[2]\nreturn %y", ""},
      {"%y = aten::relu(self=%)\nreturn %y", "a '%' without a name"},
  };
  for (const auto& [text, why] : cases) {
    try {
      Pattern::parse(text);
      ADD_FAILURE() << "not refused: " << text;
    } catch (const ParseError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }
  const Graph graph = graph_of(kProduct);
  EXPECT_THROW(find_matches(graph, Pattern::parse("return %y")), Error);
  EXPECT_THROW(find_matches(graph, Pattern::parse("%a = aten::relu(self=%x)\n%b = aten::relu(self=%y)\nreturn %a, %b")),
               Error);
}

}  // namespace
}  // namespace shadowgraph
