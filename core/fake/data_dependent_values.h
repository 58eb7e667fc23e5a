// Keeps the sizes that the user gave for results that depend on data, and what was asked of them. Internal to core/;
// the options are FakeTensorOptions::data_sizes and data_size_hint (shadowgraph/capture/fake.h).
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

// What the user says of values that the program reads and data decides, and what was asked. Internal to core/; the
// options are FakeTensorOptions::host_reads (shadowgraph/capture/fake.h).

// What a guard says of a mask that is taken to hide nothing.
inline constexpr const char* kAssumedFull = "assumed full of ones";

class HostAnswers {
 public:
  void give(HostReads reads) { reads_ = std::move(reads); }
  // By name, beside the user's: what another capture was answered.
  void give(const std::string& name, const c10::Scalar& value) { reads_.values.emplace(name, value); }

  struct Answer {
    std::string name;  // "item0"
    c10::Scalar value;
    std::string why;  // "" if given; "assumed finite"
    std::string source;
  };
  // For `question` ("item", "equal") about `tensor`, whose dtype the value gets. Throws DataDependentError, which tells
  // the name and the option, if nobody has an answer, and Error if it is of another kind than the tensor. Who has no
  // answer of the user's may assume one.
  struct Assumed {
    c10::Scalar value;
    std::string why;
  };
  c10::Scalar read(const std::string& op, const std::string& question, const at::Tensor& tensor,
                   const std::string& source, const std::function<std::optional<Assumed>()>& assume = {});
  // A reason without the user: aten::equal of a tensor with itself.
  c10::Scalar assume(const std::string& question, const c10::Scalar& value, const std::string& why,
                     const std::string& source);

  // What was asked since the last call of this.
  bool has_asked() const { return !asked_.empty(); }
  std::vector<Answer> take_asked() { return std::exchange(asked_, {}); }
  void forget_asked() noexcept { asked_.clear(); }

 private:
  std::optional<Answer> find(const std::string& name, const std::string& op, const std::string& question,
                             const at::Tensor& tensor, const std::string& source);

  std::recursive_mutex mutex_;  // a hint may read another value
  HostReads reads_;
  std::map<std::string, int> count_;
  std::vector<Answer> asked_;
};

// What a mode assumes of indices that data decides and that the program counts, such as an expert for each token.
// Internal to core/.
//
// Nobody knows which expert a token goes to. Programs count how many go to each, read the counts and send so many. So
// the indices are taken to be dealt evenly, and what is counted (bincount, histc, sums of one_hot) follows. The user
// gives other counts as data sizes: "routing0[3]" is the count of choice 3 in the first such question, "routing[3]" in
// all of them. What the program reads of it is noted in the graph.

class DataSizes;
struct ModeState;

struct Routing {
  std::string name;  // "routing0"
  std::string what;  // "64 evenly over 4"
  std::vector<int64_t> counts;
};

// What known contents depend on besides what the program says. Mostly empty, seldom more than one.
using Assumptions = std::vector<std::shared_ptr<const Routing>>;
void add_assumptions(Assumptions& to, const Assumptions& more);
std::string names_of(const Assumptions& assumptions);

class Routings {
 public:
  // Returns how often each of `choices` is among `index`, of which `rows` rows have none twice. Throws Error if the
  // user's counts cannot be.
  std::shared_ptr<const Routing> of(const std::string& op, const at::Tensor& index, int64_t choices, int64_t rows,
                                    DataSizes& sizes);
  // Notes that the program has read what follows from these.
  void read(const Assumptions& assumptions, const std::string& source);

  struct Read {
    std::shared_ptr<const Routing> routing;
    std::string source;
  };
  bool has_made() const { return !made_.empty(); }
  std::vector<std::shared_ptr<const Routing>> take_made() { return std::exchange(made_, {}); }
  std::vector<Read> take_read() { return std::exchange(read_, {}); }

 private:
  std::vector<std::shared_ptr<const Routing>> made_;  // since they were last taken
  std::vector<Read> read_;
};

// Notes in the calling thread's mode that the program reads what follows from these.
void note_read(const Assumptions& assumptions);

// Returns indices with those counts, on the CPU, so that no row has one twice. Rows are along dimension `dim` of a
// tensor of these sizes.
at::Tensor dealt(const Routing& routing, c10::IntArrayRef sizes, int64_t dim);

}  // namespace shadowgraph
