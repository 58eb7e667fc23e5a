#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

static double value_of(PlanSweepKind kind, const std::string& text) {
  if (kind == PlanSweepKind::kMemory) return static_cast<double>(MemoryLimit::parse(text).bytes);
  if (kind == PlanSweepKind::kNetwork)
    return internal::number_of(text, {.kind = OptionKind::kNumber, .min = 0, .above = true});
  return static_cast<double>(internal::whole_of(text, {.kind = OptionKind::kCount, .min = 1}));
}

std::vector<double> sweep_values(PlanSweepKind kind, const std::vector<std::string>& words) {
  if (kind == PlanSweepKind::kPrice && !words.empty()) {
    throw Error("--sweep price takes no --values: the number of devices is searched");
  }
  std::vector<double> values;
  for (const std::string& word : words) values.push_back(value_of(kind, word));
  return values;
}

const OptionTable<PlanSweepOptions>& PlanSweepOptions::table() {
  static const auto table =
      OptionTable<PlanSweepOptions>()
          .group("Sweeps (print a table instead of one plan)")
          .add("share", &PlanSweepOptions::share, "Fraction of peak FLOP/s to reach, with --sweep devices and batch",
               {.min = 0, .max = 1, .above = true})
          .add("tokens", &PlanSweepOptions::tokens,
               "With --sweep price: total training tokens, 15T, 300B (powers of 1,000)",
               {.kind = OptionKind::kCount, .min = 0, .above = true})
          .add("within", &PlanSweepOptions::within, "With --sweep price: time limit for training, 14d, 36h",
               {.kind = OptionKind::kSeconds, .min = 0, .above = true})
          .parsed(
              "prices", &PlanSweepOptions::offers,
              [](const std::string& text) {
                return text.starts_with('{') ? parse_offers(text, "prices") : read_offers(text);
              },
              [](const std::vector<DeviceOffer>&) { return std::string(); },
              "With --sweep price: JSON file of device prices per hour, {\"h100\": 2.5}", {.placeholder = "FILE"});
  return table;
}

constexpr double kDaySeconds = 86400;

static std::vector<std::string> head_of(const PlanTable& table) {
  std::vector<std::string> head{table.head, "step time", "tokens/s/device", "of peak", "exposed", "waiting", "bytes"};
  if (table.kind == PlanSweepKind::kPrice) head.insert(head.end(), {"days", "price"});
  head.emplace_back("plan");
  return head;
}

static std::vector<std::string> cells_of(const PlanTable& table, const PlanRow& row) {
  if (!row.why_not.empty()) return {row.value, row.why_not};
  std::vector<std::string> cells{row.value,
                                 human_seconds(row.seconds),
                                 row.tokens_per_second > 0 ? fmt::format("{:.0f}", row.tokens_per_second) : "",
                                 fmt::format("{:.1f} %", 100 * row.share),
                                 human_seconds(row.exposed),
                                 fmt::format("{:.1f} %", 100 * row.waiting),
                                 human_bytes(row.bytes)};
  if (table.kind == PlanSweepKind::kPrice) {
    cells.push_back(fmt::format("{:.1f}", row.training / kDaySeconds));
    cells.push_back(fmt::format("{:.0f}", row.price));
  }
  cells.push_back(to_string(row.plan));
  return cells;
}

std::string to_text(const PlanTable& table) {
  std::vector<std::vector<std::string>> lines{head_of(table)};
  for (const PlanRow& row : table.rows) lines.push_back(cells_of(table, row));
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const auto& cells : lines) {
    // Messages of rows without a plan span the columns.
    const size_t aligned = cells.size() == widths.size() ? cells.size() - 1 : 1;
    for (size_t i = 0; i < aligned; ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text = table.title + "\n";
  for (const auto& cells : lines) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool words = i == 0 || i + 1 == cells.size();
      line += words ? fmt::format("  {:<{}}", cells[i], i == 0 ? widths[i] : 0)
                    : fmt::format("  {:>{}}", cells[i], widths[i]);
    }
    text += line + "\n";
  }
  for (const std::string& finding : table.findings) text += finding + "\n";
  return text;
}

nlohmann::json to_json(const PlanTable& table) {
  nlohmann::json rows = nlohmann::json::array();
  for (const PlanRow& row : table.rows) {
    nlohmann::json entry{{"value", row.value}, {"number", row.number}, {"devices", row.devices}};
    if (!row.why_not.empty()) {
      entry["why_not"] = row.why_not;
    } else {
      entry.update({{"plan", to_json(row.plan)},
                    {"text", to_string(row.plan)},
                    {"seconds", row.seconds},
                    {"bytes", row.bytes},
                    {"tokens_per_second_per_device", row.tokens_per_second},
                    {"model_flops_share", row.share},
                    {"exposed_seconds", row.exposed},
                    {"waiting_share", row.waiting}});
      if (table.kind == PlanSweepKind::kPrice) entry.update({{"training_seconds", row.training}, {"price", row.price}});
    }
    rows.push_back(std::move(entry));
  }
  return {{"kind", to_string(table.kind)},
          {"title", table.title},
          {"head", table.head},
          {"rows", std::move(rows)},
          {"findings", table.findings}};
}

}  // namespace shadowgraph
