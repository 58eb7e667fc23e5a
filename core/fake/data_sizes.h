// Keeps the sizes that the user gave for results that depend on data, and what was asked of them. Internal to core/;
// the options are FakeTensorOptions::data_sizes and data_size_hint (shadowgraph/fake.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/fake.h"

namespace shadowgraph {

class DataSizes {
 public:
  void give(NamedDataSizes sizes) { given_.merge(sizes); }
  void give(DataSizeHint hint) { hint_ = std::move(hint); }
  // Says whether a mask of bools keeps everything.
  void assume_masks_full(bool full) { masks_full_ = full; }

  // Returns the size for `question` ("nonzero") about `tensor`. Throws DataDependentError that tells its name if none
  // was given or is assumed, and Error if it is negative or more than `most`.
  struct Assumed {
    int64_t size = 0;
    std::string why;
  };
  int64_t size(const std::string& op, const std::string& question, const at::Tensor& tensor, int64_t most,
               const std::function<std::optional<Assumed>()>& assume = {});
  // Returns the name of a question about `tensor`: the same for the same contents, or for any view of them.
  std::string name_of(const std::string& question, const at::Tensor& tensor, bool by_geometry);
  // Returns what was given for one element of such a question, "routing0[3]" or, as far as there can be so many,
  // "routing[3]".
  std::optional<int64_t> element(const std::string& name, const std::string& question, int64_t index, int64_t most);

  // What was asked since the last call of this, by name, again or for the first time.
  struct Asked {
    std::string name;
    int64_t size = 0;
    std::string why;  // "" if given
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
  bool masks_full_ = false;
  std::vector<Known> known_;  // few: programs that ask are small parts of models
  std::map<std::string, int> count_;
  std::vector<Asked> asked_;
};

}  // namespace shadowgraph
