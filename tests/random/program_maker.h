// Generates random programs: keeps registers with real tensors, a source of random choices, and the instruction table.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/random/program.h"

namespace shadowgraph::testing {

using Registers = std::vector<at::Tensor>;

struct InstructionRow;

struct RandomInstruction {
  const InstructionRow* row = nullptr;
  std::vector<int> in;        // registers
  std::vector<int64_t> ints;  //
  double number = 0;          // a multiple of 1/4, so that every dtype holds it exactly or eager refuses it
  at::ScalarType dtype = at::kFloat;
  at::Tensor constant;  // indices
  int out = -1;         // first result register; -1: none
};

struct RandomProgramBody {
  struct Input {
    at::Tensor original;   // internal; programs get copies
    int shares_with = -1;  // an earlier input whose storage this one views
  };
  std::vector<Input> inputs;
  std::vector<RandomInstruction> instructions;
  std::vector<int> outputs;  // registers
};

// Creates new real tensors, with the same contents each time.
Registers fresh_inputs(const RandomProgramBody& body);

class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t below(int64_t bound) { return bound <= 0 ? 0 : static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  double number() { return static_cast<double>(between(-12, 12)) / 4; }

 private:
  uint64_t state_;
};

class ProgramMaker {
 public:
  ProgramMaker(uint64_t seed, const RandomProgramOptions& options) : random(seed), options(options) {}
  std::shared_ptr<const RandomProgramBody> make(int size);

  RandomSource random;
  const RandomProgramOptions options;
  Registers registers;

  const at::Tensor& tensor(int index) const { return registers[static_cast<size_t>(index)]; }
  int any();
  // Returns a matching register, or -1 if a few tries find none.
  int any_where(const std::function<bool(const at::Tensor&)>& wanted);
  // Returns a register that may be written: no overlapping elements, and no input if inputs are read-only.
  int writable();
  int writable_where(const std::function<bool(const at::Tensor&)>& wanted);
  bool may_write(const at::Tensor& tensor) const;
  // Returns a register that broadcasts to `shape` and is identical to the written tensor or disjoint from it; -1 if
  // none.
  int operand_for(const at::Tensor& written);
  // Returns a register that broadcasts with `other`.
  int broadcastable_with(const at::Tensor& other);
  std::vector<int64_t> shape();
  at::ScalarType dtype();
  // Returns `count` distinct indices below `bound`.
  at::Tensor indices(int64_t bound, int64_t count);

 private:
  void add_inputs();
  at::Tensor fresh_input();
  at::Tensor view_of_input(const at::Tensor& base);
  bool try_instruction();
  void start_again();
  void choose_outputs();
  RandomProgramBody body_;
  std::vector<const c10::StorageImpl*> input_storages_;
  std::vector<const InstructionRow*> rows_;  // repeated according to their weight
};

enum class InstructionGroup : uint8_t {
  kPlain,
  kView,
  kOverlappingView,
  kWrite,
  kOut,
  kRandom,
  kRandomWrite,
  kMetadataWrite,
  kSet,
  kResize,
  kComplex
};

struct InstructionRow {
  const char* name;
  InstructionGroup group;
  int weight;
  // Chooses operands; returns false if there are none. May inspect the tensors, but must not change them.
  bool (*make)(ProgramMaker&, RandomInstruction&);
  // Returns the results, which become registers.
  std::vector<at::Tensor> (*run)(const RandomInstruction&, Registers&);
};
const std::vector<InstructionRow>& instruction_rows();

// Returns whether no two elements overlap.
bool is_one_to_one(const at::Tensor& tensor);
// Returns whether they share memory without being elementwise identical.
bool overlap_partly(const at::Tensor& a, const at::Tensor& b);

}  // namespace shadowgraph::testing
