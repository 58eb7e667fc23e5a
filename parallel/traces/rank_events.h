// Writes events of many ranks as Chrome's trace format has them: a process a rank.
#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace shadowgraph {

class RankEvents {
 public:
  void name_rank(int64_t rank) { metadata(rank, 0, "process_name", fmt::format("rank {}", rank)); }
  void name_lane(int64_t rank, int lane, const char* name) { metadata(rank, lane, "thread_name", name); }
  // Seconds, as all here.
  void slice(int64_t rank, int lane, const char* category, const std::string& name, double begin, double end,
             nlohmann::json arguments = nlohmann::json::object()) {
    add({{"ph", "X"},
         {"cat", category},
         {"name", name},
         {"pid", rank},
         {"tid", lane},
         {"ts", begin * 1e6},
         {"dur", (end - begin) * 1e6},
         {"args", std::move(arguments)}});
  }
  void counter(int64_t rank, const char* name, const char* unit, double at, int64_t value) {
    add({{"ph", "C"}, {"name", name}, {"pid", rank}, {"tid", 0}, {"ts", at * 1e6}, {"args", {{unit, value}}}});
  }
  // Both ends give one number.
  void arrow(int64_t rank, int lane, const char* name, uint64_t number, bool begins, double at) {
    nlohmann::json event{{"ph", begins ? "s" : "f"},
                         {"cat", "transfer"},
                         {"name", name},
                         {"id", number},
                         {"pid", rank},
                         {"tid", lane},
                         {"ts", at * 1e6}};
    if (!begins) event["bp"] = "e";
    add(event);
  }
  std::string text(int64_t ranks) const {
    const nlohmann::json world{{"world_size", ranks}};
    return fmt::format(
        "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"distributedInfo\":{},\"traceEvents\":[\n{}\n]}}\n",
        world.dump(), events_);
  }

 private:
  void metadata(int64_t rank, int lane, const char* what, const std::string& name) {
    add({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}});
  }
  void add(const nlohmann::json& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  }
  std::string events_;
};

}  // namespace shadowgraph
