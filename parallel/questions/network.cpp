#include <fmt/format.h>

#include "parallel/questions/asker.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

void speed_up(LinkLevel& level, double factor) {
  level.bandwidth *= factor;
  level.direct *= factor;
  for (LinkGroup& group : level.groups) {
    group.bandwidth *= factor;
    group.direct *= factor;
  }
}

// Links that cost nothing: what any network can bring.
Interconnect free_links(Interconnect links) {
  constexpr double kEndless = 1e30;
  links.base = links.device_share = links.ring_fill = 0;
  for (LinkLevel& level : links.levels) {
    level.latency = 0;
    speed_up(level, kEndless);
  }
  return links;
}

// Whether layers' figures stay: tensor parallel is within the innermost links, which are as they were.
bool layers_stay(const ClusterRequest& request, size_t level) {
  if (level == 0) return false;
  for (const int64_t tensor : request.tensor) {
    if (tensor > request.links.levels.front().size) return false;
  }
  return true;
}

std::string difference(const PlanRow& row, const PlanRow& own) {
  return fmt::format("{:+.1f} % of a step's time", 100 * (row.seconds / own.seconds - 1));
}

}  // namespace

PlanTable ask_network(Asker& asker, const PlanQuestion& question) {
  const ClusterRequest& request = asker.request();
  const Interconnect& links = request.links;
  if (!links.tables.empty() || !links.axes.empty()) {
    throw Error(
        fmt::format("links '{}' hold measured tables, of which nobody knows what faster links would leave: ask "
                    "with links of levels alone, such as h100",
                    links.name));
  }
  if (links.levels.empty()) throw Error(fmt::format("links '{}' have no levels", links.name));
  PlanTable table{.about = question.about, .title = "faster links, the best plan for each", .head = "links"};
  PlanRow own = asker.row("as they are", 1, request);
  table.rows.push_back(own);
  const auto ask = [&](const std::string& name, double number, Interconnect faster, KeptTables& kept) {
    ClusterRequest changed = request;
    changed.links = std::move(faster);
    table.rows.push_back(asker.row(name, number, asker.source(), changed, kept));
    const PlanRow& row = table.rows.back();
    if (own.why_not.empty() && row.why_not.empty()) {
      table.findings.push_back(fmt::format("{}: {}", name, difference(row, own)));
    }
  };
  for (size_t level = links.levels.size(); level-- > 0;) {
    // Each level of its own; of the innermost one factor is enough to see whether it matters.
    for (const double factor : values_of(
             question, level == 0 && links.levels.size() > 1 ? std::vector<double>{2} : std::vector<double>{2, 4, 8})) {
      Interconnect faster = links;
      speed_up(faster.levels[level], factor);
      const std::string name = fmt::format("{} x {:g}", links.levels[level].name, factor);
      ask(name, factor, std::move(faster), layers_stay(request, level) ? asker.kept() : asker.kept(name));
    }
  }
  ask("free of cost", 0, free_links(links), asker.kept("free"));
  if (own.why_not.empty()) {
    table.findings.insert(
        table.findings.begin(),
        fmt::format("collectives that nothing hides take {} of {} now ({:.1f} %)", human_seconds(own.exposed),
                    human_seconds(own.seconds), 100 * own.exposed / own.seconds));
  }
  return table;
}

}  // namespace shadowgraph
