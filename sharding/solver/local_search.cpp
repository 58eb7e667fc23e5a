#include "sharding/solver/local_search.h"

#include <algorithm>
#include <limits>

#include "sharding/solver/pairwise.h"

namespace shadowgraph {

constexpr uint32_t kOutside = std::numeric_limits<uint32_t>::max();
constexpr int64_t kPenaltyInterval = 64;     // moves between penalty updates of exceeded rows
constexpr int64_t kRefreshInterval = 20000;  // moves between recomputations of sums, against drift
constexpr uint32_t kHubDegree = 200;         // variables with more neighbors are rarely included in a tree
constexpr uint32_t kTreeSizes[] = {2, 8, 16, 32, 64, 200};

static SHADOWGRAPH_SOLVER_LOOPS void lower_to(uint32_t state, double* least, uint32_t* best, const double* row,
                                              double base, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const double sum = base + row[i];
    const bool better = sum < least[i];
    best[i] = better ? state : best[i];
    least[i] = better ? sum : least[i];
  }
}

LocalSearch::LocalSearch(const CompactModel& model, uint64_t seed) : model_(model), random_(seed) {
  prices_.assign(model.rows(), 0);
  penalty_.assign(model.rows(), 0);
  price_sums_.assign(model.rows() + 1, 0);
  change_.assign(model.rows() + 1, 0);
  place_.assign(model.size(), kOutside);
  is_forced_.assign(model.size(), false);
  adjacency_.assign(model.size(), 0);
  adjacent_edge_.assign(model.size(), 0);
  double costs = 0, bytes = 0;
  for (const double cost : model.cost) costs = cost < CompactModel::kForbiddenCost / 2 ? std::max(costs, cost) : costs;
  for (const double amount : model.bytes) bytes = std::max(bytes, amount);
  price_unit_ = bytes > 0 ? 1e-4 * (costs + 1) / bytes : 0;
}

void LocalSearch::load(std::span<const uint32_t> states) {
  states_.assign(states.begin(), states.end());
  conditional_ = model_.cost;
  cost_ = 0;
  for (uint32_t v = 0; v < model_.size(); ++v) cost_ += model_.cost[model_.first[v] + states_[v]];
  for (uint32_t e = 0; e < model_.edges.size(); ++e) {
    const auto& [a, b, rows_of_a, rows_of_b] = model_.edges[e];
    const double* from_a = model_.row(e, a, states_[a]);
    const double* from_b = model_.row(e, b, states_[b]);
    cost_ += from_a[states_[b]];
    double* at_a = conditional_.data() + model_.first[a];
    double* at_b = conditional_.data() + model_.first[b];
    for (uint32_t s = 0; s < model_.states(a); ++s) at_a[s] += from_b[s];
    for (uint32_t s = 0; s < model_.states(b); ++s) at_b[s] += from_a[s];
  }
  std::fill(change_.begin(), change_.end(), 0);
  const auto use = [&](std::span<const CompactModel::Item> items, size_t at) {
    for (const CompactModel::Item& item : items) {
      change_[item.begin] += model_.bytes[item.bytes + at];
      change_[item.end] -= model_.bytes[item.bytes + at];
    }
  };
  for (uint32_t v = 0; v < model_.size(); ++v) use(model_.items_of(v), states_[v]);
  for (uint32_t e = 0; e < model_.edges.size(); ++e) {
    const CompactModel::Edge& edge = model_.edges[e];
    use(model_.pair_items_of(e), model_.pair_at(edge, states_[edge.a], states_[edge.b]));
  }
  next_ = states_;
  excess_.resize(model_.rows());
  excess_sum_ = 0;
  double usage = 0;
  for (size_t r = 0; r < model_.rows(); ++r) {
    usage += change_[r];
    excess_[r] = usage - model_.row_limit[r];
    excess_sum_ += std::max(0.0, excess_[r]);
  }
  std::fill(change_.begin(), change_.end(), 0);
}

