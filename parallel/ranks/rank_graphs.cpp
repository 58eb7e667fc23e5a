#include "shadowgraph/parallel/rank_graphs.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>

#include "parallel/ranks/how_to_meet.h"
#include "parallel/ranks/rank_tasks.h"
#include "shadowgraph/error.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

double RankFigures::waiting() const {
  double seconds = 0;
  for (const auto& [cause, waited] : waits) seconds += waited;
  return seconds;
}

namespace {

// Names the first task of each rank that could not run.
[[noreturn]] void refuse_stuck(const std::deque<RankTasks>& ranks, const StandIns& stand_ins,
                               std::span<const uint32_t> stuck) {
  std::string text;
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    const auto first = std::ranges::find_if(stuck, [&](uint32_t task) { return ranks[i].has(task); });
    if (first == stuck.end()) continue;
    if (text.size() > 600) {
      text += "; and more";
      break;
    }
    text += fmt::format("{}rank {} waiting for {}", text.empty() ? "" : "; ", stand_ins.captured(i),
                        ranks[i].cause_of(*first));
  }
  throw Error("these ranks wait for ever: " + text + kHowToMeet);
}

// Kernels of one module that follow each other at once are one event.
std::vector<RankGraphsRun::Event> events_of(const RankTasks& rank, const StreamSchedule& schedule) {
  std::vector<RankGraphsRun::Event> kernels, others;
  std::vector<uint32_t> tasks;
  for (uint32_t task = 0; task < schedule.tasks(); ++task) {
    if (rank.has(task) && (schedule.task(task).is_collective || schedule.task(task).seconds > 0)) tasks.push_back(task);
  }
  std::ranges::stable_sort(tasks, {}, [&](uint32_t task) { return schedule.start(task); });
  for (const uint32_t task : tasks) {
    RankGraphsRun::Event event{.name = rank.name_of(task),
                               .computes = !schedule.task(task).is_collective,
                               .begin = schedule.start(task),
                               .end = schedule.end(task),
                               .other = rank.other_end(task),
                               .sends = rank.sends(task)};
    if (event.other >= 0 && schedule.task(task).meeting != StreamSchedule::kNone) {
      event.pair = uint64_t{schedule.task(task).meeting} + 1;
    }
    if (event.computes && !kernels.empty() && kernels.back().name == event.name && kernels.back().end >= event.begin) {
      kernels.back().end = event.end;
    } else {
      (event.computes ? kernels : others).push_back(std::move(event));
    }
  }
  kernels.insert(kernels.end(), others.begin(), others.end());
  std::ranges::stable_sort(kernels, {}, &RankGraphsRun::Event::begin);
  return kernels;
}

}  // namespace

RankGraphsRun RankGraphsRun::of(std::span<const RankGraph> ranks, const RankGraphsOptions& options) {
  const StandIns stand_ins(ranks);
  StreamSchedule schedule;
  RankMeetings meetings(schedule);
  std::deque<RankTasks> tasks;  // they know where they are
  double share = 0;
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    tasks.emplace_back(ranks[i], i, options, stand_ins, meetings, schedule);
    share = std::max(share, tasks.back().device_share());
  }
  schedule.run(share);
  if (const auto stuck = schedule.stuck(); !stuck.empty()) refuse_stuck(tasks, stand_ins, stuck);
  RankGraphsRun run;
  run.seconds_ = schedule.seconds();
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    const StreamSchedule::DeviceSum& device = schedule.device(i);
    RankFigures figures{.rank = stand_ins.captured(i), .computing = device.computing};
    run.events_.push_back(events_of(tasks[i], schedule));
    for (const Event& event : run.events_.back()) {
      if (event.computes) figures.end = std::max(figures.end, event.end);
    }
    if (device.waits_for_host > 0) figures.waits["the host"] = device.waits_for_host;
    if (const double left = run.seconds_ - device.end; left > 0) figures.waits["the end of the step"] = left;
    run.figures_.push_back(std::move(figures));
  }
  for (const StreamSchedule::Wait& wait : schedule.waits()) {
    run.figures_[wait.device].waits[tasks[wait.device].cause_of(wait.collective)] += wait.seconds;
  }
  return run;
}

std::string to_text(const RankGraphsRun& run) {
  std::string text = fmt::format("a step takes {}\n\n{:>6} {:>10} {:>10}  {}\n", human_seconds(run.seconds()), "RANK",
                                 "COMPUTES", "WAITS", "FOR");
  for (size_t i = 0; i < run.ranks(); ++i) {
    const RankFigures& rank = run.rank(i);
    std::vector<std::pair<std::string, double>> causes(rank.waits.begin(), rank.waits.end());
    std::ranges::stable_sort(causes, std::ranges::greater(), &std::pair<std::string, double>::second);
    std::string most;
    constexpr size_t kShown = 3;
    for (size_t c = 0; c < std::min(kShown, causes.size()); ++c) {
      most += fmt::format("{}{} {}", c == 0 ? "" : ", ", causes[c].first, human_seconds(causes[c].second));
    }
    if (causes.size() > kShown) most += fmt::format(", and {} more", causes.size() - kShown);
    text += fmt::format("{:>6} {:>10} {:>10}  {}\n", rank.rank, human_seconds(rank.computing),
                        human_seconds(rank.waiting()), most);
  }
  return text;
}

nlohmann::json to_json(const RankGraphsRun& run) {
  nlohmann::json json{{"seconds", run.seconds()}, {"ranks", nlohmann::json::array()}};
  for (size_t i = 0; i < run.ranks(); ++i) {
    const RankFigures& rank = run.rank(i);
    json["ranks"].push_back({{"rank", rank.rank},
                             {"computing_seconds", rank.computing},
                             {"waiting_seconds", rank.waiting()},
                             {"end_seconds", rank.end},
                             {"waits", rank.waits}});
  }
  return json;
}

}  // namespace shadowgraph
