#include <fmt/format.h>

#include <algorithm>

#include "profiler/program_costs.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/profilers.h"
#include "shadowgraph/profile/step_time.h"
#include "support/csv.h"

namespace shadowgraph {
namespace {

class RuleProfiler final : public NodeProfiler {
 public:
  using Rule = std::function<std::optional<double>(const Profile&, NodeId)>;
  RuleProfiler(NodeMetric metric, Rule rule) : metric_(std::move(metric)), rule_(std::move(rule)) {}
  std::vector<NodeMetric> metrics() const override { return {metric_}; }
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override {
    into[0] = rule_(profile, node);
  }

 private:
  NodeMetric metric_;
  Rule rule_;
};

}  // namespace

std::vector<NodeMetric> FlopProfiler::metrics() const {
  return {{"matmul_flops", "FLOP"}, {"elementwise_flops", "FLOP"}, {"transcendental", ""}};
}

void FlopProfiler::measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const {
  if (profile.node_flops().is_uncovered(node)) return;
  const NodeFlops& flops = profile.of(node);
  into[0] = static_cast<double>(flops.matmul);
  into[1] = static_cast<double>(flops.elementwise);
  into[2] = static_cast<double>(flops.transcendental);
}

std::vector<NodeMetric> MemoryProfiler::metrics() const {
  return {{"allocated_bytes", "B"}, {"saved_bytes", "B"}, {"scratch_bytes", "B"}, {"moved_bytes", "B"}};
}

void MemoryProfiler::measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const {
  const ProgramCosts& costs = ProgramCosts::of(profile);
  into[0] = static_cast<double>(costs.node_bytes().allocated[node]);
  into[1] = static_cast<double>(costs.node_bytes().saved[node]);
  const NodeScratch& scratch = profile.scratch(node);
  if (scratch.source != ScratchSource::kUnknown) into[2] = static_cast<double>(scratch.bytes);
  into[3] = static_cast<double>(costs.traffic().of(node).total());
}

std::vector<NodeMetric> TimeProfiler::metrics() const { return {{"seconds", "s"}}; }

void TimeProfiler::measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const {
  // The time of a collective depends on the interconnect; CommunicationProfiler reports it.
  if (profile.time() == nullptr || profile.graph().facts(node).collective) return;
  into[0] = profile.time()->of(node).seconds;
}

std::vector<NodeMetric> CommunicationProfiler::metrics() const {
  return {{"wire_bytes", "B"}, {"communication_seconds", "s"}};
}

void CommunicationProfiler::measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const {
  const Communication* communication = profile.communication();
  const Collective* sent = communication != nullptr ? communication->find(node) : nullptr;
  if (sent == nullptr) {
    const auto uncovered = communication != nullptr ? communication->uncovered() : std::span<const UncoveredOperator>();
    const std::string& op = profile.graph().target(node).name();
    if (std::any_of(uncovered.begin(), uncovered.end(), [&](const auto& one) { return one.op == op; })) return;
    into[0] = into[1] = 0;
    return;
  }
  into[0] = static_cast<double>(sent->cost.wire);
  if (communication->has_seconds()) into[1] = sent->cost.seconds();
}

GraphProfiler& GraphProfiler::add(std::shared_ptr<const NodeProfiler> profiler) {
  std::vector<NodeMetric> metrics = profiler->metrics();
  for (const NodeMetric& metric : metrics) {
    const bool taken = std::any_of(metrics_.begin(), metrics_.end(),
                                   [&](const NodeMetric& other) { return other.name == metric.name; });
    if (taken) throw Error("two profilers define a metric '" + metric.name + "'; rename one of them");
  }
  profilers_.push_back({std::move(profiler), metrics.size()});
  std::move(metrics.begin(), metrics.end(), std::back_inserter(metrics_));
  return *this;
}

GraphProfiler& GraphProfiler::add(std::string name, std::string unit, RuleProfiler::Rule rule) {
  if (!rule) throw Error("metric '" + name + "' needs a rule; got an empty function");
  return add(std::make_shared<const RuleProfiler>(NodeMetric{std::move(name), std::move(unit)}, std::move(rule)));
}

NodeTable GraphProfiler::run(const Profile& profile) const {
  const Graph& graph = profile.graph();
  NodeTable table;
  table.graph_ = WeakGraph(graph);
  table.metrics_ = metrics_;
  // Returns the forward node that this node differentiates, following chains of backward nodes; invalid if none.
  const auto belongs_to = [&](NodeId node) {
    NodeId last;
    for (NodeId forward = graph.node(node).forward; forward.valid() && !graph.is_erased(forward);
         forward = graph.node(forward).forward) {
      last = forward;
    }
    return last;
  };
  for (const NodeId node : graph.nodes()) {
    if (belongs_to(node).valid()) continue;
    table.row_[node] = static_cast<uint32_t>(table.nodes_.size());
    table.nodes_.push_back(node);
  }
  table.costs_.resize(table.nodes_.size() * metrics_.size());
  std::vector<std::optional<double>> answers(metrics_.size());
  for (const NodeId node : graph.nodes()) {
    const NodeId forward = belongs_to(node);
    const uint32_t row = std::as_const(table.row_)[forward.valid() ? forward : node];
    std::fill(answers.begin(), answers.end(), std::nullopt);
    size_t at = 0;
    for (const auto& [profiler, count] : profilers_) {
      profiler->measure(profile, node, std::span(answers).subspan(at, count));
      at += count;
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      NodeCost& cost = table.costs_[row * metrics_.size() + i];
      cost.unknown += answers[i] ? 0 : 1;
      (forward.valid() ? cost.backward : cost.forward) += answers[i].value_or(0);
    }
  }
  return table;
}

const NodeCost& NodeTable::at(NodeId node, std::string_view metric) const {
  const auto found =
      std::find_if(metrics_.begin(), metrics_.end(), [&](const NodeMetric& one) { return one.name == metric; });
  if (found == metrics_.end()) throw Error(fmt::format("no profiler has a metric '{}'", metric));
  if (!has(node)) throw Error("the node has no row in the table: its costs are added to those of its forward node");
  return at(node, static_cast<size_t>(found - metrics_.begin()));
}

NodeCost NodeTable::total(size_t metric) const {
  NodeCost sum;
  for (const NodeId node : nodes_) {
    const NodeCost& cost = at(node, metric);
    sum.forward += cost.forward;
    sum.backward += cost.backward;
    sum.unknown += cost.unknown;
  }
  return sum;
}

std::string to_csv(const NodeTable& table) {
  const Graph& graph = table.graph();
  std::vector<std::string> names = {"node", "phase", "module", "op", "source"};
  for (const NodeMetric& metric : table.metrics()) {
    names.push_back(metric.name);
    names.push_back("backward_" + metric.name);
  }
  names.emplace_back("unknown");
  const auto order = program_order(graph);
  Csv csv(names);
  for (const NodeId node : table.nodes()) {
    csv.number(order[node]);
    csv.text(graph.phase_name(graph.node(node).phase));
    csv.text(module_path(graph, node));
    csv.text(graph.target(node).name());
    csv.text(graph.text_or_empty(graph.node(node).source));
    int64_t unknown = 0;
    for (size_t i = 0; i < table.metrics().size(); ++i) {
      csv.real(table.at(node, i).forward);
      csv.real(table.at(node, i).backward);
      unknown += table.at(node, i).unknown;
    }
    csv.number(unknown);
    csv.end();
  }
  return csv.take();
}

}  // namespace shadowgraph
