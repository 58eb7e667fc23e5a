#include "shadowgraph/profile/fits.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shadowgraph/profile.h"

namespace shadowgraph {
namespace {

// What the recorded steps of a run hold; empty if none was recorded, or the device has no allocator.
std::optional<int64_t> bytes_of_run(const Profile& profile) {
  if (!profile.run || !profile.device_memory) return std::nullopt;
  const auto reserved = profile.run->reserved_peak();
  if (!reserved) return std::nullopt;
  return *reserved + profile.device_memory->context + profile.device_memory->nccl;
}

// "21.3" of GiB or MiB, and the unit.
std::string in_unit(int64_t bytes, int64_t unit) {
  const double number = static_cast<double>(bytes) / static_cast<double>(unit);
  return fmt::format("{:.{}f}", number, number < 10 ? 2 : 1);
}

// "an L4 24 GB", "a size" of none.
std::string of_whom(const MemoryLimit& memory) {
  if (memory.device.empty()) return memory.title.ends_with("iB") ? "" : " (" + memory.title + ")";
  std::string title = memory.title;
  for (const std::string_view maker : {"NVIDIA ", "AMD ", "GeForce "}) {
    if (title.starts_with(maker)) title.erase(0, maker.size());
  }
  // Letters that are said with a vowel first: an H100, an L4, an RTX 4090, an MI300X.
  const bool vowel = std::string_view("AEFHILMNORSX8").find(title.front()) != std::string_view::npos;
  return fmt::format(" of {} {}", vowel ? "an" : "a", title);
}

}  // namespace

std::optional<Fits> fits(const Profile& profile) {
  if (!profile.limit) return std::nullopt;
  const bool allocator = !profile.device.is_cpu();
  Fits answer{.memory = *profile.limit};
  if (allocator) {
    if (!profile.unlimited_bytes) return std::nullopt;
    answer.bytes = *profile.unlimited_bytes;
    if (const auto run = bytes_of_run(profile)) answer.bytes = *run;
  } else {
    answer.bytes = std::max(profile.peak_with_scratch.bytes, profile.leading_peak().bytes);
  }
  const bool out_of_memory = !profile.out_of_memory.empty() || (profile.run && !profile.run->out_of_memory.empty());
  answer.at_least = !profile.unknown_scratch.empty();
  // A limit that was asked for bounds the allocator; one that was not is only compared with.
  const bool within = answer.bytes <= answer.memory.bytes;
  answer.by_giving_back = allocator && !within && answer.memory.asked && !out_of_memory;
  answer.fits = !out_of_memory && (within || answer.by_giving_back);
  const std::string step = profile.mode == ProgramMode::kTrain ? "steady state, " : "";
  answer.with = step + (allocator ? "with allocator and context" : "live tensors and known scratch");
  return answer;
}

std::string to_text(const Fits& fits) {
  const int64_t unit = fits.memory.bytes >= kMebibyte * 1024 ? kMebibyte * 1024 : kMebibyte;
  std::string text =
      fmt::format("{}: {}{} of {} {}{} ({})", fits.fits ? "fits" : "does not fit", fits.at_least ? "at least " : "",
                  in_unit(fits.bytes, unit), in_unit(fits.memory.bytes, unit), unit == kMebibyte ? "MiB" : "GiB",
                  of_whom(fits.memory), fits.with);
  if (fits.by_giving_back) text += "; the allocator gives back cached memory in time, which takes time";
  return text;
}

std::string report_head(const Profile& profile) {
  const auto verdict = fits(profile);
  if (!verdict) return {};
  const bool asked = verdict->memory.asked;
  return to_text(*verdict) + (asked ? "\n\n" : "\n  the device that times are for; --memory asks for another\n\n");
}

nlohmann::json to_json(const Fits& fits) {
  nlohmann::json object{
      {"fits", fits.fits},           {"bytes", fits.bytes},        {"memory_bytes", fits.memory.bytes},
      {"memory", fits.memory.title}, {"asked", fits.memory.asked}, {"with", fits.with},
      {"at_least", fits.at_least},   {"text", to_text(fits)}};
  if (!fits.memory.device.empty()) object["device"] = fits.memory.device;
  if (fits.by_giving_back) object["by_giving_back"] = true;
  return object;
}

}  // namespace shadowgraph
