// Rows of figures.cpp, as the writers of text and JSON take them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/profile/profilers.h"

namespace shadowgraph {

struct CommunicationSum;

// Where a figure's line stands in the text. kNowhere: it has none, or a writer of its own (profile_text.cpp).
enum class TextPart : uint8_t { kNowhere, kModel, kPeak, kScratch, kDevice, kTime };

struct FigureLine {
  TextPart part = TextPart::kNowhere;
  std::string label;
  // What follows the figure in its line; nullopt: this report has no such line.
  std::function<std::optional<std::string>(const Profile&)> note;
};

// A figure of T, which is a profile or a part of one.
template <class T>
struct FigureOf {
  std::string key;
  FigureUnit unit = FigureUnit::kCount;
  std::string doc;
  std::function<FigureValue(const T&)> value;
  bool required = true;
  FigureLine line;
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
