#include "core/fake/data_dependent_values.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/fake/call_observer.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

std::string DataSizes::name_of(const std::string& question, const at::Tensor& tensor, bool by_geometry) {
  const std::lock_guard lock(mutex_);
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  std::vector<int64_t> geometry;
  if (by_geometry) {
    geometry = tensor.sizes().vec();
    geometry.insert(geometry.end(), tensor.strides().begin(), tensor.strides().end());
    geometry.push_back(tensor.storage_offset());
  }
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  const uint32_t version = counter.enabled() ? counter.current_version() : 0;
  for (const Known& known : known_) {
    if (known.address == storage && !known.storage.expired() && known.version == version &&
        known.question == question && known.geometry == geometry) {
      return known.name;
    }
  }
  known_.push_back({question, storage, tensor.storage().getWeakStorageImpl(), std::move(geometry), version,
                    question + std::to_string(count_[question]++)});
  return known_.back().name;
}

std::optional<int64_t> DataSizes::element(const std::string& name, const std::string& question, int64_t index,
                                          int64_t most) {
  const std::lock_guard lock(mutex_);
  const std::string place = "[" + std::to_string(index) + "]";
  auto given = given_.find(name + place);
  if (given == given_.end()) {
    const auto all = given_.find(question + place);
    if (all == given_.end()) return std::nullopt;
    given = given_.emplace(name + place, std::min(most, all->second)).first;
  }
  if (given->second < 0 || given->second > most) {
    throw Error("the count given as '" + given->first + "', " + std::to_string(given->second) +
                ", is out of range: expected 0 to " + std::to_string(most));
  }
  used_.push_back({given->first, given->second, ""});
  return given->second;
}

int64_t DataSizes::size(const std::string& op, const std::string& question, const at::Tensor& tensor, int64_t most,
                        const std::function<std::optional<Assumed>()>& assume) {
  const std::lock_guard lock(mutex_);
  const std::string name = name_of(question, tensor, /*by_geometry=*/true);
  auto given = given_.find(name);
  if (const auto all = given_.find(question); given == given_.end() && all != given_.end()) {
    given = given_.emplace(name, std::min(all->second, most)).first;
  }
  if (given == given_.end() && hint_) {
    if (const auto size = hint_({name, op, tensor, most})) given = given_.emplace(name, *size).first;
  }
  const bool is_mask = tensor.scalar_type() == c10::kBool && (question == "nonzero" || question == "masked_select");
  if (given == given_.end() && masks_full_ && is_mask) given = given_.emplace(name, most).first;
  if (given == given_.end() && assume) {
    if (const auto assumed = assume()) {
      used_.push_back({name, assumed->size, assumed->why});
      return assumed->size;
    }
  }
  if (given == given_.end()) {
    throw DataDependentError(
        op +
        ": the size of the result depends on the data of a fake tensor, which has none. Provide the size with "
        "data_sizes {\"" +
        name + "\": n}, {\"" + question +
        "\": n} for all calls (limited to the maximum of each), or a function (data_size_hint in C++)" +
        (is_mask ? "; assume that masks keep every element with host_reads \"mask full\"" : "") +
        "; pass it in as a number; or run this part on real tensors under an UnfakeGuard");
  }
  if (given->second < 0 || given->second > most) {
    throw Error(op + ": the size given as '" + name + "', " + std::to_string(given->second) +
                ", is out of range: expected 0 to " + std::to_string(most));
  }
  used_.push_back({name, given->second, ""});
  return given->second;
}

namespace {

const char* kind_of(const std::string& question, const at::Tensor& tensor) {
  if (question == "equal" || tensor.scalar_type() == c10::kBool) return "bool";
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) ? "int" : "float";
}

// Converts to the kind that the program reads; a number is not accepted as a bool.
c10::Scalar as_kind(const c10::Scalar& value, const char* kind, const std::string& name) {
  const std::string_view wanted = kind;
  if (wanted == "bool") {
    if (!value.isBoolean() && !(value.isIntegral(false) && (value.toLong() == 0 || value.toLong() == 1))) {
      throw Error("the value of host read '" + name + "' must be true or false, not " + c10::str(value));
    }
    return value.toBool();
  }
  if (wanted == "int") {
    if (!value.isIntegral(/*includeBool=*/true)) {
      throw Error("the value of host read '" + name + "' must be an integer, not " + c10::str(value));
    }
    return value.toLong();
  }
  return value.isComplex() ? value : c10::Scalar(value.toDouble());
}

}  // namespace

