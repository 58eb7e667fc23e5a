#include "kernels/compiler/program_levels.h"

#include <algorithm>

#include "kernels/compiler/expression_source.h"

namespace shadowgraph {

using Operation = KernelOperation;

ProgramLevels::ProgramLevels(const KernelProgram& program)
    : program_(program),
      has_reductions_(program.has_reductions()),
      places_(program.expressions.size()),
      is_read_(program.operands.size()),
      kept_(program.expressions.size()) {
  for (uint32_t i = 0; i < places_.size(); ++i) place(i);
  if (!program_.columns && program_.reduced_rank == 0) choose_kept();
}

void ProgramLevels::place(uint32_t i) {
  const KernelExpression& e = program_.expressions[i];
  Place& own = places_[i];
  for (uint32_t k = 0; k < arity(e.operation); ++k) {
    const Place& operand = places_[e.operands[k]];
    own.level = std::max(own.level, operand.level);
    own.phase = std::max(own.phase, operand.phase);
  }
  if (e.operation == Operation::kColumn) own.level = kElement;
  if (e.operation == Operation::kLoad || e.operation == Operation::kGather) {
    own.level = std::max(own.level, level_of_load(e.index));
    is_read_[e.index] = true;
  } else if (is_reduction(e.operation)) {
    own.level = kRow;
    ++own.phase;
  }
  last_phase_ = std::max(last_phase_, own.phase);
}

uint8_t ProgramLevels::level_of_load(uint32_t operand) const {
  const KernelOperand& from = program_.operands[operand];
  return (has_reductions_ ? from.of_row : from.layout == KernelLayout::kBroadcast) ? kRow : kElement;
}

std::vector<uint32_t> ProgramLevels::reductions(uint32_t phase) const {
  std::vector<uint32_t> own;
  for (uint32_t i = 0; i < places_.size(); ++i) {
    if (is_reduction(program_.expressions[i].operation) && places_[i].phase == phase + 1) own.push_back(i);
  }
  return own;
}

// What no loop reads from memory may be stored as soon as it is known, which saves computing it again.
uint32_t ProgramLevels::loop_of(const KernelStore& store) const {
  return is_read_[store.operand] ? last_phase_ : places_[store.expression].phase;
}

std::vector<KernelStore> ProgramLevels::element_stores(uint32_t phase) const {
  std::vector<KernelStore> own;
  for (const KernelStore& store : program_.stores) {
    if (!is_of_row(store) && loop_of(store) == phase) own.push_back(store);
  }
  return own;
}

std::vector<KernelStore> ProgramLevels::row_stores() const {
  std::vector<KernelStore> own;
  for (const KernelStore& store : program_.stores) {
    if (!is_of_row(store)) continue;
    TORCH_INTERNAL_ASSERT(places_[store.expression].level != kElement, "a row's store of what differs along it");
    own.push_back(store);
  }
  return own;
}

std::vector<bool> ProgramLevels::needed_by_loop(uint32_t phase) const {
  std::vector<bool> wanted(places_.size());
  for (const KernelStore& store : element_stores(phase)) wanted[store.expression] = true;
  for (const uint32_t i : reductions(phase)) wanted[program_.expressions[i].operands[0]] = true;
  return with_operands(std::move(wanted), phase);
}

std::vector<bool> ProgramLevels::with_operands(std::vector<bool> wanted, uint32_t phase) const {
  for (auto i = static_cast<uint32_t>(places_.size()); i-- > 0;) {
    const KernelExpression& e = program_.expressions[i];
    if (!wanted[i] || is_reduction(e.operation) || is_column(i) || is_loaded(i, phase)) continue;
    for (uint32_t k = 0; k < arity(e.operation); ++k) wanted[e.operands[k]] = true;
  }
  return wanted;
}

bool ProgramLevels::is_costly_loop(const std::vector<bool>& wanted) const {
  for (uint32_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] && places_[i].level == kElement && is_costly(program_.expressions[i].operation)) return true;
  }
  return false;
}

// Counts the operations an element that each expression stands for; a costly one counts as several.
std::vector<uint32_t> ProgramLevels::costs() const {
  constexpr uint32_t kCostly = 8;
  constexpr uint32_t kMost = 1000;  // a shared expression counts for each that uses it
  std::vector<uint32_t> costs(places_.size());
  for (uint32_t i = 0; i < places_.size(); ++i) {
    const KernelExpression& e = program_.expressions[i];
    if (places_[i].level != kElement) continue;
    costs[i] = is_costly(e.operation) ? kCostly : 1;
    for (uint32_t k = 0; k < arity(e.operation); ++k) costs[i] += costs[e.operands[k]];
    costs[i] = std::min(costs[i], kMost);
  }
  return costs;
}

// Chooses what the loops keep for later ones, such as the exponentials of a softmax. An expression qualifies if it
// costs more than keeping it and the loops of several phases want it; the last such ones are kept.
void ProgramLevels::choose_kept() {
  constexpr uint32_t kWorthKeeping = 6;
  const std::vector<uint32_t> cost = costs();
  const auto loops_of = [this](uint32_t i) {
    std::vector<uint32_t> loops;
    for (uint32_t phase = 0; phase <= last_phase_; ++phase) {
      if (needed_by_loop(phase)[i]) loops.push_back(phase);
    }
    return loops;
  };
  for (auto i = static_cast<uint32_t>(places_.size()); last_phase_ > 0 && i-- > 0;) {
    if (places_[i].level != kElement || cost[i] < kWorthKeeping) continue;
    const auto loops = loops_of(i);
    if (loops.size() > 1) kept_[i] = loops[0] + 1;
  }
}

std::vector<uint32_t> ProgramLevels::kept() const {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < kept_.size(); ++i) {
    if (kept_[i] != 0) out.push_back(i);
  }
  return out;
}

}  // namespace shadowgraph
