#include "shadowgraph/parallel/rank_graphs.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "parallel/ranks/graph_program.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

double RankFigures::waiting() const {
  double seconds = 0;
  for (const auto& [cause, waited] : waits) seconds += waited;
  return seconds;
}

RankGraphsRun RankGraphsRun::of(std::span<const RankGraph> ranks, const RankGraphsOptions& options) {
  const StandIns stand_ins(ranks);
  MeetingGroups groups;
  std::vector<GraphProgram> written;
  std::vector<RankProgram> programs;
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    written.push_back(graph_program(ranks[i], i, options, stand_ins, groups));
    programs.push_back(written.back().program);
  }
  RankGraphsRun run;
  run.times_ = RankTimes::of(programs, groups.all(),
                             [&](uint32_t rank, const RankStep& step) { return written[rank].steps[step.what].name; });
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    RankFigures figures{.rank = stand_ins.captured(i), .computing = run.times_.computing(i), .end = run.times_.end(i)};
    std::vector<Event>& events = run.events_.emplace_back();
    const auto steps = programs[i].steps();
    std::map<std::pair<uint32_t, bool>, uint64_t> transfers;  // so far, by the other rank and direction
    for (size_t s = 0; s < steps.size(); ++s) {
      const GraphProgram::Step& step = written[i].steps[steps[s].what];
      const RankStepTime& at = run.times_.of(i)[s];
      if (steps[s].kind == RankStep::Kind::kWait) {
        if (at.end > at.begin) figures.waits[step.cause] += at.end - at.begin;
        continue;
      }
      Event event{step.name, step.computes, at.begin, at.end, step.other, 0, step.sends};
      if (step.other >= 0) {
        const uint32_t other = steps[s].other;
        const uint32_t from = step.sends ? i : other, to = step.sends ? other : i;
        event.pair = (uint64_t{from} << 48 | uint64_t{to} << 32) + ++transfers[{other, step.sends}];
      }
      events.push_back(std::move(event));
    }
    if (const double left = run.seconds() - figures.end; left > 0) figures.waits["the end of the step"] += left;
    run.figures_.push_back(std::move(figures));
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
