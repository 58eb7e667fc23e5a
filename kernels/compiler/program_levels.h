// Decides what of a program is computed where: the level of each expression, and the loop over elements that it belongs
// to. Internal to kernels/compiler.
#pragma once

#include <vector>

#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

// A program with reductions runs several loops over the same elements, one a phase. Reductions of phase 0 read
// elements, those of phase 1 read what follows from them, and so on. The last loop computes what is left to store.
class ProgramLevels {
 public:
  static constexpr uint8_t kKernel = 0;   // constant in the kernel
  static constexpr uint8_t kRow = 1;      // one for what is reduced: a row, or with `columns` each element of the row
  static constexpr uint8_t kElement = 2;  // one an element

  explicit ProgramLevels(const KernelProgram& program);

  uint8_t level(uint32_t expression) const { return places_[expression].level; }
  // Returns the number of reductions, one after the other, that come before it.
  uint32_t phase(uint32_t expression) const { return places_[expression].phase; }
  uint32_t last_phase() const { return last_phase_; }
  // With columns, a value of the row is an array.
  bool is_column(uint32_t i) const { return program_.columns && places_[i].level == kRow; }

  // Returns the reductions that the loop of a phase computes.
  std::vector<uint32_t> reductions(uint32_t phase) const;
  std::vector<KernelStore> element_stores(uint32_t phase) const;
  std::vector<KernelStore> row_stores() const;
  // Says for each expression whether the loop must have it, computed or loaded.
  std::vector<bool> needed_by_loop(uint32_t phase) const;
  bool is_costly_loop(const std::vector<bool>& wanted) const;

  // Returns the expressions whose values a loop keeps in a row of memory for later ones.
  std::vector<uint32_t> kept() const;
  bool is_kept_by(uint32_t i, uint32_t phase) const { return kept_[i] == phase + 1; }
  bool is_loaded(uint32_t i, uint32_t phase) const { return kept_[i] != 0 && kept_[i] <= phase; }

 private:
  struct Place {
    uint8_t level = kKernel;
    uint32_t phase = 0;
  };
  void place(uint32_t i);
  uint8_t level_of_load(uint32_t operand) const;
  uint32_t loop_of(const KernelStore& store) const;
  bool is_of_row(const KernelStore& store) const { return has_reductions_ && program_.operands[store.operand].of_row; }
  std::vector<bool> with_operands(std::vector<bool> wanted, uint32_t phase) const;
  std::vector<uint32_t> costs() const;
  void choose_kept();

  const KernelProgram& program_;
  const bool has_reductions_;
  std::vector<Place> places_;
  std::vector<bool> is_read_;   // operands
  std::vector<uint32_t> kept_;  // 1 + the loop that keeps it, 0: none
  uint32_t last_phase_ = 0;
};

}  // namespace shadowgraph
