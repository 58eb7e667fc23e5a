#include "shadowgraph/profile/device_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "ir/text/words.h"
#include "profiler/time/kernel_work.h"
#include "profiler/time/operator_tables.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/units.h"
#include "support/embedded_file.h"
#include "support/files.h"
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

std::map<c10::ScalarType, double> numbers_by_dtype(const JsonPlace& place, double (JsonPlace::*read)() const) {
  std::map<c10::ScalarType, double> result;
  for (const auto& [name, figure] : place.members()) {
    const auto dtype = parse_dtype_name(name);
    if (!dtype) figure.fail("is not a dtype; use torch's names, such as float32 or bfloat16");
    result[*dtype] = (figure.*read)();
  }
  return result;
}

std::vector<RatePoint> rate_points(const std::optional<JsonPlace>& list) {
  std::vector<RatePoint> result;
  if (!list) return result;
  for (const JsonPlace& point : list->elements()) {
    if (point.size() != 2) point.fail("must be a pair [work, rate]");
    const RatePoint read{point[0].amount(), point[1].rate()};
    if (read.work <= 0) point.fail("must be positive");
    if (!result.empty() && read.work <= result.back().work) list->fail("must be in ascending order of work");
    result.push_back(read);
  }
  return result;
}

ClassRates class_rates(const JsonPlace& entry) {
  ClassRates rates{.fixed = entry.seconds_or("fixed", 0),
                   .compute = rate_points(entry.find("compute")),
                   .memory = rate_points(entry.find("memory"))};
  if (const auto scale = entry.find("scale")) rates.scale = numbers_by_dtype(*scale, &JsonPlace::fraction);
  entry.refuse_other_keys("a kernel class");
  return rates;
}

// The keys of `gpu` except `multiprocessors`.
struct GpuKey {
  const char* name;
  double GpuSpec::*figure;
  bool needed;
  double (JsonPlace::*read)() const;
};
constexpr GpuKey kGpuKeys[] = {
    {"stream", &GpuSpec::stream, true, &JsonPlace::rate},
    {"moved", &GpuSpec::moved, false, &JsonPlace::fraction},
    {"sustained", &GpuSpec::sustained, false, &JsonPlace::fraction},
    {"matmul", &GpuSpec::matmul, true, &JsonPlace::fraction},
    {"attention", &GpuSpec::attention, true, &JsonPlace::fraction},
    {"attention_backward", &GpuSpec::attention_backward, true, &JsonPlace::fraction},
    {"tensor_float32", &GpuSpec::tensor_float32, false, &JsonPlace::rate},
};

GpuSpec read_gpu(const JsonPlace& entry) {
  GpuSpec gpu;
  gpu.multiprocessors = entry["multiprocessors"].integer(1, 1'000'000);
  for (const GpuKey& key : kGpuKeys) {
    const auto found = key.needed ? entry[key.name] : entry.find(key.name);
    if (found && (key.figure != &GpuSpec::tensor_float32 || found->amount() != 0))
      gpu.*key.figure = (*found.*key.read)();
  }
  entry.refuse_other_keys("gpu");
  return gpu;
}

HostSpec read_host(const JsonPlace& entry) {
  HostSpec host{.link = entry["link"].rate(), .bandwidth = entry.rate_or_zero("bandwidth")};
  if (const auto memory = entry.find("memory_bytes")) host.memory = memory->memory();
  entry.refuse_other_keys("host");
  return host;
}

json to_json(const GpuSpec& gpu) {
  json object{{"multiprocessors", gpu.multiprocessors}};
  for (const GpuKey& key : kGpuKeys) object[key.name] = gpu.*key.figure;
  return object;
}

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

// Returns the class's entry, or that of the more general class.
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

double DeviceSpec::fixed(KernelClass kind) const {
  return by_gpu(kind) ? gpu_fixed_seconds(*this, kind) : rates(kind).fixed;
}

double DeviceSpec::compute_rate(KernelClass kind, double flops, c10::ScalarType dtype) const {
  if (by_gpu(kind)) return peak(kind, dtype) * gpu_compute_fraction(*this, kind);
  const auto dtype_peak = [&](c10::ScalarType of) {
    const auto found = matmul.find(of);
    return found == matmul.end() ? 0.0 : found->second;
  };
  const double float32 = dtype_peak(c10::ScalarType::Float);
  const double peak = dtype_peak(dtype);
  // A class without an entry computes like matrix products; one whose entry has no compute rates only moves bytes.
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
  if (by_gpu(kind)) {
    const bool of_cudnn = is_convolution(kind) || kind == KernelClass::kRecurrent;
    if (dtype == c10::kFloat && gpu->tensor_float32 > 0 && of_cudnn) return gpu->tensor_float32;
    const auto own = matmul.find(dtype == c10::kFloat8_e5m2 ? c10::kFloat8_e4m3fn : dtype);  // same rate for both
    return own != matmul.end() ? own->second : matmul.at(c10::kFloat);
  }
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
  if (by_gpu(kind)) return gpu->stream * gpu_memory_fraction(*this, kind);
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
  if (spec.host) {
    object["host"] = {
        {"link", spec.host->link}, {"bandwidth", spec.host->bandwidth}, {"memory_bytes", spec.host->memory}};
  }
  if (spec.gpu) object["gpu"] = to_json(*spec.gpu);
  if (!spec.architecture.empty()) object["architecture"] = spec.architecture;
  if (!spec.reported_as.empty()) object["reported_as"] = spec.reported_as;
  if (!spec.interconnect.empty()) object["interconnect"] = spec.interconnect;
  for (const auto& [kind, rates] : spec.classes) {
    json& entry = object["classes"][std::string(to_string(kind))] = {{"fixed", rates.fixed}};
    if (!rates.compute.empty()) entry["compute"] = to_json(rates.compute);
    if (!rates.memory.empty()) entry["memory"] = to_json(rates.memory);
    if (!rates.scale.empty()) entry["scale"] = to_json(rates.scale);
  }
  if (!spec.tables.empty()) object["tables"] = to_json(spec.tables);
  return object;
}

