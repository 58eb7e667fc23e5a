#include "core/capture/exported/symbolic_size.h"

#include <gtest/gtest.h>

namespace shadowgraph {
namespace {

SizeExpression parsed(const std::string& text) {
  const auto expression = SizeExpression::parse(text);
  EXPECT_TRUE(expression) << text;
  return expression ? *expression : *SizeExpression::parse("Integer(0)");
}

const std::string kS = "Symbol('s7', positive=True, integer=True)";

TEST(SymbolicSize, IsReadAsSympyWritesIt) {
  const SymbolValues values{{"s7", 9}, {"u0", -4}};
  EXPECT_EQ(parsed(kS).evaluate(values), 9);
  EXPECT_EQ(parsed("Add(" + kS + ", Integer(-3))").evaluate(values), 6);
  EXPECT_EQ(parsed("Mul(Integer(2), " + kS + ", Symbol('u0'))").evaluate(values), -72);
  EXPECT_EQ(parsed("FloorDiv(Symbol('u0'), Integer(3))").evaluate(values), -2) << "rounds down, as Python does";
  EXPECT_EQ(parsed("PythonMod(Symbol('u0'), Integer(3))").evaluate(values), 2);
  EXPECT_EQ(parsed("Max(Integer(1), " + kS + ", Integer(20))").evaluate(values), 20);
  EXPECT_EQ(parsed("Pow(" + kS + ", Integer(2))").evaluate(values), 81);
  EXPECT_EQ(parsed("CeilDiv(" + kS + ", Integer(2))").evaluate(values), 5);
}

TEST(SymbolicSize, HasNoValueWhereThereIsNone) {
  EXPECT_FALSE(parsed(kS).evaluate({}));
  EXPECT_FALSE(parsed("FloorDiv(" + kS + ", Integer(0))").evaluate({{"s7", 1}}));
  EXPECT_FALSE(parsed("Mul(" + kS + ", " + kS + ")").evaluate({{"s7", int64_t{1} << 40}}));
  EXPECT_FALSE(parsed("Pow(Integer(2), Integer(70))").evaluate({}));
  EXPECT_FALSE(parsed("Nobody(" + kS + ", Integer(1))").evaluate({{"s7", 1}}));
}

TEST(SymbolicSize, IsSolvedForTheOneSymbolThatIsUnknown) {
  const SizeExpression size = parsed("Add(Mul(Integer(2), " + kS + "), Symbol('s1'), Integer(1))");
  EXPECT_FALSE(size.unknown({})) << "two are";
  EXPECT_EQ(size.unknown({{"s1", 4}}), "s7");
  EXPECT_EQ(size.solve("s7", 15, {{"s1", 4}}), 5);  // 2 * 5 + 4 + 1
  EXPECT_FALSE(size.solve("s7", 16, {{"s1", 4}}));
  EXPECT_EQ(size.to_string(), "(2*s7) + s1 + 1");
}

TEST(SymbolicSize, RefusesWhatIsNotOne) {
  for (const char* text : {"", "s7", "Symbol(s7)", "Symbol('s7'", "Symbol('s7))", "Integer()", "Integer(1))", "Add(",
                           "Add(Integer(1),)", "Symbol('s7', positive)", "Integer(99999999999999999999)"}) {
    EXPECT_FALSE(SizeExpression::parse(text)) << text;
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "Add(";
  EXPECT_FALSE(SizeExpression::parse(deep));
}

}  // namespace
}  // namespace shadowgraph
