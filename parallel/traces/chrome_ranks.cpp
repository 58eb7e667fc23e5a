// All ranks of a pipeline as Chrome's trace events: a process a rank.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shadowgraph/parallel/pipeline.h"

namespace shadowgraph {
namespace {

constexpr int kComputingLane = 1, kForwardLane = 2, kBackwardLane = 3;
using enum PipelineWork;

int lane_of(const PipelineAction& a) {
  if (computes(a)) return kComputingLane;
  return a.work == kSendForward || a.work == kReceiveForward ? kForwardLane : kBackwardLane;
}
const char* category_of(const PipelineAction& a) {
  return computes(a) ? "kernel" : a.work == kSendForward || a.work == kSendBackward ? "send" : "receive";
}

class RankEvents {
 public:
  explicit RankEvents(const PipelineRun& run) : run_(run) {}

  std::string text() {
    for (int32_t r = 0; r < run_.ranks(); ++r) rank(r);
    const nlohmann::json head{{"world_size", run_.ranks()}};
    return fmt::format(
        "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"distributedInfo\":{},\"traceEvents\":[\n{}\n]}}\n",
        head.dump(), events_);
  }

 private:
  void add(const nlohmann::json& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event.dump();
  }
  void name(int32_t rank, int lane, const char* what, const std::string& name) {
    add({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}});
  }

  void rank(int32_t r) {
    name(r, 0, "process_name", fmt::format("rank {}", r));
    name(r, kComputingLane, "thread_name", "computing");
    name(r, kForwardLane, "thread_name", "activations");
    name(r, kBackwardLane, "thread_name", "gradients");
    for (const PipelineActionTime& at : run_.actions(r)) {
      const PipelineAction& a = at.action;
      const double begin = at.begin * 1e6, duration = (at.end - at.begin) * 1e6;
      add({{"ph", "X"},
           {"cat", category_of(a)},
           {"name", to_string(a)},
           {"pid", r},
           {"tid", lane_of(a)},
           {"ts", begin},
           {"dur", duration},
           {"args", {{"stage", a.stage}, {"microbatch", a.microbatch}}}});
      if (computes(a)) {
        add({{"ph", "C"},
             {"name", "live bytes"},
             {"pid", r},
             {"tid", 0},
             {"ts", begin + duration},
             {"args", {{"bytes", at.live}}}});
      } else {
        arrow(r, a, begin, duration);
      }
    }
  }

  // From the send to the receive: both have the number of their transfer.
  void arrow(int32_t r, const PipelineAction& a, double begin, double duration) {
    const bool forward = lane_of(a) == kForwardLane;
    const bool sends = a.work == kSendForward || a.work == kSendBackward;
    const int32_t receiver = !sends ? a.stage : a.stage + (forward ? 1 : -1);
    const int64_t id = ((int64_t{receiver} * run_.schedule().microbatches() + a.microbatch) << 1) | (forward ? 1 : 0);
    nlohmann::json event{{"ph", sends ? "s" : "f"},
                         {"cat", "transfer"},
                         {"name", forward ? "activations" : "gradients"},
                         {"id", id},
                         {"pid", r},
                         {"tid", lane_of(a)},
                         {"ts", sends ? begin : begin + duration}};
    if (!sends) event["bp"] = "e";
    add(event);
  }

  const PipelineRun& run_;
  std::string events_;
};

}  // namespace

std::string to_chrome_trace(const PipelineRun& run) { return RankEvents(run).text(); }

}  // namespace shadowgraph
