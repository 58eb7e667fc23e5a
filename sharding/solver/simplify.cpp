#include "sharding/solver/simplify.h"

#include <algorithm>

#include "sharding/solver/usage.h"

namespace shadowgraph {

namespace {

constexpr int kDominanceTries = 24;  // states that others are held against

// Compares pairs with every state that `state` may be next to.
bool uses_no_more(const PairwiseModel& model, const UsageModel& usage, uint32_t v, uint32_t better, uint32_t state) {
  for (const uint32_t e : model.edges_of(v)) {
    const PairwiseModel::Edge& edge = model.edges()[e];
    const bool first = edge.a == v;
    const uint32_t columns = edge.table->columns;
    for (const PairUsage& item : usage.pairs(e)) {
      // The other end has lost states since.
      if (item.bytes.size() != edge.table->costs.size()) return false;
      for (uint32_t t = 0; t < (first ? columns : edge.table->rows); ++t) {
        const auto at = [&](uint32_t s) { return first ? size_t{s} * columns + t : size_t{t} * columns + s; };
        if (edge.table->costs[at(state)] == kInfinite) continue;
        if (item.bytes[at(better)] > item.bytes[at(state)]) return false;
      }
    }
  }
  return true;
}

// Drops states that use more than the limit leaves when all others use their least, and whatever follows.
bool drop_too_large(const AssignmentProblem& problem, PairwiseModel& model) {
  for (int round = 0; round < 8; ++round) {
    const UsageModel usage(problem, model);
    UsageTree least(usage.points());
    std::vector<std::vector<double>> needs(model.size());
    for (uint32_t v = 0; v < model.size(); ++v) {
      for (const UsageItem& item : usage.items(v)) {
        needs[v].push_back(*std::min_element(item.bytes.begin(), item.bytes.end()));
        least.add(item.begin, item.end, needs[v].back());
      }
    }
    std::vector<std::vector<double>> pair_needs(model.edges().size());
    for (uint32_t e = 0; e < pair_needs.size(); ++e) {
      for (const PairUsage& item : usage.pairs(e)) {
        double need = kInfinite;
        for (size_t i = 0; i < item.bytes.size(); ++i) {
          if (model.edges()[e].table->costs[i] != kInfinite) need = std::min(need, item.bytes[i]);
        }
        pair_needs[e].push_back(need);
        least.add(item.begin, item.end, need);
      }
    }
    if (least.highest() > usage.limit()) return false;
    bool changed = false;
    for (uint32_t v = 0; v < model.size(); ++v) {
      if (!model.is_left(v)) continue;
      std::vector<bool> gone(model.states(v), false);
      for (size_t i = 0; i < needs[v].size(); ++i) {
        const UsageItem& item = usage.items(v)[i];
        const double room = usage.limit() - least.highest(item.begin, item.end) + needs[v][i];
        for (size_t s = 0; s < gone.size(); ++s) gone[s] = gone[s] || item.bytes[s] > room;
      }
      for (const uint32_t e : model.edges_of(v)) {
        const PairwiseModel::Edge& edge = model.edges()[e];
        const bool first = edge.a == v;
        const uint32_t columns = edge.table->columns;
        for (size_t k = 0; k < pair_needs[e].size(); ++k) {
          // `usage` is of the model before states were dropped here. Edges whose ends have lost some are left alone.
          const PairUsage& item = usage.pairs(e)[k];
          if (item.bytes.size() != edge.table->costs.size()) continue;
          const double room = usage.limit() - least.highest(item.begin, item.end) + pair_needs[e][k];
          for (uint32_t s = 0; s < gone.size(); ++s) {
            bool fits = false;
            for (uint32_t t = 0; t < (first ? columns : edge.table->rows) && !fits; ++t) {
              const size_t at = first ? size_t{s} * columns + t : size_t{t} * columns + s;
              fits = edge.table->costs[at] != kInfinite && item.bytes[at] <= room;
            }
            gone[s] = gone[s] || !fits;
          }
        }
      }
      std::vector<uint32_t> keep;
      for (uint32_t s = 0; s < gone.size(); ++s) {
        if (!gone[s]) keep.push_back(s);
      }
      changed |= keep.size() < gone.size();
      model.restrict_to(v, keep);
    }
    if (!model.is_possible()) return false;
    if (!changed) break;
    model.propagate();
    if (!model.is_possible()) return false;
  }
  return true;
}

bool simplify(const AssignmentProblem& problem, PairwiseModel& model, bool within_limit) {
  for (int round = 0; round < 4; ++round) {
    model.propagate();
    if (!model.is_possible()) return false;
    model.merge_functional();
    if (within_limit && !drop_too_large(problem, model)) return false;
    const UsageModel usage(problem, model);
    const bool dropped = model.drop_dominated(kDominanceTries, [&](uint32_t v, uint32_t better, uint32_t state) {
      const auto no_more = [&](const UsageItem& item) { return item.bytes[better] <= item.bytes[state]; };
      return std::all_of(usage.items(v).begin(), usage.items(v).end(), no_more) &&
             uses_no_more(model, usage, v, better, state);
    });
    if (!dropped) break;
  }
  return true;
}

}  // namespace

bool simplify_within_limit(const AssignmentProblem& problem, PairwiseModel& model) {
  return simplify(problem, model, true);
}

bool simplify_for_any_limit(const AssignmentProblem& problem, PairwiseModel& model) {
  return simplify(problem, model, false);
}

}  // namespace shadowgraph