void LocalSearch::set_prices(std::span<const double> prices, double weight) {
  prices_.assign(prices.begin(), prices.end());
  weight_ = weight;
  if (excess_sum_ == 0 || !bounded_) std::fill(penalty_.begin(), penalty_.end(), 0);
  sum_prices();
}

void LocalSearch::sum_prices() {
  double sum = 0;
  for (size_t r = 0; r < prices_.size(); ++r) {
    price_sums_[r] = sum;
    sum += prices_[r] * weight_ + penalty_[r];
  }
  price_sums_.back() = sum;
}

void LocalSearch::raise_prices() {
  // The penalty of an exceeded row grows as long as it is exceeded.
  double highest_price = 0;
  for (const double price : prices_) highest_price = std::max(highest_price, price);
  const double unit = std::max(highest_price * 0.05, price_unit_);
  for (size_t r = 0; r < excess_.size(); ++r)
    penalty_[r] = excess_[r] > 0 ? penalty_[r] * 1.1 + unit : penalty_[r] * 0.95;
  sum_prices();
}

void LocalSearch::grow(uint32_t root, uint32_t size) {
  tree_.clear();
  parent_.clear();
  parent_edge_.clear();
  frontier_.clear();
  touched_.clear();
  const auto add = [&](uint32_t v, uint32_t parent, uint32_t edge) {
    place_[v] = static_cast<uint32_t>(tree_.size());
    tree_.push_back(v);
    parent_.push_back(parent);
    parent_edge_.push_back(edge);
    const std::span<const CompactModel::Incidence> around = model_.incident_to(v);
    const auto degree = static_cast<uint32_t>(around.size());
    for (const auto& [e, other] : around) {
      if (place_[other] != kOutside || adjacency_[other]++ > 0) continue;
      touched_.push_back(other);
      adjacent_edge_[other] = e;
      if (degree <= kHubDegree || draw(degree) < kHubDegree) frontier_.push_back(other);
    }
  };
  add(root, kOutside, 0);
  while (tree_.size() < size && !frontier_.empty()) {
    std::swap(frontier_[draw(static_cast<uint32_t>(frontier_.size()))], frontier_.back());
    const uint32_t v = frontier_.back();
    frontier_.pop_back();
    // A second edge to the tree would close a cycle.
    if (adjacency_[v] != 1 || place_[v] != kOutside || is_forced_[v]) continue;
    if (model_.incident_to(v).size() > kHubDegree && draw(8) != 0) continue;
    const CompactModel::Edge& edge = model_.edges[adjacent_edge_[v]];
    add(v, place_[edge.a == v ? edge.b : edge.a], adjacent_edge_[v]);
  }
}

void LocalSearch::change(uint32_t v, uint32_t state) {
  const uint32_t before = states_[v];
  cost_ += conditional_[model_.first[v] + state] - conditional_[model_.first[v] + before];
  states_[v] = state;
  for (const auto& [e, other] : model_.incident_to(v)) {
    const double* was = model_.row(e, v, before);
    const double* is = model_.row(e, v, state);
    double* sums = conditional_.data() + model_.first[other];
    const uint32_t size = model_.states(other);
    for (uint32_t s = 0; s < size; ++s) sums[s] += is[s] - was[s];
  }
}

void LocalSearch::force(int count) {
  for (int i = 0; i < count && !model_.edges.empty(); ++i) {
    // Draw an edge first, so that variables with many edges are forced more often.
    const CompactModel::Edge& edge = model_.edges[draw(static_cast<uint32_t>(model_.edges.size()))];
    const uint32_t v = draw(2) == 0 ? edge.a : edge.b;
    if (is_forced_[v]) continue;
    is_forced_[v] = true;
    forced_.push_back(v);
    states_[v] = (states_[v] + 1 + draw(model_.states(v) - 1)) % model_.states(v);
  }
  load(std::vector<uint32_t>(states_));
}

void LocalSearch::release() {
  for (const uint32_t v : forced_) is_forced_[v] = false;
  forced_.clear();
}

