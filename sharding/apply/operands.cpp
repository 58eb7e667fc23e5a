#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ir/analysis/written_arguments.h"
#include "shadowgraph/text.h"
#include "sharding/apply/application.h"

namespace shadowgraph {

Application::Taken Application::take(NodeId node, ValueId value, const Layout& wanted, bool written,
                                     bool geometry_only) {
  const LocalValue& local = std::as_const(values_)[value];
  TORCH_INTERNAL_ASSERT(local.made.valid());
  if (written && local.copied_at) {
    fail(node, fmt::format("it writes to {}, which lives in a copy that was made to lie as {}: the tensor itself would "
                           "not change",
                           text_of_value(value), to_string(local.layout)));
  }
  if (local.layout == wanted) {
    if (!geometry_only) check_fresh(node, value, local);
    return {local.made, local.copied_at};
  }
  if (written) {
    fail(node, fmt::format("it writes to {}, which lies as {}, and the plan wants it as {}: no copy can stand for it",
                           text_of_value(value), to_string(local.layout), to_string(wanted)));
  }
  check_fresh(node, value, local);
  const uint32_t version = version_of(value);
  const PhaseId phase = phase_of_copies(read_, node);
  std::vector<Copy>& copies = copies_[value];
  for (const Copy& copy : copies) {
    if (copy.version == version && copy.phase == phase && copy.layout == wanted) return {copy.made, version};
  }
  const ValueId made = redistributed(node, value, local, wanted);
  copies.push_back({version, phase, wanted, made});
  return {made, made == local.made ? local.copied_at : version};
}

void Application::check_fresh(NodeId node, ValueId value, const LocalValue& local) const {
  if (!local.copied_at || *local.copied_at == version_of(value)) return;
  fail(node,
       fmt::format("it reads {}, which lives in a copy that was made to lie as {}; the memory has been written to "
                   "since",
                   text_of_value(value), to_string(local.layout)));
}

std::string Application::text_of_value(ValueId value) const {
  return fmt::format("the result of {}", to_text(read_, read_.value(value).producer));
}

ValueId Application::redistributed(NodeId node, ValueId value, const LocalValue& local, const Layout& wanted) {
  const RedistributionPlanner& planner = options_.planner != nullptr ? *options_.planner : *planner_;
  const auto bytes = static_cast<int64_t>(c10::elementSize(read_.value(value).dtype));
  const Redistribution way = planner.way(read_.sizes(value), bytes, local.layout, wanted);
  if (!way.possible) {
    fail(node, fmt::format("there is no way from {} to {} for a tensor of sizes [{}]", to_string(local.layout),
                           to_string(wanted), fmt::join(read_.sizes(value), ", ")));
  }
  program_.set_redistribution(to_string(local.layout) + " -> " + to_string(wanted));
  const ValueId made = redistributor_.redistribute(local.made, read_.sizes(value), local.layout, way);
  program_.set_redistribution("");
  return made;
}

std::vector<bool> Application::written_operands(NodeId node) const {
  std::vector<bool> written;
  const OperatorFacts& facts = read_.facts(node);
  const bool writes = !effects_.writes(node).empty();
  const auto arguments = read_.arguments(node);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_written =
        writes && (facts.unknown || (std::find(facts.written.begin(), facts.written.end(), i) != facts.written.end() &&
                                     writes_argument(read_, node, i)));
    read_.for_each_value(arguments.subspan(i, 1), [&](ValueId v) {
      if (is_tensor(v)) written.push_back(is_written);
    });
  }
  return written;
}

}  // namespace shadowgraph
