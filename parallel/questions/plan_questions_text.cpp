#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

using Units = std::initializer_list<std::pair<std::string_view, double>>;

// A number and one of these units; "" among them: none is fine.
double amount_of(const std::string& text, const char* option, const char* example, Units units) {
  double number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  const std::string_view unit(end, static_cast<size_t>(last - end));
  for (const auto& [name, factor] : units) {
    if (error == std::errc() && unit == name && number > 0) return number * factor;
  }
  throw Error(fmt::format("{} '{}' is not what it should be: give such as {}", option, text, example));
}

double value_of(PlanTopic about, const std::string& text) {
  if (about == PlanTopic::kMemory) return static_cast<double>(MemoryLimit::parse(text).bytes);
  const double value = amount_of(text, "a value", "512", {{"", 1}, {"k", 1024}, {"K", 1024}});
  const bool whole = about != PlanTopic::kNetwork;
  if (whole && value != static_cast<double>(static_cast<int64_t>(value))) {
    throw Error(fmt::format("'{}' is no whole number, as values of --what {} are", text, to_string(about)));
  }
  return value;
}

}  // namespace

PlanQuestion plan_question(const PlanQuestionText& text) {
  const std::optional<PlanTopic> about = plan_topic_named(text.what);
  if (!about) {
    throw Error(fmt::format("there is no question '{}'; there are {}", text.what, fmt::join(plan_topic_names(), ", ")));
  }
  PlanQuestion question{.about = *about, .share = text.share};
  if (*about == PlanTopic::kPrice && !text.values.empty()) {
    throw Error("the question 'price' has no values: numbers of devices are found");
  }
  for (const std::string& value : text.values) question.values.push_back(value_of(*about, value));
  if (!text.tokens.empty()) {
    question.tokens = amount_of(text.tokens, "tokens", "15T or 300B", {{"", 1}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}});
  }
  if (!text.within.empty()) {
    question.within = amount_of(text.within, "within", "14d or 36h", {{"d", 86400}, {"h", 3600}});
  }
  if (!text.prices.empty()) question.offers = read_offers(text.prices);
  return question;
}

namespace {

constexpr double kDaySeconds = 86400;

std::vector<std::string> head_of(const PlanTable& table) {
  std::vector<std::string> head{table.head, "a step", "tokens/s a device", "of the peak", "exposed",
                                "waiting",  "bytes"};
  if (table.about == PlanTopic::kPrice) head.insert(head.end(), {"days", "price"});
  head.emplace_back("plan");
  return head;
}

std::vector<std::string> cells_of(const PlanTable& table, const PlanRow& row) {
  if (!row.why_not.empty()) return {row.value, row.why_not};
  std::vector<std::string> cells{row.value,
                                 human_seconds(row.seconds),
                                 row.tokens_per_second > 0 ? fmt::format("{:.0f}", row.tokens_per_second) : "",
                                 fmt::format("{:.1f} %", 100 * row.share),
                                 human_seconds(row.exposed),
                                 fmt::format("{:.1f} %", 100 * row.waiting),
                                 human_bytes(row.bytes)};
  if (table.about == PlanTopic::kPrice) {
    cells.push_back(fmt::format("{:.1f}", row.training / kDaySeconds));
    cells.push_back(fmt::format("{:.0f}", row.price));
  }
  cells.push_back(to_string(row.plan));
  return cells;
}

}  // namespace

std::string to_text(const PlanTable& table) {
  std::vector<std::vector<std::string>> lines{head_of(table)};
  for (const PlanRow& row : table.rows) lines.push_back(cells_of(table, row));
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const auto& cells : lines) {
    // Words of what does not fit run across the columns.
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
      if (table.about == PlanTopic::kPrice) {
        entry.update({{"training_seconds", row.training}, {"price", row.price}});
      }
    }
    rows.push_back(std::move(entry));
  }
  return {{"about", to_string(table.about)},
          {"title", table.title},
          {"head", table.head},
          {"rows", std::move(rows)},
          {"findings", table.findings}};
}

}  // namespace shadowgraph
