#include "core/fake/data_sizes.h"

#include <algorithm>

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
  Known known;
  known.question = question;
  known.address = storage;
  known.storage = tensor.storage().getWeakStorageImpl();
  known.geometry = std::move(geometry);
  known.version = version;
  known.name = question + std::to_string(count_[question]++);
  known_.push_back(std::move(known));
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
                ", is none that it can have: 0 to " + std::to_string(most));
  }
  asked_.push_back({given->first, given->second, ""});
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
    if (const auto answer = hint_({name, op, tensor, most})) given = given_.emplace(name, *answer).first;
  }
  const bool is_mask = tensor.scalar_type() == c10::kBool && (question == "nonzero" || question == "masked_select");
  if (given == given_.end() && masks_full_ && is_mask) given = given_.emplace(name, most).first;
  if (given == given_.end() && assume) {
    if (const auto assumed = assume()) {
      asked_.push_back({name, assumed->size, assumed->why});
      return assumed->size;
    }
  }
  if (given == given_.end()) {
    throw DataDependentError(
        op +
        ": the result depends on the data of a fake tensor, which has none. Ways out: give its size as a hint, "
        "the option data_sizes {\"" +
        name + "\": n}, {\"" + question +
        "\": n} for all such (or as many as there can be), a function (data_size_hint in C++)" +
        (is_mask ? ", or assume that masks keep everything, host_reads \"mask full\"" : "") +
        "; pass it in as a number; or run this part on real tensors under an UnfakeGuard");
  }
  if (given->second < 0 || given->second > most) {
    throw Error(op + ": the size given as '" + name + "', " + std::to_string(given->second) +
                ", is none that it can have: 0 to " + std::to_string(most));
  }
  asked_.push_back({name, given->second, ""});
  return given->second;
}

}  // namespace shadowgraph
