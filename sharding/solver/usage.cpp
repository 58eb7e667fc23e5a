#include "sharding/solver/usage.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>

namespace shadowgraph {

UsageTree::UsageTree(size_t points) {
  if (points == 0) return;
  size_ = std::bit_ceil(static_cast<uint32_t>(points));
  most_.resize(size_t{2} * size_, 0);
  added_.resize(size_t{2} * size_, 0);
}

void UsageTree::add(uint32_t begin, uint32_t end, double amount) {
  if (begin >= end || amount == 0) return;
  const uint32_t first = begin + size_;
  const uint32_t last = end - 1 + size_;
  for (uint32_t l = first, r = last + 1; l < r; l /= 2, r /= 2) {
    if (l % 2 == 1) {
      added_[l] += amount;
      most_[l++] += amount;
    }
    if (r % 2 == 1) {
      added_[--r] += amount;
      most_[r] += amount;
    }
  }
  for (const uint32_t end_of_range : {first, last}) {
    for (uint32_t node = end_of_range / 2; node > 0; node /= 2) {
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
    }
  }
}

double UsageTree::highest(uint32_t begin, uint32_t end) const {
  // Amounts added at ancestors count too.
  double best = -kInfinite;
  const auto look = [&](uint32_t node) {
    double most = most_[node];
    for (uint32_t above = node / 2; above > 0; above /= 2) most += added_[above];
    best = std::max(best, most);
  };
  for (uint32_t l = begin + size_, r = end + size_; l < r; l /= 2, r /= 2) {
    if (l % 2 == 1) look(l++);
    if (r % 2 == 1) look(--r);
  }
  return best;
}

static bool any_use(const std::vector<int64_t>& usages) {
  return std::any_of(usages.begin(), usages.end(), [](int64_t x) { return x > 0; });
}

// Returns the times at which usage can be maximal: the last begin before an end.
static std::vector<int64_t> decisive_times(const AssignmentProblem& problem, const std::vector<bool>& matrix_uses) {
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
  const auto note = [&](const std::vector<LiveInterval>& live, bool used) {
    if (!used) return;
    for (const LiveInterval& interval : live) {
      begins.push_back(interval.begin);
      ends.push_back(interval.end);
    }
  };
  for (const AssignmentNode& node : problem.nodes) note(node.live, any_use(node.usages));
  for (const AssignmentEdge& edge : problem.edges) note(edge.live, matrix_uses[edge.matrix]);
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  std::sort(ends.begin(), ends.end());
  std::vector<int64_t> times;
  for (size_t i = 0; i < begins.size(); ++i) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), begins[i]);
    if (i + 1 == begins.size() || (end != ends.end() && *end <= begins[i + 1])) times.push_back(begins[i]);
  }
  return times;
}

constexpr uint32_t kNoVariable = std::numeric_limits<uint32_t>::max();

static double finite(double cost) {
  return cost == kInfinite ? CompactModel::kForbiddenCost : std::min(cost, CompactModel::kForbiddenCost / 2);
}

UsageModel::UsageModel(const AssignmentProblem& problem, const PairwiseModel& model)
    : items_(model.size()), pairs_(model.edges().size()), limit_(static_cast<double>(problem.usage_limit)) {
  std::vector<bool> matrix_uses;
  for (const CostMatrix& matrix : problem.matrices) matrix_uses.push_back(any_use(matrix.usages));
  times_ = decisive_times(problem, matrix_uses);

  using Range = std::pair<uint32_t, uint32_t>;
  std::vector<std::map<Range, std::vector<double>>> items(model.size());
  std::vector<std::map<Range, std::vector<double>>> pairs(model.edges().size());
  const auto add = [&](std::map<Range, std::vector<double>>& to, const std::vector<LiveInterval>& live, size_t size,
                       const auto& bytes_of) {
    const auto point = [&](int64_t time) {
      return static_cast<uint32_t>(std::lower_bound(times_.begin(), times_.end(), time) - times_.begin());
    };
    for (const LiveInterval& interval : live) {
      const Range range{point(interval.begin), point(interval.end)};
      if (range.first >= range.second) continue;
      std::vector<double>& bytes = to[range];
      bytes.resize(size, 0);
      for (size_t i = 0; i < size; ++i)
        bytes[i] += static_cast<double>(bytes_of(i)) * static_cast<double>(interval.count);
    }
  };
  struct Place {
    uint32_t variable = 0;
    const std::vector<uint32_t>* strategy = nullptr;  // by state
  };
  std::vector<Place> places(problem.nodes.size());
  for (uint32_t v = 0; v < model.size(); ++v) {
    if (!model.is_left(v)) continue;
    for (const PairwiseModel::Member& member : model.members(v)) {
      places[member.node] = {.variable = v, .strategy = &member.strategy};
      const AssignmentNode& node = problem.nodes[member.node];
      if (!any_use(node.usages)) continue;
      add(items[v], node.live, model.states(v), [&](size_t s) { return node.usages[member.strategy[s]]; });
    }
  }
  for (const AssignmentEdge& edge : problem.edges) {
    if (!matrix_uses[edge.matrix]) continue;
    const CostMatrix& matrix = problem.matrices[edge.matrix];
    const auto& [a, strategy_a] = places[edge.a];
    const auto& [b, strategy_b] = places[edge.b];
    const auto bytes = [&](size_t s, size_t t) {
      return matrix.usages[size_t{(*strategy_a)[s]} * matrix.columns + (*strategy_b)[t]];
    };
    if (a == b) {
      add(items[a], edge.live, model.states(a), [&](size_t s) { return bytes(s, s); });
      continue;
    }
    for (const uint32_t e : model.edges_of(a)) {
      const PairwiseModel::Edge& between = model.edges()[e];
      if (between.other(a) != b) continue;
      const size_t columns = between.table->columns;
      add(pairs[e], edge.live, between.table->costs.size(),
          [&](size_t i) { return between.a == a ? bytes(i / columns, i % columns) : bytes(i % columns, i / columns); });
      break;
    }
  }
  const auto keep = [](auto& from, std::vector<std::vector<UsageItem>>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      for (auto& [range, bytes] : from[i]) to[i].push_back({range.first, range.second, std::move(bytes)});
    }
  };
  keep(items, items_);
  keep(pairs, pairs_);
}

