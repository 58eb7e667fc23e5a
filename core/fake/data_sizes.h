// Sizes of results that depend on data, given by the user: how many elements a mask keeps, how many values are unique.
//
// Fake tensors have no data, so nonzero() and its kin throw DataDependentError unless the mode has a size for them.
// Sizes have names, given in the order of asking: "nonzero0", "nonzero1", "unique0", ... A function can be asked too, for
// those that are not given by name.
//
//     FakeTensorMode mode({.data_sizes = {{"nonzero0", 17}}});
//     at::Tensor rows = mask.nonzero();            // [17, mask.dim()]
//     at::Tensor kept = x.masked_select(mask);     // [17]: the same mask is not asked twice
//
// The same question about the same contents (storage, geometry and version) has one name and one size; after a write to
// the tensor it is another question. What is asked about a tensor whose contents are known needs no hint.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace shadowgraph {

using NamedDataSizes = std::map<std::string, int64_t>;

struct DataSizeQuestion {
  std::string name;          // "nonzero0"
  std::string op;            // "aten::nonzero"
  const at::Tensor& tensor;  // whose data decides: a fake
  int64_t most;              // what the answer can be at most
};
// Nothing: the hint does not know either, and DataDependentError is thrown.
using DataSizeHint = std::function<std::optional<int64_t>(const DataSizeQuestion&)>;

class DataSizes {
 public:
  void give(NamedDataSizes sizes) { given_.merge(sizes); }
  void give(DataSizeHint hint) { hint_ = std::move(hint); }

  // The size for `question` ("nonzero") about `tensor`. Throws DataDependentError that tells its name if none was
  // given, and Error if it is negative or more than `most`.
  int64_t size(const std::string& op, const std::string& question, const at::Tensor& tensor, int64_t most);

  // What was asked since the last call of this, by name, again or for the first time.
  struct Asked {
    std::string name;
    int64_t size = 0;
  };
  bool has_asked() const { return !asked_.empty(); }
  std::vector<Asked> take_asked() { return std::exchange(asked_, {}); }
  void forget_asked() noexcept { asked_.clear(); }

 private:
  struct Known {
    std::string question;
    const c10::StorageImpl* address = nullptr;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};  // alive: same storage
    std::vector<int64_t> geometry;
    uint32_t version = 0;
    std::string name;
  };

  std::recursive_mutex mutex_;  // a hint may ask for another size
  NamedDataSizes given_;
  DataSizeHint hint_;
  std::vector<Known> known_;  // few: programs that ask are small parts of models
  std::map<std::string, int> count_;
  std::vector<Asked> asked_;
};

}  // namespace shadowgraph
