#include "shadowgraph/profile/device_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "ir/text/words.h"
#include "shadowgraph/profile/kernel_class.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/text.h"
#include "shadowgraph/units.h"
#include "support/embedded_file.h"
#include "support/json.h"

namespace shadowgraph {

std::span<const EmbeddedFile> device_files();  // profiler/time/devices/, by cmake/embed.cmake

namespace {

using nlohmann::json;

double interpolate(const std::vector<RatePoint>& points, double work) {
  if (points.empty()) return 0;
  if (work <= points.front().work) return points.front().rate;
  if (work >= points.back().work) return points.back().rate;
  const auto above = std::upper_bound(points.begin(), points.end(), work,
                                      [](double value, const RatePoint& point) { return value < point.work; });
  const auto below = std::prev(above);
  const double part = std::log(work / below->work) / std::log(above->work / below->work);
  return below->rate * std::pow(above->rate / below->rate, part);
}

class Reader {
 public:
  explicit Reader(std::string name) : name_(std::move(name)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw ParseError(name_ + ": not the figures of a device: " + what, 0, 0);
  }
  double positive(const json& value, const std::string& what) const {
    if (!value.is_number() || !(value.get<double>() >= 0) || !std::isfinite(value.get<double>())) {
      fail(what + " is no number of 0 or more");
    }
    return value.get<double>();
  }
  double number(const json& object, const char* key, double otherwise) const {
    return object.contains(key) ? positive(object[key], key) : otherwise;
  }
  std::map<c10::ScalarType, double> by_dtype(const json& object, const std::string& what) const {
    std::map<c10::ScalarType, double> result;
    for (const auto& [name, figure] : object.items()) {
      const auto dtype = parse_dtype_name(name);
      if (!dtype) fail(what + "." + name + " is of no dtype; they are called as torch calls them, float32 or bfloat16");
      result[*dtype] = positive(figure, what + "." + name);
    }
    return result;
  }
  std::vector<RatePoint> points(const json& object, const char* key, const std::string& kind) const {
    std::vector<RatePoint> result;
    if (!object.contains(key)) return result;
    const std::string what = kind + "." + key;
    if (!object[key].is_array()) fail(what + " is no list of [work, rate]");
    for (const json& point : object[key]) {
      if (!point.is_array() || point.size() != 2) fail(what + " is no list of [work, rate]");
      const RatePoint read{positive(point[0], what), positive(point[1], what)};
      if (read.work <= 0 || read.rate <= 0) fail(what + " has a point that is not above 0");
      if (!result.empty() && read.work <= result.back().work) fail(what + " does not rise");
      result.push_back(read);
    }
    return result;
  }

