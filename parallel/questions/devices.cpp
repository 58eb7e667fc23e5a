#include <fmt/format.h>

#include <algorithm>

#include "parallel/questions/asker.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

PlanRow row_of_devices(Asker& asker, int64_t devices) {
  ClusterRequest request = asker.request();
  request.devices = devices;
  return asker.row(fmt::format("{}", devices), static_cast<double>(devices), request);
}

// Twice as many each time, whole machines, an eighth of the request's to eight times as many.
std::vector<double> usual_devices(const ClusterRequest& request) {
  constexpr int64_t kAround = 8;
  std::vector<double> counts;
  int64_t fewest = request.devices;
  while (fewest % 2 == 0 && fewest / 2 >= machine_of(request) && fewest * kAround > request.devices) fewest /= 2;
  for (int64_t devices = fewest; devices <= request.devices * kAround; devices *= 2) {
    counts.push_back(static_cast<double>(devices));
  }
  return counts;
}

std::string said_of(const PlanRow& row) { return fmt::format("{} ({:.1f} %)", row.value, 100 * row.share); }

}  // namespace

PlanTable ask_devices(Asker& asker, const PlanQuestion& question) {
  PlanTable table{.about = question.about,
                  .title = fmt::format("{} samples a step on more and fewer devices", asker.request().batch),
                  .head = "devices"};
  for (const double devices : values_of(question, usual_devices(asker.request()))) {
    table.rows.push_back(row_of_devices(asker, static_cast<int64_t>(devices)));
  }
  const auto reaches = [&](const PlanRow& row) { return row.why_not.empty() && row.share >= question.share; };
  std::optional<PlanRow> above, under;
  for (const PlanRow& row : table.rows) {
    if (!row.why_not.empty()) continue;
    if (reaches(row)) {
      above = row;
      under.reset();
    } else if (!under) {
      under = row;
    }
  }
  const std::string share = fmt::format("{:.0f} % of the peak", 100 * question.share);
  if (above && under) {
    // Quarters of what lies between: finer ones have few divisors, and say more of those than of the machine.
    const int64_t step = std::max(machine_of(asker.request()), (under->devices - above->devices) / 4);
    while (under->devices - above->devices > step) {
      PlanRow row = row_of_devices(asker, above->devices + (under->devices - above->devices) / (2 * step) * step);
      table.rows.push_back(row);
      (reaches(row) ? above : under) = std::move(row);
      if (!under->why_not.empty()) break;
    }
    table.findings.push_back(
        fmt::format("efficiency falls under {} between {} and {} devices", share, said_of(*above), said_of(*under)));
  } else if (above) {
    table.findings.push_back(
        fmt::format("efficiency is still above {} at {} devices, the most that were tried", share, said_of(*above)));
  } else if (under) {
    table.findings.push_back(
        fmt::format("efficiency is under {} from {} devices on, the fewest that fit", share, said_of(*under)));
  } else {
    table.findings.push_back("no number of devices that was tried has a plan");
  }
  std::ranges::stable_sort(table.rows, {}, &PlanRow::number);
  return table;
}

}  // namespace shadowgraph
