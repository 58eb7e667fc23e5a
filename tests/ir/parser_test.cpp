// Error messages of the parser, and that malformed text never crashes it.
#include <gtest/gtest.h>

#include <random>

#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

const std::string kHead = "shadowgraph 1 libtorch 2.13.0\n";

ParseError error_of(const std::string& text) {
  try {
    parse(text, "a.sg");
  } catch (const ParseError& error) {
    return error;
  }
  ADD_FAILURE() << "no error for:\n" << text.substr(0, 2000);
  return ParseError("", 0, 0);
}

TEST(IrParser, ErrorsSayWhereAndWhat) {
  const ParseError error =
      error_of(kHead + "operator aten::t(Tensor(a) self) -> Tensor(a)\n%0 = aten::t(self=%3) : f32[2]\n");
  EXPECT_EQ(error.line(), 3);
  EXPECT_EQ(error.column(), 19);
  EXPECT_STREQ(error.what(),
               "a.sg:3:19: %3 is not defined on an earlier line, expected a value defined earlier\n"
               "  %0 = aten::t(self=%3) : f32[2]\n"
               "                    ^");
}

TEST(IrParser, Refusals) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "not shadowgraph text"},
      {"hello", "not shadowgraph text"},
      {"shadowgraph 2 libtorch 3.0", "format version 2 is newer than this library supports; update shadowgraph"},
      {"shadowgraph 0 libtorch 3.0", "not a format version"},
      {"shadowgraph 99999999999999999999 libtorch 1", "does not fit a 64-bit integer"},
      {kHead + "meta \"a\" = \"b\"\nmeta \"a\" = \"c\"\n", "second meta line"},
      {kHead + "meta \"a\" = \"b\n", "an unterminated string"},
      {kHead + "meta \"a\" = \"\\q\"\n", "invalid escape"},
      {kHead + "operator nonsense\n", "not an operator schema"},
      {kHead + "operator aten::f(int[1000000000] x=1) -> ()\n", "a fixed-size list that is too large"},
      {kHead + "operator aten::f(" + std::string(100000, '(') + "\n", "too long"},
      {kHead + "operator aten::f(" + std::string(1000, '(') + "\n", "nested too deeply"},
      {kHead + "operator aten::f() -> ()\noperator aten::f() -> ()\n", "a repeated schema"},
      {kHead + "s1 = 4 cpu input\n", "out of order, expected s0"},
      {kHead + "s0 = 4 gpu input\n", "not a device, expected a device such as"},
      {kHead + "s0 = 4 cpu thing\n", "not a storage kind"},
      {kHead + "s0 = 4 cpu input born n0\n", "n0 is not defined"},
      {kHead + "r1 = module \"a\" \"b\" call 0 in r1\n", "not an earlier region"},
      {kHead + "r1 = root\n", "not a region kind"},
      {kHead + "r1 = module \"a\" \"b\" call -1 in r0\n", "call index out of range"},
      {kHead + "c0 = f32[2] \"AAAA\"\n", "does not match the type"},
      {kHead + "c0 = f32[2] \"A\"\n", "not base64"},
      {kHead + "c0 = f32[4611686018427387904,4611686018427387904] \"\"\n", "does not match the type"},
      {kHead + "c0 = qi8[1] \"AA==\"\n", "does not match the type"},
      {kHead + "depends size(%0, 1) = \"2\"\n", "%0 is not defined"},
      {kHead + "n1: sg::input(name=\"x\")\n", "out of order, expected n0"},
      {kHead + "%1 = sg::input(name=\"x\") : f32[]\n", "out of order, expected %0"},
      {kHead + "aten::mm(self=None)\n", "unknown operator \"aten::mm\""},
      {kHead + "sg::input()\n", "argument 'name' is missing"},
      {kHead + "sg::input(nam=\"x\")\n", "unknown argument \"nam\""},
      {kHead + "sg::input(name=\"x\", name=\"y\")\n", "a repeated argument"},
      {kHead + "sg::input(\"x\")\n", "an argument without a name"},
      {kHead + "sg::input(name=1e)\n", "not a number"},
      {kHead + "sg::input(name=99999999999999999999)\n", "out of range"},
      {kHead + "sg::input(name=blue)\n", "not a value: \"blue\""},
      {kHead + "sg::input(name=c0)\n", "an undeclared constant"},
      {kHead + "sg::input(name=nan(1))\n", "not a NaN"},
      {kHead + "sg::input(name=" + std::string(100000, '[') + ")\n", "nested too deeply"},
      {kHead + "sg::input(name=\"x\") extra\n", "expected the end of the line"},
      {kHead + "%0 = sg::input(name=\"x\")\n", "expected ':'"},
      {kHead + "%0 = sg::input(name=\"x\") : f99[2]\n", "not a type"},
      {kHead + "%0 = sg::input(name=\"x\") : f32[2]{1,2}\n", "a different number of strides and sizes"},
      {kHead + "%0 = sg::input(name=\"x\") : f32[2] @s0\n", "s0 is not declared"},
      {kHead + "%0 = sg::input(name=\"x\") : f32[2] shiny\n", "an unknown type attribute"},
      {kHead + "sg::input(name=\"x\") | r5\n", "r5 is not declared"},
      {kHead + "sg::input(name=\"x\") | of n5\n", "n5 is not defined"},
      {kHead + "sg::input(name=\"x\") | sideways\n", "an unknown node attribute"},
      {kHead + "sg::input(name=\"x\") | saved(name)\n", "its value as well"},
      {kHead + "sg::input(name=\"x\") | saved(other)\n", "not a saved tensor"},
      {kHead + "sg::input(name=\"x\") | saved(result[0])\n", "an unknown result"},
      {kHead + "sg::input(name=\"x\") | saved(internal=%5)\n", "%5 is not defined"},
      {kHead + "s0 = 4 cpu input\nsg::input(name=\"x\") | free(s0, s0)\n", "freed before"},
      {kHead + "s0 = 4 cpu input\nsg::input(name=\"x\") | writes(s0@1)\n",
       "a write that this operator does not perform"},
  };
  for (const auto& [text, message] : cases) {
    const ParseError error = error_of(text);
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what() << "\nexpected: " << message;
    EXPECT_GE(error.line(), 1) << error.what();
    EXPECT_GE(error.column(), 1) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 2000U) << "the whole line was printed";
  }
}

