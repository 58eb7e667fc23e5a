#include "shadowgraph/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

enum class Shade : uint8_t { kLight, kDark };
constexpr auto enum_names(Shade) { return names_of<Shade>({{Shade::kLight, "light"}, {Shade::kDark, "dark"}}); }

struct Paint {
  struct Pot {
    std::optional<int64_t> bytes;
  };
  bool dry = false;
  int coats = 2;
  double share = 0.5;
  int64_t tokens = 0;
  double seconds = 0;
  Shade shade = Shade::kLight;
  std::vector<Shade> shades;
  std::vector<int64_t> sizes;
  Pot pot;
  std::string name = "wall";
  std::optional<char> letter;

  static OptionTable<Paint> table() {
    return OptionTable<Paint>()
        .group("Paint")
        .add("dry", &Paint::dry, "")
        .add("coats", &Paint::coats, "", {.min = 1, .max = 9})
        .add("share", &Paint::share, "", {.min = 0, .above = true})
        .group("Sizes")
        .add("tokens", &Paint::tokens, "", {.kind = OptionKind::kCount, .min = 1})
        .add("seconds", &Paint::seconds, "", {.kind = OptionKind::kSeconds})
        .add("shade", &Paint::shade, "")
        .add("shades", &Paint::shades, "")
        .add("some_sizes", &Paint::sizes, "", {.min = 1})
        .add("bytes", [](auto& paint) -> auto& { return paint.pot.bytes; }, "", {.kind = OptionKind::kBytes})
        .add("name", &Paint::name, "")
        .words("letter", &Paint::letter, {{"a", 'A'}, {"b", 'B'}}, "");
  }
};

std::string refusal(const std::string& name, const std::string& text) {
  try {
    Paint::table().read({{name, text}});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Options, FieldsAreReadByTheirTypes) {
  const Paint paint = Paint::table().read({{"dry", "true"},
                                           {"coats", "3"},
                                           {"tokens", "16Mi"},
                                           {"seconds", "2h"},
                                           {"shade", "dark"},
                                           {"shades", "dark,light"},
                                           {"some_sizes", "4,8"},
                                           {"bytes", "2KB"},
                                           {"letter", "b"}});
  EXPECT_TRUE(paint.dry);
  EXPECT_EQ(paint.coats, 3);
  EXPECT_EQ(paint.tokens, 16 << 20);
  EXPECT_EQ(paint.seconds, 7200);
  EXPECT_EQ(paint.shade, Shade::kDark);
  EXPECT_EQ(paint.shades, (std::vector{Shade::kDark, Shade::kLight}));
  EXPECT_EQ(paint.sizes, (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(paint.pot.bytes, 2000);
  EXPECT_EQ(paint.letter, 'B');
  EXPECT_EQ(paint.share, 0.5);
}

TEST(Options, RefusalsNameTheOptionAndWhatItTakes) {
  EXPECT_EQ(refusal("coats", "0"), "option coats=0: '0' is not an integer from 1 to 9");
  EXPECT_EQ(refusal("share", "0"), "option share=0: '0' is not a number > 0");
  EXPECT_EQ(refusal("some_sizes", "4,x"), "option some_sizes=4,x: 'x' is not an integer >= 1");
  EXPECT_EQ(refusal("shade", "red"), "option shade=red: 'red' is not one of light, dark");
  EXPECT_EQ(refusal("dry", "yes"), "option dry=yes: 'yes' is not true or false");
  EXPECT_THAT(refusal("wet", "1"), testing::StartsWith("unknown option 'wet'; expected one of dry, coats, "));
  Paint paint;
  paint.sizes = {3, 0};
  EXPECT_THROW(Paint::table().check(paint), Error);
  EXPECT_NO_THROW(Paint::table().check({.tokens = 1}));
}

template <class Table>
concept GivesRows = requires {
  std::declval<Table>().rows();
};
static_assert(GivesRows<const OptionTable<Paint>&> && !GivesRows<OptionTable<Paint>>);

TEST(Options, WhatRowsPrintTheyRead) {
  const Paint paint{.coats = 3, .tokens = 5, .seconds = 0.1, .shades = {Shade::kDark}, .sizes = {4, 8}, .letter = 'B'};
  const auto table = Paint::table();
  Paint copy;
  Paint by_json;
  for (const auto& row : table.rows()) {
    const auto words = row.print(paint);
    if (words.empty()) continue;
    row.read(copy, words);
    EXPECT_EQ(row.print(copy), words) << row.name;
    row.read(by_json, row.words(row.json(words)));
    EXPECT_EQ(row.print(by_json), words) << row.name;
  }
  EXPECT_EQ(table.at("seconds").print(paint), std::vector<std::string>{"0.1s"});
  EXPECT_EQ(table.at("seconds").json({"90s"}), 90);
}

TEST(Options, RowsSayWhatTheyAreAndGiveJson) {
  const auto table = Paint::table();
  EXPECT_EQ(table.at("some_sizes").flag(), "--some-sizes");
  EXPECT_EQ(table.at("some_sizes").group, "Sizes");
  EXPECT_EQ(table.at("some_sizes").takes.text(), "a list, each an integer >= 1");
  const auto json = [&](const char* name, const Paint& paint) {
    return table.at(name).json(table.at(name).print(paint));
  };
  Paint paint{.sizes = {4, 8}};
  EXPECT_EQ(json("some_sizes", paint), nlohmann::json({4, 8}));
  EXPECT_EQ(json("dry", paint), false);
  EXPECT_EQ(json("share", paint), 0.5);
  EXPECT_EQ(json("bytes", paint), nlohmann::json());
  EXPECT_EQ(table.at("some_sizes").words(nlohmann::json({1, 2})), (std::vector<std::string>{"1", "2"}));
  EXPECT_THROW(table.at("coats").words("3"), Error);
  EXPECT_THROW(table.at("some_sizes").words(3), Error);
}

}  // namespace
}  // namespace shadowgraph
