// Rows of figures.cpp, in the form that the text and JSON writers use.
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

// Section of the text report that shows the figure. kNowhere: not shown, or written by profile_text.cpp.
enum class TextPart : uint8_t { kNowhere, kModel, kPeak, kScratch, kAllocator, kTime };

// Text appended to a figure's line; nullopt omits the line.
using FigureNote = std::function<std::optional<std::string>(const Profile&)>;

template <class>
constexpr bool kIsOptional = false;
template <class Number>
constexpr bool kIsOptional<std::optional<Number>> = true;

// A figure of T: of a profile or of a part of one.
template <class T>
struct FigureOf {
  // `get` takes a T and returns a number or an optional number. Optional figures are not required in the JSON schema.
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

// Figures of parts that may occur several times in a profile.
const std::vector<FigureOf<DeviceMemory>>& device_memory_figures();
const std::vector<FigureOf<PeakInfo>>& peak_figures();
const std::vector<FigureOf<CommunicationSum>>& communication_figures();

// Sets object["a"]["b"] for the key "a.b"; leaves out absent figures.
void add_figure(nlohmann::json& object, const std::string& key, const FigureValue& value);

template <class T>
void add_figures(nlohmann::json& object, const std::vector<FigureOf<T>>& figures, const T& part) {
  for (const FigureOf<T>& figure : figures) add_figure(object, figure.key, figure.value(part));
}

std::string figures_text(const Profile& profile, TextPart part);

}  // namespace shadowgraph
