// Rows of metrics.cpp, in the form that the text and JSON writers use.
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

// Section of the text report that shows the metric. kNowhere: not shown, or written by profile_text.cpp.
enum class TextPart : uint8_t { kNowhere, kModel, kPeak, kScratch, kAllocator, kTime };

// Text appended to a metric's line; nullopt omits the line.
using MetricNote = std::function<std::optional<std::string>(const Profile&)>;

template <class>
constexpr bool kIsOptional = false;
template <class Number>
constexpr bool kIsOptional<std::optional<Number>> = true;

// A metric of T: of a profile or of a part of one.
template <class T>
struct MetricOf {
  // `get` takes a T and returns a number or an optional number. Optional metrics are not required in the JSON schema.
  template <class Get>
  MetricOf(std::string key, MetricUnit unit, std::string doc, Get get, TextPart part = TextPart::kNowhere,
           std::string label = {}, MetricNote note = {})
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
  static MetricValue number(Number number) {
    if constexpr (std::is_floating_point_v<Number>)
      return number;
    else
      return static_cast<int64_t>(number);
  }

  std::string key;
  MetricUnit unit;
  std::string doc;
  std::function<MetricValue(const T&)> value;
  bool required;
  TextPart part;
  std::string label;
  MetricNote note;
};

// Metrics of structs that may occur several times in a profile.
const std::vector<MetricOf<DeviceMemory>>& device_memory_metrics();
const std::vector<MetricOf<PeakInfo>>& peak_metrics();
const std::vector<MetricOf<CommunicationSum>>& communication_metrics();

// Sets object["a"]["b"] for the key "a.b"; leaves out absent metrics.
void add_metric(nlohmann::json& object, const std::string& key, const MetricValue& value);

template <class T>
void add_metrics(nlohmann::json& object, const std::vector<MetricOf<T>>& metrics, const T& part) {
  for (const MetricOf<T>& metric : metrics) add_metric(object, metric.key, metric.value(part));
}

std::string metrics_text(const Profile& profile, TextPart part);
int64_t call_count(const std::vector<UncoveredOperator>& operators);

}  // namespace shadowgraph
