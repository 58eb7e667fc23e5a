#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/error.h"
#include "support/json.h"

namespace shadowgraph {
namespace {

using testing::HasSubstr;

template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const ParseError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(JsonText, WhatIsNoneNamesFileLineAndColumn) {
  EXPECT_THAT(refusal([] { parse_json("{\"a\": 1,\n \"b\" 2}", "my.json"); }), HasSubstr("my.json:2:6: invalid JSON"));
  EXPECT_THAT(refusal([] { parse_json("", "my.json"); }), HasSubstr("my.json:1:1: invalid JSON"));
  EXPECT_THAT(refusal([] { parse_json("[1e999]", "my.json"); }), HasSubstr("my.json:1:1: invalid JSON"));
  EXPECT_THAT(refusal([] { parse_json("\"\\ud800\"", "my.json"); }), HasSubstr("my.json:1:"));
}

TEST(JsonText, DepthIsBounded) {
  const auto nested = [](int depth) { return std::string(size_t(depth), '[') + std::string(size_t(depth), ']'); };
  EXPECT_NO_THROW(parse_json(nested(kDeepestJson), "my.json"));
  EXPECT_THAT(refusal([&] { parse_json(nested(kDeepestJson + 1), "my.json"); }), HasSubstr("nested too deeply"));
  EXPECT_THAT(refusal([&] { parse_json(std::string(10'000'000, '{'), "my.json"); }), HasSubstr("nested too deeply"));
  // Brackets inside strings do not count, even next to escapes.
  EXPECT_NO_THROW(parse_json("\"" + std::string(5000, '[') + "\\\"" + std::string(5000, '[') + "\"", "my.json"));
}

class Places : public testing::Test {
 protected:
  nlohmann::json document_ = parse_json(R"({"a": {"list": [1, {"b": "x"}, -3.5]}, "none": null, "flag": true,
                                            "most": 18446744073709551615, "inf": "Infinity", "": {"c": []}})",
                                        "my.json");
  JsonPlace place_{document_, "my.json: not a list of things"};
};

TEST_F(Places, ReadWhatIsThere) {
  EXPECT_EQ(place_["a"]["list"].size(), 3U);
  EXPECT_EQ(place_["a"]["list"][0].integer(), 1);
  EXPECT_EQ(place_["a"]["list"][1]["b"].text(), "x");
  EXPECT_EQ(place_["a"]["list"][2].number(), -3.5);
  EXPECT_EQ(place_["inf"].number(), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(place_["flag"].boolean());
  EXPECT_FALSE(place_.find("none").has_value());
  EXPECT_EQ(place_.text_or("none", "other"), "other");
  EXPECT_EQ(place_.amount_or("absent", 7), 7);
  EXPECT_EQ(place_["a"].alternative().first, "list");
  EXPECT_EQ(place_.members().size(), document_.size());
}

TEST(JsonPlaceKeys, ReadersAreTheSchema) {
  const nlohmann::json document =
      parse_json(R"({"size": 1, "latancy": 2, "rates": {"slow": 0, "tiny": 1e-300, "huge": 1e35, "good": 5},
                     "memory": [80, 1e30, 1048576.5, 85899345920, 0]})",
                 "my.json");
  const JsonPlace place(document, "my.json");
  place["size"];
  place.find("latency");
  const JsonPlace rates = place["rates"];
  const JsonPlace memory = place["memory"];
  const JsonPlace copy = place;  // keeps the keys looked up so far
  EXPECT_EQ(refusal([&] { copy.refuse_other_keys("a level"); }),
            "my.json: latancy is not a key of a level (did you mean latency?); expected one of size, latency, rates, "
            "memory");
  EXPECT_EQ(refusal([&] { place["bandwidth"]; }), "my.json: bandwidth is missing");
  const JsonPlace again(document, "my.json");
  EXPECT_EQ(refusal([&] { again["latency"]; }), "my.json: latency is missing; latancy is not a key");
  again.find("latancy");
  for (const char* key : {"size", "rates", "memory"}) again.find(key);
  EXPECT_NO_THROW(again.refuse_other_keys("a level"));
  EXPECT_EQ(rates["good"].rate(), 5);
  EXPECT_EQ(rates.rate_or_zero("slow"), 0);
  EXPECT_EQ(rates.rate_or_zero("absent"), 0);
  for (const char* bad : {"slow", "tiny", "huge"}) {
    EXPECT_THAT(refusal([&] { rates[bad].rate(); }), HasSubstr(std::string("rates.") + bad + " must be positive"));
  }
  EXPECT_THAT(refusal([&] { rates["huge"].seconds(); }), HasSubstr("rates.huge must be at most 1e6 seconds"));
  for (size_t i = 0; i < 3; ++i) EXPECT_THAT(refusal([&] { memory[i].memory(); }), HasSubstr("from 1 MiB to 2^60"));
  EXPECT_EQ(memory[3].memory(), int64_t{80} << 30);
  EXPECT_EQ(memory[4].memory(), 0);
}

TEST_F(Places, RefuseWithThePathAndWhatIsExpected) {
  const std::string heading = "my.json: not a list of things: ";
  EXPECT_EQ(refusal([&] { place_["b"]; }), heading + "b is missing");
  EXPECT_EQ(refusal([&] { place_["none"]; }), heading + "none is missing");
  EXPECT_EQ(refusal([&] { place_.text(); }), heading + "the document is not a string but an object");
  EXPECT_EQ(refusal([&] { place_["a"]["list"].members(); }), heading + "a.list is not an object but a list");
  EXPECT_EQ(refusal([&] { place_["a"]["list"][1]["b"].number(); }),
            heading + "a.list[1].b is not a number but a string");
  EXPECT_EQ(refusal([&] { place_["a"]["list"][3]; }), heading + "a.list has no element 3");
  EXPECT_EQ(refusal([&] { place_["a"]["list"][2].integer(); }), heading + "a.list[2] is not an integer but a number");
  EXPECT_EQ(refusal([&] { place_["a"]["list"][2].amount(); }), heading + "a.list[2] is not a finite number >= 0");
  EXPECT_EQ(refusal([&] { place_["inf"].amount(); }), heading + "inf is not a finite number >= 0");
  EXPECT_EQ(refusal([&] { place_["most"].integer(); }), heading + "most is larger than 2^63 - 1");
  EXPECT_EQ(refusal([&] { place_["a"]["list"][0].integer(2, 9); }), heading + "a.list[0] is 1, not between 2 and 9");
  EXPECT_EQ(refusal([&] { place_["a"]["list"][0].integer(-9, 0); }), heading + "a.list[0] is 1, not between -9 and 0");
  EXPECT_EQ(refusal([&] { place_["flag"]["x"]; }), heading + "flag is not an object but a boolean");
  EXPECT_EQ(refusal([&] { place_["a"]["list"][1].alternative().second.boolean(); }),
            heading + "a.list[1].b is not a boolean but a string");
  EXPECT_EQ(refusal([&] { place_.alternative(); }), heading + "the document is not an object with one member");
  EXPECT_EQ(refusal([&] { place_.text_or("flag", ""); }), heading + "flag is not a string but a boolean");
}

}  // namespace
}  // namespace shadowgraph