std::optional<HostReadValues::Entry> HostReadValues::find(const std::string& name, const std::string& op,
                                                          const std::string& question, const at::Tensor& tensor,
                                                          const std::string& source) {
  const auto given = [&](const std::string& key) -> std::optional<Entry> {
    const auto value = reads_.values.find(key);
    if (value == reads_.values.end()) return std::nullopt;
    return Entry{name, value->second, "", source};
  };
  if (auto entry = given(name)) return entry;
  if (reads_.hint) {
    if (const auto value = reads_.hint({name, op, tensor, source})) return Entry{name, *value, "", source};
  }
  if (auto entry = given(kind_of(question, tensor))) return entry;
  if (reads_.finite && (tensor.is_floating_point() || tensor.is_complex())) {
    return Entry{name, 1.0, "assumed finite", source};
  }
  return std::nullopt;
}

c10::Scalar HostReadValues::read(const std::string& op, const std::string& question, const at::Tensor& tensor,
                                 const std::string& source, const std::function<std::optional<Assumed>()>& assume) {
  const std::lock_guard lock(mutex_);
  const std::string name = question + std::to_string(count_[question]++);
  auto entry = find(name, op, question, tensor, source);
  if (!entry && assume) {
    if (const auto assumed = assume()) entry = Entry{name, assumed->value, assumed->why, source};
  }
  if (!entry) {
    --count_[question];
    const char* const kind = kind_of(question, tensor);
    const bool floating = std::string_view(kind) == "float";
    throw DataDependentError(
        op + ": the result depends on the data of a fake tensor, which has none" +
        (source.empty() ? "" : " (read at " + source + ")") + ". Provide the value with host_reads {\"" + name +
        "\": value}, {\"" + kind + "\": value} for all reads of that kind, or a function" +
        (floating ? "; assume finite values with \"finite\"" : "") +
        "; compute it from sizes or from tensors with known contents; pass it in as a number; or run this part on real "
        "tensors under an UnfakeGuard");
  }
  entry->value = as_kind(entry->value, kind_of(question, tensor), name);
  used_.push_back(*entry);
  return entry->value;
}

c10::Scalar HostReadValues::assume(const std::string& question, const c10::Scalar& value, const std::string& why,
                                   const std::string& source) {
  const std::lock_guard lock(mutex_);
  used_.push_back({question + std::to_string(count_[question]++), value, why, source});
  return value;
}

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
                         " indices for ", open, " of ", choices, " choices, each of which takes at most ", rows,
                         "; change these data_sizes"));
  }
  for (size_t i = 0; i < n; ++i) {
    if (given[i]) continue;
    routing->counts[i] = share + (more > 0 ? 1 : 0);
    if (more > 0) --more;
  }
  routing->what = c10::str(index.numel(), open == choices ? " evenly" : " as given,", " over ", choices);
  new_.push_back(routing);
  return routing;
}

void Routings::read(const Assumptions& assumptions, const std::string& source) {
  for (const auto& each : assumptions) {
    if (std::ranges::find(read_, each, &Read::routing) == read_.end()) read_.push_back({each, source});
  }
}

void note_read(const Assumptions& assumptions) {
  ModeState* const mode = thread_state.mode;
  if (assumptions.empty() || mode == nullptr || mode->observer == nullptr) return;
  mode->routings.read(assumptions, mode->observer->location());
}

at::Tensor assumed_indices(const Routing& routing, c10::IntArrayRef sizes, int64_t dim) {
  const RealCalls real;
  c10::DimVector turned(sizes);
  std::swap(turned.front(), turned[static_cast<size_t>(dim)]);
  // Sorted by choice across all rows, so that equal indices are in different rows.
  at::Tensor indices = at::empty(turned, at::kLong);
  auto* next = indices.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < routing.counts.size(); ++i) {
    next = std::fill_n(next, routing.counts[i], static_cast<int64_t>(i));
  }
  return indices.transpose(0, dim).contiguous();
}

}  // namespace shadowgraph
