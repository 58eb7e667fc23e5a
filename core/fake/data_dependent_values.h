// Sizes of data-dependent results provided by the user, and the uses made of them. Internal to core/; the options are
// FakeTensorOptions::data_sizes and data_size_hint (shadowgraph/capture/fake.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/capture/fake.h"

namespace shadowgraph {

class DataSizes {
 public:
  void add(NamedDataSizes sizes) { given_.merge(sizes); }
  void add(DataSizeHint hint) { hint_ = std::move(hint); }
  // Sets whether boolean masks are assumed to keep every element.
  void assume_masks_full(bool full) { masks_full_ = full; }

  // Returns the size of a result of `question` ("nonzero") on `tensor`. Throws DataDependentError with the name to
  // provide if there is neither a provided nor an assumed size, and Error if it is negative or more than `most`.
  struct Assumed {
    int64_t size = 0;
    std::string why;
  };
  int64_t size(const std::string& op, const std::string& question, const at::Tensor& tensor, int64_t most,
               const std::function<std::optional<Assumed>()>& assume = {});
  // Returns the name of a question on `tensor`, the same for the same contents (by_geometry: and the same view of
  // them).
  std::string name_of(const std::string& question, const at::Tensor& tensor, bool by_geometry);
  // Returns the provided size of one element of a question, "routing0[3]" or "routing[3]", the latter limited to
  // `most`.
  std::optional<int64_t> element(const std::string& name, const std::string& question, int64_t index, int64_t most);

  // Sizes used since the last take_used(), by name.
  struct Used {
    std::string name;
    int64_t size = 0;
    std::string why;  // empty if provided by the user
  };
  bool has_used() const { return !used_.empty(); }
  std::vector<Used> take_used() { return std::exchange(used_, {}); }
  void clear_used() noexcept { used_.clear(); }

 private:
  struct Known {
    std::string question;
    const c10::StorageImpl* address = nullptr;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};  // alive: same address
    std::vector<int64_t> geometry;
    uint32_t version = 0;
    std::string name;
  };

  std::recursive_mutex mutex_;  // a hint may request another size
  NamedDataSizes given_;
  DataSizeHint hint_;
  bool masks_full_ = false;
  std::vector<Known> known_;  // few entries: data-dependent operators are rare in models
  std::map<std::string, int> count_;
  std::vector<Used> used_;
};

// Values of host reads (item(), equal()) provided by the user, and the reads made. The options are FakeTensorOptions::host_reads
// (shadowgraph/capture/fake.h).

// Guard text for a mask that is assumed to keep every element.
inline constexpr const char* kAssumedFull = "assumed full of ones";

class HostReadValues {
 public:
  void add(HostReads reads) { reads_ = std::move(reads); }
  // Adds a named value recorded by another capture; values provided by the user take precedence.
  void add(const std::string& name, const c10::Scalar& value) { reads_.values.emplace(name, value); }

  struct Entry {
    std::string name;  // "item0"
    c10::Scalar value;
    std::string why;  // empty if provided by the user; or "assumed finite"
    std::string source;
  };
  // Returns the value of a read of `tensor` ("item", "equal"), converted to its dtype. Throws DataDependentError with
  // the name and the option if there is neither a provided nor an assumed value, and Error if the value has another
  // kind than the tensor.
  struct Assumed {
    c10::Scalar value;
    std::string why;
  };
  c10::Scalar read(const std::string& op, const std::string& question, const at::Tensor& tensor,
                   const std::string& source, const std::function<std::optional<Assumed>()>& assume = {});
  // Records a value that is assumed without the user: aten::equal of a tensor with itself.
  c10::Scalar assume(const std::string& question, const c10::Scalar& value, const std::string& why,
                     const std::string& source);

  // Reads since the last take_used().
  bool has_used() const { return !used_.empty(); }
  std::vector<Entry> take_used() { return std::exchange(used_, {}); }
  void clear_used() noexcept { used_.clear(); }

 private:
  std::optional<Entry> find(const std::string& name, const std::string& op, const std::string& question,
                            const at::Tensor& tensor, const std::string& source);

  std::recursive_mutex mutex_;  // a hint may read another value
  HostReads reads_;
  std::map<std::string, int> count_;
  std::vector<Entry> used_;
};

// Assumptions about data-dependent routing indices, such as the expert chosen for each token. Internal to core/.
//
// Programs count the tokens of each expert, read the counts and transfer that many rows. So indices are assumed to be
// balanced, and counts (bincount, histc, sums of one_hot) derive from that. The user can provide other counts as data
// sizes: "routing0[3]" is the count of choice 3 in the first routing, "routing[3]" in all of them. Values that the
// program reads become guards in the graph.

struct Routing {
  std::string name;  // "routing0"
  std::string what;  // "64 evenly over 4"
  std::vector<int64_t> counts;
};

// The assumptions that known contents derive from. Mostly empty, rarely more than one.
using Assumptions = std::vector<std::shared_ptr<const Routing>>;
void add_assumptions(Assumptions& to, const Assumptions& more);
std::string names_of(const Assumptions& assumptions);

class Routings {
 public:
  // Returns the counts of `choices` in `index`, which has `rows` rows without duplicates. Throws Error if the counts
  // provided by the user are impossible.
  std::shared_ptr<const Routing> of(const std::string& op, const at::Tensor& index, int64_t choices, int64_t rows,
                                    DataSizes& sizes);
  // Records that the program has read contents derived from `assumptions`.
  void read(const Assumptions& assumptions, const std::string& source);

  struct Read {
    std::shared_ptr<const Routing> routing;
    std::string source;
  };
  bool has_new() const { return !new_.empty(); }
  std::vector<std::shared_ptr<const Routing>> take_new() { return std::exchange(new_, {}); }
  std::vector<Read> take_read() { return std::exchange(read_, {}); }

 private:
  std::vector<std::shared_ptr<const Routing>> new_;  // since the last take_new()
  std::vector<Read> read_;
};

// Records in this thread's mode that the program reads contents derived from `assumptions`.
void note_read(const Assumptions& assumptions);

// Returns indices with the assumed counts, on the CPU, without duplicates in a row. Rows are along dimension `dim` of a
// tensor of `sizes`.
at::Tensor assumed_indices(const Routing& routing, c10::IntArrayRef sizes, int64_t dim);

}  // namespace shadowgraph