TEST(IrParser, StatedWritesMustBeTheOnesMade) {
  const std::string text = samples::kTraining;
  const size_t at = text.find("writes(s3@1)");
  for (const char* wrong : {"writes(s3@2)", "writes(s2@1)", "writes(s3@1, s2@1)"}) {
    std::string changed = text;
    changed.replace(at, 12, wrong);
    EXPECT_NE(std::string(error_of(changed).what()).find("write"), std::string::npos);
  }
  std::string silent = text;
  silent.replace(at, 12, "");
  EXPECT_EQ(to_text(parse(silent)), text);
}

TEST(IrParser, HandwrittenTextMayBeLoose) {
  const Graph graph = parse(
      "\n# a comment\r\nshadowgraph 1 libtorch whatever\r\n\r\n  operator aten::add.Tensor(Tensor self, Tensor other, "
      "*, "
      "Scalar alpha=1) -> Tensor\r\ns0 = 4 cpu input\r\n%0=sg::input( name = \"x\" ):f32[ ]@s0\r\n"
      "   aten::add.Tensor(alpha=1,other=%0,self=%0)|forward");
  EXPECT_EQ(graph.node_count(), 2U);
  EXPECT_NE(to_text(graph).find("n1: aten::add.Tensor(self=%0, other=%0)\n"), std::string::npos) << to_text(graph);
}

TEST(IrParser, MutationsNeverCrash) {
  std::mt19937_64 random(20261122);
  const std::string text = samples::kTraining;
  const std::string_view pieces[] = {
      "%",  "s",  "r",    "n",  "(",  ")",     "[",     "]",           "{",          "}",       ",",     "=",
      ":",  "@",  "|",    "\"", "\\", "\n",    "-1",    "99999999999", "4294967295", "nan",     "inf",   "None",
      "%?", "c0", "\xff", "0",  " ",  "list[", "ints[", "complex(",    "saved(",     "writes(", "free(", "of n0"};
  int graphs = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string mutated = text;
    for (uint64_t changes = 1 + random() % 3; changes-- > 0;) {
      const size_t at = random() % mutated.size();
      const std::string_view piece = pieces[random() % std::size(pieces)];
      switch (random() % 5) {
        case 0:
          mutated.erase(at, 1 + random() % 8);
          break;
        case 1:
          mutated.insert(at, piece);
          break;
        case 2:
          mutated.replace(at, piece.size(), piece);
          break;
        case 3:
          mutated[at] = static_cast<char>(random());
          break;
        default: {  // duplicate a substring elsewhere
          const std::string stretch = mutated.substr(at, random() % 60);
          mutated.insert(random() % mutated.size(), stretch);
        }
      }
    }
    try {
      const Graph graph = parse(mutated);
      ++graphs;
      // Whatever parses can be printed, round-trips, and can be passed to the verifier, valid or not.
      ASSERT_EQ(to_text(parse(to_text(graph))), to_text(graph)) << mutated;
      violations(graph);
    } catch (const ParseError& error) {
      ASSERT_GE(error.line(), 1) << error.what();
      ASSERT_GE(error.column(), 1) << error.what();
    }
  }
  EXPECT_GT(graphs, 30) << "too many mutations fail to parse, so later stages are not tested";
}

TEST(IrParser, TruncationsNeverCrash) {
  const std::string text = samples::kTraining;
  int graphs = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    try {
      const Graph graph = parse(text.substr(0, i));
      ++graphs;
      EXPECT_EQ(to_text(parse(to_text(graph))), to_text(graph));
    } catch (const ParseError& error) {
      EXPECT_GE(error.line(), 1) << error.what();
    }
  }
  EXPECT_GT(graphs, 10) << "at the end of a line, say";
}

}  // namespace
}  // namespace shadowgraph
