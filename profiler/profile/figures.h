// Rows of figures.cpp, as the writers of text and JSON take them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "shadowgraph/profile/profilers.h"

namespace shadowgraph {

struct CommunicationSum;

// Where a figure's line stands in the text. kNowhere: it has none, or a writer of its own (profile_text.cpp).
enum class TextPart : uint8_t { kNowhere, kModel, kPeak, kScratch, kAllocator, kTime };

// What follows a figure in its line; nullopt: this report has no such line.
using FigureNote = std::function<std::optional<std::string>(const Profile&)>;

template <class>
constexpr bool kIsOptional = false;
template <class Number>
constexpr bool kIsOptional<std::optional<Number>> = true;

// A figure of T, which is a profile or a part of one.
template <class T>
struct FigureOf {
  // `get` takes a T and returns a number; or an optional one, which is not required then.
  template <class Get>
  FigureOf(std::string key, FigureUnit unit, std::string doc, Get get, TextPart part = TextPart::kNowhere,
           std::string label = {}, FigureNote note = {})
      : key(std::move(key)),
        unit(unit),
        doc(std::move(doc)),
        value([get](const T& part) {
          const auto found = std::invoke(get, part);
          if constexpr (kIsOptional<std::remove_const_t<decltype(found)>>) {
            return found ? number(*found) : std::nullopt;
          } else {
            return number(found);
          }
        }),
        required(!kIsOptional<std::remove_cvref_t<std::invoke_result_t<Get, const T&>>>),
        part(part),
        label(std::move(label)),
        note(std::move(note)) {}

  template <class Number>
  static FigureValue number(Number number) {
    if constexpr (std::is_floating_point_v<Number>)
      return number;
    else
      return static_cast<int64_t>(number);
  }

  std::string key;
  FigureUnit unit;
  std::string doc;
  std::function<FigureValue(const T&)> value;
  bool required;
  TextPart part;
  std::string label;
  FigureNote note;
};

// Of parts that a profile has several of.
const std::vector<FigureOf<DeviceMemory>>& device_memory_figures();
const std::vector<FigureOf<PeakInfo>>& peak_figures();
const std::vector<FigureOf<CommunicationSum>>& communication_figures();

// Sets object["a"]["b"] for the key "a.b", and nothing for an absent figure.
void add_figure(nlohmann::json& object, const std::string& key, const FigureValue& value);

template <class T>
void add_figures(nlohmann::json& object, const std::vector<FigureOf<T>>& figures, const T& part) {
  for (const FigureOf<T>& figure : figures) add_figure(object, figure.key, figure.value(part));
}

std::string figures_text(const Profile& profile, TextPart part);

}  // namespace shadowgraph
