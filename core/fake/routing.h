// What a mode assumes of indices that data decides and that the program counts, such as an expert for each token.
// Internal to core/.
//
// Nobody knows which expert a token goes to. Programs count how many go to each, read the counts and send so many. So
// the indices are taken to be dealt evenly, and what is counted (bincount, histc, sums of one_hot) follows. The user
// gives other counts as data sizes: "routing0[3]" is the count of choice 3 in the first such question, "routing[3]" in
// all of them. What the program reads of it is noted in the graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace shadowgraph {

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
