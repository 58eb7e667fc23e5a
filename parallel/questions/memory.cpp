#include <fmt/format.h>

#include <algorithm>

#include "parallel/plan/planner.h"
#include "parallel/questions/asker.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

PlanTable ask_memory(Asker& asker, const PlanQuestion& question) {
  const ClusterRequest& request = asker.request();
  const auto own = static_cast<double>(request.memory.value_or(request.device.memory));
  PlanTable table{.about = question.about, .title = "devices with more and less memory", .head = "memory"};
  const auto row_of = [&](int64_t memory) {
    ClusterRequest changed = request;
    changed.memory = memory;
    return asker.row(human_bytes(memory), static_cast<double>(memory), changed);
  };
  const std::vector<double> factors{0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, 3, 4};
  std::vector<double> usual;
  for (const double factor : factors) usual.push_back(factor * own);
  for (const double memory : values_of(question, std::move(usual))) {
    table.rows.push_back(row_of(static_cast<int64_t>(memory)));
  }
  const auto first = std::ranges::find_if(table.rows, [](const PlanRow& row) { return row.why_not.empty(); });
  if (first == table.rows.end()) {
    table.findings.push_back(fmt::format("nothing fits into {}", table.rows.back().value));
    return table;
  }
  const PlanRow most = table.rows.back();
  constexpr double kSame = 1.01;
  const auto enough = std::ranges::find_if(
      table.rows, [&](const PlanRow& row) { return row.why_not.empty() && row.seconds <= kSame * most.seconds; });
  std::string last = fmt::format("more than {} brings less than 1 %", enough->value);
  if (enough == table.rows.end() - 1) last = fmt::format("{}, the most that was tried, still brings more", most.value);
  // The least that fits: halfway between, to a hundredth of what tensors may take, then a hundredth more as long as
  // simulations are too large.
  const int64_t beside = beside_program(request.device);
  auto high = static_cast<int64_t>(first->number);
  int64_t low = first == table.rows.begin() ? beside : static_cast<int64_t>(std::prev(first)->number);
  const auto hundredth = [&] { return std::max<int64_t>(1, (high - beside) / 100); };
  while (high - low > hundredth()) {
    ClusterRequest changed = request;
    changed.memory = low + (high - low) / 2;
    (asker.fits(asker.source(), changed, asker.kept()) ? high : low) = *changed.memory;
  }
  for (PlanRow least = row_of(high); high < static_cast<int64_t>(first->number); least = row_of(high += hundredth())) {
    if (!least.why_not.empty()) continue;
    table.findings.push_back(fmt::format("{} is the least that fits: {}, {} a step", least.value, to_string(least.plan),
                                         human_seconds(least.seconds)));
    table.rows.push_back(std::move(least));
    break;
  }
  table.findings.push_back(std::move(last));
  std::ranges::stable_sort(table.rows, {}, &PlanRow::number);
  return table;
}

}  // namespace shadowgraph