std::vector<double> UsageModel::profile(const PairwiseModel& model, std::span<const uint32_t> states) const {
  std::vector<double> change(points() + 1, 0);
  const auto add = [&](const auto& item, size_t at) {
    change[item.begin] += item.bytes[at];
    change[item.end] -= item.bytes[at];
  };
  for (uint32_t v = 0; v < items_.size(); ++v) {
    for (const UsageItem& item : items_[v]) add(item, states[v]);
  }
  for (uint32_t e = 0; e < pairs_.size(); ++e) {
    const PairwiseModel::Edge& edge = model.edges()[e];
    for (const UsageItem& item : pairs_[e]) add(item, size_t{states[edge.a]} * edge.table->columns + states[edge.b]);
  }
  change.pop_back();
  double sum = 0;
  for (double& amount : change) amount = sum += amount;
  return change;
}

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
      edge_of[e] = static_cast<uint32_t>(edges.size());
      edges.push_back(
          {.a = a, .b = b, .rows_of_a = pairs.size(), .rows_of_b = pairs.size() + edge.table->costs.size()});
      for (const double amount : edge.table->costs) pairs.push_back(finite(amount));
      for (const double amount : edge.table->transposed) pairs.push_back(finite(amount));
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
  std::vector<double> fixed(usage.points() + 1, 0);
  std::vector<double> most(usage.points() + 1, 0);
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
    for (const UsageItem& item : usage.pairs(e)) count(item);
  }
  double fixed_here = 0, most_here = 0;
  for (uint32_t point = 0; point < usage.points(); ++point) {
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
    // Amounts are relative to the minimum, which is subtracted from the limit.
    for (const double amount : item.bytes) bytes.push_back(amount - low);
  };
  item_first.push_back(0);
  for (const uint32_t v : variable) {
    for (const UsageItem& item : usage.items(v)) add(items, item);
    // If the other variable has a single state, pairs are states.
    for (const uint32_t e : model.edges_of(v)) {
      if (edge_of[e] != kNoVariable) continue;
      for (const UsageItem& item : usage.pairs(e)) add(items, item);
    }
    item_first.push_back(static_cast<uint32_t>(items.size()));
  }
  pair_first.push_back(0);
  for (uint32_t e = 0; e < model.edges().size(); ++e) {
    if (edge_of[e] == kNoVariable) continue;
    for (const UsageItem& item : usage.pairs(e)) add(pair_items, item);
    pair_first.push_back(static_cast<uint32_t>(pair_items.size()));
  }
}

std::vector<uint32_t> CompactModel::compact(std::span<const uint32_t> model_states) const {
  std::vector<uint32_t> states;
  for (const uint32_t v : variable) states.push_back(model_states[v]);
  return states;
}

std::vector<uint32_t> CompactModel::expanded(std::span<const uint32_t> states, size_t model_size) const {
  std::vector<uint32_t> result(model_size, 0);
  for (size_t v = 0; v < states.size(); ++v) result[variable[v]] = states[v];
  return result;
}

}  // namespace shadowgraph
