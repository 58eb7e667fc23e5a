// Parses quantities as users write them (shadowgraph/units.h), and enumerator names (shadowgraph/names.h).
#include <gtest/gtest.h>

#include "shadowgraph/error.h"
#include "shadowgraph/names.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

enum class Fruit : uint8_t { kApple, kPear };
constexpr auto enum_names(Fruit) { return names_of<Fruit>({{Fruit::kApple, "apple"}, {Fruit::kPear, "pear"}}); }

namespace {

TEST(Quantities, CountsAreDecimalUnlessBinaryIsAskedFor) {
  EXPECT_EQ(parse_count("512"), 512);
  EXPECT_EQ(parse_count("8k"), 8000);
  EXPECT_EQ(parse_count("8Ki"), 8192);
  EXPECT_EQ(parse_count("16M"), 16'000'000);
  EXPECT_EQ(parse_count("16Mi"), 16 << 20);
  EXPECT_EQ(parse_count("15T"), 15'000'000'000'000);
  EXPECT_EQ(parse_count("1.5k"), 1500);
  EXPECT_EQ(parse_count("300B"), 300'000'000'000);
  for (const char* text :
       {"", "k", "-1", "0", "1.5", "8q", "8kk", "8Mib", "nan", "inf", "1e30", "9e18k", "8k tokens", " 8"}) {
    EXPECT_EQ(parse_count(text), std::nullopt) << text;
  }
}

TEST(Quantities, BytesAreAsTheirUnitsSay) {
  EXPECT_EQ(parse_bytes("24GiB"), int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("80 GB"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("1.5TB"), 1'500'000'000'000);
  EXPECT_EQ(parse_bytes("1.5 KiB"), 1536);
  EXPECT_EQ(parse_bytes("7"), 7);
  EXPECT_EQ(parse_bytes("7b"), 7);
  for (const char* text : {"", "GB", "-1", "0", "1 XB", "1e30", "1G", "1Gi", "1GiBs", "infB"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Quantities, Durations) {
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("20 min"), 1200);
  EXPECT_EQ(parse_duration("1.5h"), 5400);
  EXPECT_EQ(parse_duration("14d"), 14 * 86400.0);
  for (const char* text : {"", "14", "d", "-1d", "1w", "1m"}) EXPECT_EQ(parse_duration(text), std::nullopt) << text;
}

TEST(Names, ToStringAndParseFollowTheTable) {
  EXPECT_EQ(to_string(Fruit::kPear), "pear");
  EXPECT_EQ(to_string(static_cast<Fruit>(7)), "?");
  EXPECT_EQ(parse<Fruit>("apple", "fruit"), Fruit::kApple);
  EXPECT_EQ(find_named<Fruit>("plum"), std::nullopt);
  try {
    parse<Fruit>("plum", "fruit");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "fruit 'plum' is not one of apple, pear");
  }
}

}  // namespace
}  // namespace shadowgraph
