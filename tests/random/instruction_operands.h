// Operand choice for the instructions of random programs, used by the instruction table.
#pragma once

#include "tests/random/program_maker.h"

namespace shadowgraph::testing {

using Results = std::vector<at::Tensor>;
using I = const RandomInstruction&;
using R = Registers&;

inline at::Tensor& at_(R registers, I instruction, size_t operand) {
  return registers[static_cast<size_t>(instruction.in[operand])];
}
inline int64_t number_of(I instruction, size_t index) { return instruction.ints[index]; }

// Each function chooses registers and numbers for an instruction, and returns false if nothing fits.
bool one(ProgramMaker& maker, RandomInstruction& i);
bool one_floating(ProgramMaker& maker, RandomInstruction& i);
bool two(ProgramMaker& maker, RandomInstruction& i);
bool one_and_dimension(ProgramMaker& maker, RandomInstruction& i);
bool one_and_two_dimensions(ProgramMaker& maker, RandomInstruction& i);
bool one_and_shape(ProgramMaker& maker, RandomInstruction& i);
bool written(ProgramMaker& maker, RandomInstruction& i);
bool written_floating(ProgramMaker& maker, RandomInstruction& i);
bool filled(ProgramMaker& maker, RandomInstruction& i);
bool written_and_operand(ProgramMaker& maker, RandomInstruction& i);
bool written_and_two_operands(ProgramMaker& maker, RandomInstruction& i);
bool written_and_dimension(ProgramMaker& maker, RandomInstruction& i);
bool written_and_indices(ProgramMaker& maker, RandomInstruction& i);
bool masked(ProgramMaker& maker, RandomInstruction& i);
bool overwritten(ProgramMaker& maker, RandomInstruction& i);
bool shifted(ProgramMaker& maker, RandomInstruction& i);
bool as_strided_operands(ProgramMaker& maker, RandomInstruction& i);
bool resized(ProgramMaker& maker, RandomInstruction& i);
bool set_to_tensor(ProgramMaker& maker, RandomInstruction& i);
bool probability(ProgramMaker& maker, RandomInstruction& i);
bool new_tensor(ProgramMaker& maker, RandomInstruction& i);
bool two_with_out(ProgramMaker& maker, RandomInstruction& i);
bool one_floating_with_out(ProgramMaker& maker, RandomInstruction& i);
bool concatenated(ProgramMaker& maker, RandomInstruction& i);
bool multiplied(ProgramMaker& maker, RandomInstruction& i);
bool lists_written(ProgramMaker& maker, RandomInstruction& i);
bool optimized(ProgramMaker& maker, RandomInstruction& i);
bool written_and_source_rows(ProgramMaker& maker, RandomInstruction& i);
bool written_matrix(ProgramMaker& maker, RandomInstruction& i);
bool concatenated_with_out(ProgramMaker& maker, RandomInstruction& i);
bool cumsum_with_out(ProgramMaker& maker, RandomInstruction& i);
bool maximum_with_outs(ProgramMaker& maker, RandomInstruction& i);
bool set_to_storage(ProgramMaker& maker, RandomInstruction& i);
bool set_to_whole_storage(ProgramMaker& maker, RandomInstruction& i);
bool same_width(ProgramMaker& maker, RandomInstruction& i);

// Operands of instructions.
at::Tensor stretch(I i, R r, int64_t begin);
at::Tensor out_tensor(I i, R r, size_t operand, at::ScalarType dtype);
at::IntArrayRef sizes_in(I i);
at::IntArrayRef strides_in(I i);
c10::List<std::optional<at::Tensor>> index_list(const at::Tensor& indices);

}  // namespace shadowgraph::testing