bool LocalSearch::is_exceeded_at(uint32_t v) const {
  for (const CompactModel::Item& item : model_.items_of(v)) {
    const uint32_t stride = std::max(1U, (item.end - item.begin) / 8);
    for (uint32_t r = item.begin; r < item.end; r += stride) {
      if (excess_[r] > 0) return true;
    }
  }
  return false;
}

uint32_t LocalSearch::draw_root() {
  uint32_t root = draw(model_.size());
  for (int attempt = 0; attempt < 20 && excess_sum_ > 0 && !is_exceeded_at(root); ++attempt) root = draw(model_.size());
  return root;
}

// Adds the priced usage of pairs with that state of v, by state of the other end.
void LocalSearch::add_pair_prices(uint32_t e, uint32_t v, uint32_t state, double* to) const {
  const CompactModel::Edge& edge = model_.edges[e];
  const bool first = edge.a == v;
  const uint32_t columns = model_.states(edge.b);
  const uint32_t others = first ? columns : model_.states(edge.a);
  for (const CompactModel::Item& item : model_.pair_items_of(e)) {
    const double price = price_sums_[item.end] - price_sums_[item.begin];
    if (price <= 0) continue;
    const double* bytes = model_.bytes.data() + item.bytes + (first ? size_t{state} * columns : state);
    const size_t stride = first ? 1 : columns;
    for (uint32_t s = 0; s < others; ++s) to[s] += price * bytes[s * stride];
  }
}

// Writes the optimal states of the tree to chosen_; keeps the present states if their cost is the same.
void LocalSearch::optimize_tree() {
  const size_t size = tree_.size();
  if (sums_.size() < size) {
    sums_.resize(size);
    best_.resize(size);
  }
  // Conditional costs without the pairs inside the tree.
  for (size_t i = 0; i < size; ++i) {
    const uint32_t v = tree_[i];
    const double* conditional = conditional_.data() + model_.first[v];
    std::vector<double>& sums = sums_[i];
    sums.assign(conditional, conditional + model_.states(v));
    for (const CompactModel::Item& item : model_.items_of(v)) {
      const double price = price_sums_[item.end] - price_sums_[item.begin];
      if (price <= 0) continue;
      const double* bytes = model_.bytes.data() + item.bytes;
      for (size_t s = 0; s < sums.size(); ++s) sums[s] += price * bytes[s];
    }
    if (model_.pair_items.empty()) continue;
    for (const auto& [e, other] : model_.incident_to(v)) {
      if (place_[other] == kOutside) add_pair_prices(e, other, states_[other], sums.data());
    }
  }
  for (size_t i = 1; i < size; ++i) {
    const uint32_t v = tree_[i];
    const uint32_t p = tree_[parent_[i]];
    const double* from_parent = model_.row(parent_edge_[i], p, states_[p]);
    for (size_t s = 0; s < sums_[i].size(); ++s) sums_[i][s] -= from_parent[s];
    const double* from_here = model_.row(parent_edge_[i], v, states_[v]);
    std::vector<double>& above = sums_[parent_[i]];
    for (size_t s = 0; s < above.size(); ++s) above[s] -= from_here[s];
  }
  for (size_t i = size; i-- > 1;) {
    const uint32_t v = tree_[i];
    const uint32_t keep = states_[v];
    std::vector<double>& above = sums_[parent_[i]];
    const std::vector<double>& here = sums_[i];
    const size_t width = above.size();
    const bool priced = !model_.pair_items_of(parent_edge_[i]).empty();
    const auto row_of = [&](uint32_t s) {
      const double* row = model_.row(parent_edge_[i], v, s);
      if (!priced) return row;
      priced_row_.assign(row, row + width);
      add_pair_prices(parent_edge_[i], v, s, priced_row_.data());
      return static_cast<const double*>(priced_row_.data());
    };
    const double* kept = row_of(keep);
    least_.resize(width);
    best_[i].assign(width, keep);
    for (size_t p = 0; p < width; ++p) least_[p] = here[keep] + kept[p];
    for (uint32_t s = 0; s < here.size(); ++s) lower_to(s, least_.data(), best_[i].data(), row_of(s), here[s], width);
    for (size_t p = 0; p < width; ++p) above[p] += least_[p];
  }
  for (const uint32_t v : touched_) adjacency_[v] = 0;
  for (const uint32_t v : tree_) place_[v] = kOutside;
  chosen_.resize(size);
  const uint32_t keep = states_[tree_[0]];
  const auto least = std::min_element(sums_[0].begin(), sums_[0].end());
  chosen_[0] = sums_[0][keep] <= *least ? keep : static_cast<uint32_t>(least - sums_[0].begin());
  for (size_t i = 1; i < size; ++i) chosen_[i] = best_[i][chosen_[parent_[i]]];
}

