// Writes all ranks of a pipeline, or of captured graphs, as Chrome trace events, one process per rank.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

#include "parallel/schedule/schedule_check.h"
#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {
namespace {

class RankEvents {
 public:
  void name_rank(int64_t rank) { metadata(rank, 0, "process_name", fmt::format("rank {}", rank)); }
  void name_lane(int64_t rank, int lane, const char* name) { metadata(rank, lane, "thread_name", name); }
  // Times are in seconds.
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
  // Both ends of an arrow use the same number.
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

constexpr int kComputingLane = 1, kForwardLane = 2, kBackwardLane = 3, kCommunicatingLane = 2;

void add_transfer(RankEvents& events, const PipelineRun& run, int32_t rank, const PipelineActionTime& at) {
  const PipelineAction& a = at.action;
  const bool forward = transfers_forward(a), sent = sends(a);
  const int lane = forward ? kForwardLane : kBackwardLane;
  const int32_t receiver = sent ? other_stage(a) : a.stage;
  const auto number = static_cast<uint64_t>(int64_t{receiver} * run.schedule().microbatches() + a.microbatch);
  events.slice(rank, lane, sent ? "send" : "receive", to_string(a), at.begin, at.end,
               {{"stage", a.stage}, {"microbatch", a.microbatch}});
  events.arrow(rank, lane, forward ? "activations" : "gradients", number << 1 | (forward ? 1 : 0), sent,
               sent ? at.begin : at.end);
}

}  // namespace

std::string to_chrome_trace(const PipelineRun& run) {
  RankEvents events;
  for (int32_t r = 0; r < run.ranks(); ++r) {
    events.name_rank(r);
    events.name_lane(r, kComputingLane, "computing");
    events.name_lane(r, kForwardLane, "activations");
    events.name_lane(r, kBackwardLane, "gradients");
    for (const PipelineActionTime& at : run.actions(r)) {
      if (!computes(at.action)) {
        add_transfer(events, run, r, at);
        continue;
      }
      events.slice(r, kComputingLane, "kernel", to_string(at.action), at.begin, at.end,
                   {{"stage", at.action.stage}, {"microbatch", at.action.microbatch}});
      events.counter(r, "live bytes", "bytes", at.end, at.live);
    }
  }
  return events.text(run.ranks());
}

std::string to_chrome_trace(const DistributedRun& run) {
  RankEvents events;
  for (size_t i = 0; i < run.ranks(); ++i) {
    const int64_t rank = run.rank(i).rank;
    events.name_rank(rank);
    events.name_lane(rank, kComputingLane, "computing");
    events.name_lane(rank, kCommunicatingLane, "communicating");
    for (const DistributedRun::Event& event : run.events(i)) {
      const int lane = event.computes ? kComputingLane : kCommunicatingLane;
      const char* category = event.computes    ? "kernel"
                             : event.other < 0 ? "collective"
                             : event.sends     ? "send"
                                               : "receive";
      events.slice(rank, lane, category, event.name, event.begin, event.end);
      if (event.pair != 0) {
        events.arrow(rank, lane, "transfer", event.pair, event.sends, event.sends ? event.begin : event.end);
      }
    }
  }
  return events.text(static_cast<int64_t>(run.ranks()));
}

}  // namespace shadowgraph
