#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <string_view>

#include "shadowgraph/parallel/plan_questions.h"
#include "shadowgraph/profile/memory_limit.h"

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

}  // namespace shadowgraph
