// Sizes of results that depend on data, given by the user: how many elements a mask keeps, how many values are unique.
//
// Fake tensors have no data, so nonzero() and its kin throw DataDependentError unless the mode has a size for them.
// Sizes have names, given in the order of asking: "nonzero0", "nonzero1", "unique0", ...
//
//     FakeTensorMode mode({.data_sizes = {{"nonzero0", 17}}});
//     at::Tensor rows = mask.nonzero();            // [17, mask.dim()]
//     at::Tensor kept = x.masked_select(mask);     // [17]: the same mask is not asked twice
//
// The same question about the same contents (storage, geometry and version) has one name and one size; after a write to
// the tensor it is another question.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <map>
#include <string>
#include <vector>

namespace shadowgraph {

using NamedDataSizes = std::map<std::string, int64_t>;

class DataSizes {
 public:
  void give(NamedDataSizes sizes) { given_.merge(sizes); }

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

  NamedDataSizes given_;
  std::vector<Known> known_;  // few: programs that ask are small parts of models
  std::map<std::string, int> count_;
  std::vector<Asked> asked_;
};

}  // namespace shadowgraph