void LocalSearch::step() {
  if (model_.size() == 0) return;
  ++steps_;
  if (steps_ % kRefreshInterval == 0) load(std::vector<uint32_t>(states_));
  if (bounded_ && excess_sum_ > 0 && steps_ % kPenaltyInterval == 0) raise_prices();
  const uint32_t root = draw_root();
  if (is_forced_[root]) return;
  grow(root, kTreeSizes[draw(std::size(kTreeSizes))]);
  optimize_tree();

  const size_t size = tree_.size();
  uint32_t low = kOutside, high = 0;
  bool any = false;
  const auto use = [&](std::span<const CompactModel::Item> items, size_t now, size_t then) {
    for (const CompactModel::Item& item : items) {
      const double bytes = model_.bytes[item.bytes + then] - model_.bytes[item.bytes + now];
      if (bytes == 0) continue;
      change_[item.begin] += bytes;
      change_[item.end] -= bytes;
      low = std::min(low, item.begin);
      high = std::max(high, item.end);
    }
  };
  for (size_t i = 0; i < size; ++i) {
    next_[tree_[i]] = chosen_[i];
    any = any || chosen_[i] != states_[tree_[i]];
  }
  if (!any) return;
  for (const uint32_t v : tree_) {
    if (next_[v] == states_[v]) continue;
    use(model_.items_of(v), states_[v], next_[v]);
    if (model_.pair_items.empty()) continue;
    for (const auto& [e, other] : model_.incident_to(v)) {
      const CompactModel::Edge& edge = model_.edges[e];
      if (edge.b == v && next_[other] != states_[other]) continue;  // added by its other end
      use(model_.pair_items_of(e), model_.pair_at(edge, states_[edge.a], states_[edge.b]),
          model_.pair_at(edge, next_[edge.a], next_[edge.b]));
    }
  }
  double added = 0, sum = 0;
  for (uint32_t r = low; r < high; ++r) {
    sum += change_[r];
    added += std::max(0.0, excess_[r] + sum) - std::max(0.0, excess_[r]);
  }
  bool accept = added <= 0 || !bounded_;
  bool changed = false;
  if (!accept && !is_allowed()) {
    // Accepts more usage in order to remove a forbidden pair; later moves reduce the excess over the limit.
    const double before = cost_;
    std::vector<uint32_t> old(size);
    for (size_t i = 0; i < size; ++i) old[i] = states_[tree_[i]];
    for (size_t i = 0; i < size; ++i) {
      if (chosen_[i] != states_[tree_[i]]) change(tree_[i], chosen_[i]);
    }
    accept = changed = cost_ < before - CompactModel::kForbiddenCost / 2;
    for (size_t i = 0; i < size && !accept; ++i) {
      if (old[i] != states_[tree_[i]]) change(tree_[i], old[i]);
    }
  }
  if (accept) {
    sum = 0;
    for (uint32_t r = low; r < high; ++r) {
      sum += change_[r];
      excess_[r] += sum;
    }
    excess_sum_ += added;
    if (excess_sum_ < 0.5) excess_sum_ = 0;  // bytes are integers
    for (size_t i = 0; i < size && !changed; ++i) {
      if (chosen_[i] != states_[tree_[i]]) change(tree_[i], chosen_[i]);
    }
  }
  for (const uint32_t v : tree_) next_[v] = states_[v];
  if (low < high) std::fill(change_.begin() + low, change_.begin() + high + 1, 0);
}

}  // namespace shadowgraph