 private:
  std::string name_;
};

json to_json(const std::map<c10::ScalarType, double>& by_dtype) {
  json object = json::object();
  for (const auto& [dtype, figure] : by_dtype) object[dtype_name(dtype)] = figure;
  return object;
}

json to_json(const std::vector<RatePoint>& points) {
  json list = json::array();
  for (const RatePoint& point : points) list.push_back({point.work, point.rate});
  return list;
}

}  // namespace

// Returns the class's own entry, or that of the class it is a case of.
std::map<KernelClass, ClassRates>::const_iterator DeviceSpec::entry_of(KernelClass kind) const {
  const auto found = classes.find(kind);
  if (found != classes.end()) return found;
  switch (kind) {
    case KernelClass::kDepthwiseConvolution:
      return classes.find(KernelClass::kGroupedConvolution);
    case KernelClass::kDepthwiseConvolutionBackward:
      return classes.find(KernelClass::kGroupedConvolutionBackward);
    case KernelClass::kPointwiseInPlace:
      return classes.find(KernelClass::kPointwise);
    default:
      return found;
  }
}

const ClassRates& DeviceSpec::rates(KernelClass kind) const {
  static const ClassRates none;
  auto found = entry_of(kind);
  if (found == classes.end()) found = classes.find(KernelClass::kOther);
  return found == classes.end() ? none : found->second;
}

double DeviceSpec::compute_rate(KernelClass kind, double flops, c10::ScalarType dtype) const {
  const auto dtype_peak = [&](c10::ScalarType of) {
    const auto found = matmul.find(of);
    return found == matmul.end() ? 0.0 : found->second;
  };
  const double float32 = dtype_peak(c10::ScalarType::Float);
  const double peak = dtype_peak(dtype);
  // A class without an entry computes as matrix products do; one whose entry has no rates only moves.
  auto own = entry_of(kind);
  if (own == classes.end()) own = classes.find(KernelClass::kMatmul);
  if (own == classes.end() || (own->first == KernelClass::kMatmul && own->second.compute.empty())) {
    return peak > 0 ? peak : float32;
  }
  const double measured = interpolate(own->second.compute, flops);
  if (measured <= 0) return 0;
  const auto& scale = own->second.scale;
  if (const auto found = scale.find(dtype); found != scale.end()) return measured * found->second;
  return peak > 0 && float32 > 0 ? measured * (peak / float32) : measured;
}

double DeviceSpec::peak(KernelClass kind, c10::ScalarType dtype) const {
  const auto float32 = matmul.find(c10::ScalarType::Float);
  if (const auto own = entry_of(kind); own != classes.end() && float32 != matmul.end()) {
    if (const auto scale = own->second.scale.find(dtype); scale != own->second.scale.end()) {
      return float32->second * scale->second;
    }
  }
  const auto found = matmul.find(dtype);
  return found == matmul.end() ? 0 : found->second;
}

double DeviceSpec::memory_rate(KernelClass kind, double bytes) const {
  const double measured = interpolate(rates(kind).memory, bytes);
  return measured > 0 ? measured : bandwidth;
}

nlohmann::json to_json(const DeviceSpec& spec) {
  json object{{"version", 1},
              {"name", spec.name},
              {"title", spec.title},
              {"device", device_text(c10::Device(spec.device))},
              {"memory_bytes", spec.memory},
              {"bandwidth", spec.bandwidth},
              {"matmul", to_json(spec.matmul)},
              {"vector", spec.vector},
              {"transcendental", spec.transcendental},
              {"host_call", spec.host_call},
              {"sources", spec.sources}};
  for (const auto& [kind, rates] : spec.classes) {
    json& entry = object["classes"][std::string(to_string(kind))] = {{"fixed", rates.fixed}};
    if (!rates.compute.empty()) entry["compute"] = to_json(rates.compute);
    if (!rates.memory.empty()) entry["memory"] = to_json(rates.memory);
    if (!rates.scale.empty()) entry["scale"] = to_json(rates.scale);
  }
  return object;
}

DeviceSpec device_spec_from_json(const nlohmann::json& object, const std::string& name) {
  const Reader read(name);
  if (!object.is_object()) read.fail("it is no object");
  if (read.number(object, "version", 0) != 1) read.fail("its version is not 1");
  DeviceSpec spec;
  const auto text = [&](const char* key, std::string otherwise) {
    if (!object.contains(key)) return otherwise;
    if (!object[key].is_string()) read.fail(std::string(key) + " is no text");
    return object[key].get<std::string>();
  };
  spec.name = text("name", name);
  spec.title = text("title", spec.name);
  const std::string device = text("device", "cuda");
  const auto parsed = parse_device(device);
  if (!parsed) read.fail("'" + device + "' is no device");
  spec.device = parsed->type();
  spec.memory = static_cast<int64_t>(std::min(read.number(object, "memory_bytes", 0), 9e18));
  spec.bandwidth = read.number(object, "bandwidth", 0);
  if (spec.bandwidth <= 0) read.fail("it has no bandwidth");
  spec.vector = read.number(object, "vector", 0);
  spec.transcendental = read.number(object, "transcendental", 0);
  spec.host_call = read.number(object, "host_call", 0);
  if (!object.contains("matmul") || !object["matmul"].is_object()) read.fail("it has no matmul, FLOP/s by dtype");
  spec.matmul = read.by_dtype(object["matmul"], "matmul");
  if (!spec.matmul.contains(c10::ScalarType::Float)) read.fail("matmul has no float32");
  if (object.contains("classes")) {
    if (!object["classes"].is_object()) read.fail("classes is no object");
    for (const auto& [word, entry] : object["classes"].items()) {
      const auto kind = parse_kernel_class(word);
      if (!kind || !entry.is_object()) read.fail("'" + word + "' is no class of kernels");
      spec.classes[*kind] = {.fixed = read.number(entry, "fixed", 0),
                             .compute = read.points(entry, "compute", word),
                             .memory = read.points(entry, "memory", word)};
      if (!entry.contains("scale")) continue;
      if (!entry["scale"].is_object()) read.fail(word + ".scale is no object");
      spec.classes[*kind].scale = read.by_dtype(entry["scale"], word + ".scale");
    }
  }
  if (object.contains("sources")) {
    for (const auto& [figure, source] : object["sources"].items()) {
      if (source.is_string()) spec.sources[figure] = source.get<std::string>();
    }
  }
  return spec;
}

DeviceSpec DeviceSpec::read_file(const std::string& path) {
  const std::string text = shadowgraph::read_file(path);
  try {
    return device_spec_from_json(parse_json(text), path);
  } catch (const json::exception& error) {
    throw ParseError(path + ": " + error.what(), 0, 0);
  }
}

void DeviceSpec::write_file(const std::string& path) const {
  shadowgraph::write_file(path, json_text(to_json(*this), 2) + "\n");
}

std::string DeviceSpec::calibration_file() {
  return std::filesystem::path(MeasuredCalls::default_file()).replace_filename("this-machine.json");
}

std::optional<DeviceSpec> DeviceSpec::find(const std::string& name_or_file, c10::DeviceType device) {
  if (!name_or_file.empty())
    return std::filesystem::exists(name_or_file) ? read_file(name_or_file) : named(name_or_file);
  if (device == c10::kCUDA) return named("h100");
  if (device != c10::kCPU) return std::nullopt;
  const std::string file = calibration_file();
  return std::filesystem::exists(file) ? read_file(file) : named("cpu");
}

std::vector<std::string> DeviceSpec::names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : device_files()) names.emplace_back(file.name);
  return names;
}

DeviceSpec DeviceSpec::named(std::string_view name) {
  for (const EmbeddedFile& file : device_files()) {
    if (file.name == name) return device_spec_from_json(parse_json(file.text), std::string(name));
  }
  throw Error(
      fmt::format("no device '{}' is known; there are {}, and files of your own", name, fmt::join(names(), ", ")));
}

}  // namespace shadowgraph