DeviceSpec device_spec_from_json(const nlohmann::json& object, const std::string& name) {
  const std::string heading = name + ": invalid device spec";
  const JsonPlace place(object, heading);
  if (place["version"].number() != 1) place["version"].fail("must be 1");
  if (const auto base = place.find("base")) {
    json whole = to_json(DeviceSpec::named(base->text()));
    whole.merge_patch(object);
    whole.erase("base");
    return device_spec_from_json(whole, name);
  }
  DeviceSpec spec;
  spec.name = place.text_or("name", name);
  spec.title = place.text_or("title", spec.name);
  const auto device = parse_device(place.text_or("device", "cuda"));
  if (!device) place["device"].fail("is '" + place["device"].text() + "', which is not a device type");
  spec.device = device->type();
  spec.architecture = place.text_or("architecture", "");
  spec.reported_as = place.text_or("reported_as", "");
  spec.interconnect = place.text_or("interconnect", "");
  if (const auto memory = place.find("memory_bytes")) spec.memory = memory->memory();
  spec.bandwidth = place["bandwidth"].rate();
  spec.vector = place.rate_or_zero("vector");
  spec.transcendental = place.rate_or_zero("transcendental");
  spec.host_call = place.seconds_or("host_call", 0);
  spec.matmul = numbers_by_dtype(place["matmul"], &JsonPlace::rate);
  if (!spec.matmul.contains(c10::ScalarType::Float)) place["matmul"].fail("must have an entry for float32");
  if (const auto gpu = place.find("gpu")) spec.gpu = read_gpu(*gpu);
  if (const auto host = place.find("host")) spec.host = read_host(*host);
  if (const auto classes = place.find("classes")) {
    for (const auto& [word, entry] : classes->members()) {
      const auto kind = find_named<KernelClass>(word);
      if (!kind) entry.fail("is not a kernel class");
      spec.classes[*kind] = class_rates(entry);
    }
  }
  if (const auto tables = place.find("tables")) spec.tables = operator_tables_from_json(*tables);
  if (const auto sources = place.find("sources")) {
    for (const auto& [figure, source] : sources->members()) spec.sources[figure] = source.text();
  }
  place.refuse_other_keys("a device spec");
  return spec;
}

DeviceSpec DeviceSpec::read_file(const std::string& path) {
  return device_spec_from_json(parse_json(shadowgraph::read_file(path), path), path);
}

void DeviceSpec::write_file(const std::string& path) const {
  shadowgraph::write_file(path, json_text(to_json(*this), 2) + "\n");
}

std::string DeviceSpec::calibration_file() {
  return std::filesystem::path(MeasuredCalls::default_file()).replace_filename("this-machine.json");
}

// Normalizes names: "RTX 4090", "rtx-4090" and "rtx4090" are equal.
static std::string plain_name(std::string_view name) {
  std::string plain;
  for (const unsigned char c : name) {
    if (std::isalnum(c) != 0) plain += static_cast<char>(std::tolower(c));
  }
  return plain;
}

DeviceSpec DeviceSpec::find(const std::string& name_or_file) {
  // A file of a built-in name in the working directory needs a path (./h100).
  const bool is_builtin =
      name_or_file.find('/') == std::string::npos && std::ranges::any_of(device_files(), [&](const EmbeddedFile& file) {
        return plain_name(file.name) == plain_name(name_or_file);
      });
  return !is_builtin && is_file(name_or_file) ? read_file(name_or_file) : named(name_or_file);
}

std::vector<std::string> DeviceSpec::names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : device_files()) names.emplace_back(file.name);
  return names;
}

DeviceSpec DeviceSpec::named(std::string_view name) {
  for (const EmbeddedFile& file : device_files()) {
    if (plain_name(file.name) == plain_name(name))
      return device_spec_from_json(parse_json(file.text, name), std::string(name));
  }
  throw Error(fmt::format("unknown device '{}'; choose one of {}, or give the path of a spec file", name,
                          fmt::join(names(), ", ")));
}

}  // namespace shadowgraph
