#include "sharding/solver/compact_model.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace shadowgraph {

namespace {

constexpr uint32_t kNoVariable = std::numeric_limits<uint32_t>::max();

double finite(double cost) {
  return cost == kInfinite ? CompactModel::kForbiddenCost : std::min(cost, CompactModel::kForbiddenCost / 2);
}

}  // namespace

CompactModel::CompactModel(const PairwiseModel& model, const UsageModel& usage) {
  const std::vector<uint32_t> place = add_variables(model);
  const std::vector<uint32_t> edge_of = add_edges(model, place);
  link_edges();
  add_rows(model, usage);
  add_items(model, usage, edge_of);
}

std::vector<uint32_t> CompactModel::add_variables(const PairwiseModel& model) {
  std::vector<uint32_t> place(model.size(), kNoVariable);
  first.push_back(0);
  for (uint32_t v = 0; v < model.size(); ++v) {
    if (!model.is_left(v)) continue;
    if (model.states(v) == 1) {
      constant += finite(model.unary(v)[0]);
      continue;
    }
    place[v] = size();
    variable.push_back(v);
    for (const double amount : model.unary(v)) cost.push_back(finite(amount));
    first.push_back(static_cast<uint32_t>(cost.size()));
  }
  return place;
}

std::vector<uint32_t> CompactModel::add_edges(const PairwiseModel& model, std::span<const uint32_t> place) {
  std::vector<uint32_t> edge_of(model.edges().size(), kNoVariable);
  for (uint32_t e = 0; e < model.edges().size(); ++e) {
    const PairwiseModel::Edge& edge = model.edges()[e];
    if (!edge.table) continue;
    const uint32_t a = place[edge.a];
    const uint32_t b = place[edge.b];
    if (a == kNoVariable && b == kNoVariable) {
      constant += finite(edge.table->at(0, 0));
    } else if (a == kNoVariable || b == kNoVariable) {
      double* to = cost.data() + first[a == kNoVariable ? b : a];
      for (const double amount : edge.table->costs) *to++ += finite(amount);
    } else {
      Edge made{.a = a, .b = b, .rows_of_a = pairs.size(), .rows_of_b = pairs.size() + edge.table->costs.size()};
      for (const double amount : edge.table->costs) pairs.push_back(finite(amount));
      for (const double amount : edge.table->transposed) pairs.push_back(finite(amount));
      edge_of[e] = static_cast<uint32_t>(edges.size());
      edges.push_back(made);
    }
  }
  return edge_of;
}

void CompactModel::link_edges() {
  incident_first.assign(size() + 1, 0);
  for (const Edge& edge : edges) {
    ++incident_first[edge.a + 1];
    ++incident_first[edge.b + 1];
  }
  std::partial_sum(incident_first.begin(), incident_first.end(), incident_first.begin());
  incident.resize(edges.size() * 2);
  std::vector<uint32_t> next(incident_first.begin(), incident_first.end());
  for (uint32_t e = 0; e < edges.size(); ++e) {
    incident[next[edges[e].a]++] = {.edge = e, .other = edges[e].b};
    incident[next[edges[e].b]++] = {.edge = e, .other = edges[e].a};
  }
}

void CompactModel::add_rows(const PairwiseModel& model, const UsageModel& usage) {
  const size_t points = usage.points();
  std::vector<double> fixed(points + 1, 0);
  std::vector<double> most(points + 1, 0);
  const auto count = [&](const auto& item) {
    const auto [low, high] = std::minmax_element(item.bytes.begin(), item.bytes.end());
    fixed[item.begin] += *low;
    fixed[item.end] -= *low;
    most[item.begin] += *high;
    most[item.end] -= *high;
  };
  for (uint32_t v = 0; v < model.size(); ++v) {
    for (const UsageItem& item : usage.items(v)) count(item);
  }
  for (uint32_t e = 0; e < model.edges().size(); ++e) {
    for (const PairUsage& item : usage.pairs(e)) count(item);
  }
  double fixed_here = 0;
  double most_here = 0;
  for (uint32_t point = 0; point < points; ++point) {
    fixed_here += fixed[point];
    most_here += most[point];
    row_of_point.push_back(static_cast<uint32_t>(rows()));
    if (most_here <= usage.limit()) continue;
    row_limit.push_back(usage.limit() - fixed_here);
    point_of_row.push_back(point);
  }
  row_of_point.push_back(static_cast<uint32_t>(rows()));
}

void CompactModel::add_items(const PairwiseModel& model, const UsageModel& usage, std::span<const uint32_t> edge_of) {
  const auto add = [&](std::vector<Item>& to, const auto& item) {
    const double low = *std::min_element(item.bytes.begin(), item.bytes.end());
    const Item made{.begin = row_of_point[item.begin], .end = row_of_point[item.end], .bytes = bytes.size()};
    if (made.begin == made.end) return;
    if (std::all_of(item.bytes.begin(), item.bytes.end(), [&](double x) { return x == low; })) return;
    to.push_back(made);
    // Amounts count above the least one, which the limit has lost already.
    for (const double amount : item.bytes) bytes.push_back(amount - low);
  };
  item_first.push_back(0);
  for (const uint32_t v : variable) {
    for (const UsageItem& item : usage.items(v)) add(items, item);
    // Next to a variable without a choice, pairs are states.
    for (const uint32_t e : model.edges_of(v)) {
      if (edge_of[e] != kNoVariable) continue;
      for (const PairUsage& item : usage.pairs(e)) add(items, item);
    }
    item_first.push_back(static_cast<uint32_t>(items.size()));
  }
  pair_first.push_back(0);
  for (uint32_t e = 0; e < model.edges().size(); ++e) {
    if (edge_of[e] == kNoVariable) continue;
    for (const PairUsage& item : usage.pairs(e)) add(pair_items, item);
    pair_first.push_back(static_cast<uint32_t>(pair_items.size()));
  }
}

std::vector<uint32_t> CompactModel::compact(std::span<const uint32_t> model_states) const {
  std::vector<uint32_t> states;
  states.reserve(size());
  for (const uint32_t v : variable) states.push_back(model_states[v]);
  return states;
}

std::vector<uint32_t> CompactModel::expanded(std::span<const uint32_t> states, size_t model_size) const {
  std::vector<uint32_t> result(model_size, 0);
  for (size_t v = 0; v < states.size(); ++v) result[variable[v]] = states[v];
  return result;
}

}  // namespace shadowgraph
