#include "core/fake/routing.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "core/fake/call_observer.h"
#include "core/fake/data_sizes.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

void add_assumptions(Assumptions& to, const Assumptions& more) {
  for (const auto& each : more) {
    if (std::find(to.begin(), to.end(), each) == to.end()) to.push_back(each);
  }
}

std::string names_of(const Assumptions& assumptions) {
  std::string names;
  for (const auto& each : assumptions) names += (names.empty() ? "" : ", ") + each->name;
  return names;
}

std::shared_ptr<const Routing> Routings::of(const std::string& op, const at::Tensor& index, int64_t choices,
                                            int64_t rows, DataSizes& sizes) {
  auto routing = std::make_shared<Routing>();
  routing->name = sizes.name_of("routing", index, /*by_geometry=*/false);
  const auto n = static_cast<size_t>(choices);
  routing->counts.assign(n, 0);
  std::vector<bool> given(n, false);
  int64_t left = index.numel();
  int64_t open = choices;
  for (size_t i = 0; i < n; ++i) {
    const auto count = sizes.element(routing->name, "routing", static_cast<int64_t>(i), std::min(left, rows));
    if (!count) continue;
    routing->counts[i] = *count;
    given[i] = true;
    left -= *count;
    --open;
  }
  const int64_t share = open > 0 ? left / open : 0;
  int64_t more = open > 0 ? left % open : left;
  if ((open == 0 && left != 0) || share + (more > 0 ? 1 : 0) > rows) {
    throw Error(c10::str(op, ": the counts given for '", routing->name, "' leave ", left, " of ", index.numel(),
                         " for ", open, " of ", choices, " choices, each of which can have at most ", rows));
  }
  for (size_t i = 0; i < n; ++i) {
    if (given[i]) continue;
    routing->counts[i] = share + (more > 0 ? 1 : 0);
    if (more > 0) --more;
  }
  routing->what = c10::str(index.numel(), open == choices ? " evenly" : " as given,", " over ", choices);
  made_.push_back(routing);
  return routing;
}

void Routings::read(const Assumptions& assumptions, const std::string& source) {
  for (const auto& each : assumptions) {
    const bool noted =
        std::any_of(read_.begin(), read_.end(), [&](const Read& known) { return known.routing == each; });
    if (!noted) read_.push_back({each, source});
  }
}

void note_read(const Assumptions& assumptions) {
  ModeState* const mode = thread_state.mode;
  if (assumptions.empty() || mode == nullptr || mode->observer == nullptr) return;  // nobody takes note
  mode->routings.read(assumptions, mode->observer->location());
}

at::Tensor dealt(const Routing& routing, c10::IntArrayRef sizes, int64_t dim) {
  const RealCalls real;
  c10::DimVector turned(sizes);
  std::swap(turned.front(), turned[static_cast<size_t>(dim)]);
  // Sorted along the choices of all rows before their second ones: equal ones are in different rows.
  at::Tensor indices = at::empty(turned, at::kLong);
  auto* next = indices.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < routing.counts.size(); ++i) {
    next = std::fill_n(next, routing.counts[i], static_cast<int64_t>(i));
  }
  return indices.transpose(0, dim).contiguous();
}

}  // namespace shadowgraph
