#include "kernels/compiler/loop_order.h"

#include <algorithm>
#include <functional>

namespace shadowgraph {
namespace {

using Dims = std::vector<int64_t>;

// Says whether an operand does not vary along what is reduced.
bool is_of_row(const IterationSpace& space, const Dims& strides) {
  for (size_t d = 0; d < strides.size(); ++d) {
    if (space.is_reduced[d] && space.sizes[d] != 1 && strides[d] != 0) return false;
  }
  return space.reduces;
}

// Merges neighbours along which all operands step as along one dimension.
void merge(std::vector<uint32_t>& dims, IterationSpace& space) {
  std::vector<uint32_t> out;
  for (const uint32_t d : dims) {
    const auto steps_on = [&](const Dims& strides) { return strides[out.back()] == strides[d] * space.sizes[d]; };
    if (out.empty() || !std::ranges::all_of(space.strides, steps_on)) {
      out.push_back(d);
      continue;
    }
    space.sizes[out.back()] *= space.sizes[d];
    for (Dims& strides : space.strides) strides[out.back()] = strides[d];
  }
  dims = std::move(out);
}

// Says whether some operand that is read or written whole lies dense along the last of these dimensions.
bool is_dense(const std::vector<uint32_t>& dims, const IterationSpace& space) {
  for (size_t k = 0; k < space.strides.size(); ++k) {
    if (!dims.empty() && space.strides[k][dims.back()] == 1 && space.is_whole[k]) return true;
  }
  return false;
}

}  // namespace

void arrange_loops(IterationSpace space, KernelPlan& plan) {
  KernelProgram& program = plan.program;
  for (size_t k = 0; k < space.strides.size(); ++k) program.operands[k].of_row = is_of_row(space, space.strides[k]);
  const size_t rank = space.sizes.size();
  std::vector<uint32_t> dims;  // of more than one element
  std::vector<uint32_t> reduced;
  for (uint32_t d = 0; d < rank; ++d) {
    if (space.sizes[d] != 1) (space.is_reduced[d] ? reduced : dims).push_back(d);
  }
  if (!space.reduces) {
    // The dimension along which results are dense is the row.
    const Dims& lead = space.strides[program.stores[0].operand];
    std::ranges::stable_sort(dims, std::greater(), [&](uint32_t d) { return lead[d]; });
  }
  merge(dims, space);
  merge(reduced, space);
  // The row is reduced if what is read lies along it, or if nothing else is left.
  program.columns = !reduced.empty() && !dims.empty() && !is_dense(reduced, space) && is_dense(dims, space);
  std::vector<uint32_t> row;
  auto& of_rows = space.reduces && !program.columns ? reduced : dims;
  if (!of_rows.empty()) {
    row = {of_rows.back()};
    of_rows.pop_back();
  }
  const bool counts = uses(program.expressions, KernelOperation::kColumn);
  if (counts && (program.columns || row.empty() || row[0] + 1 != rank)) {
    throw KernelError("columns that are not the row's");
  }
  program.outer_rank = static_cast<uint32_t>(dims.size());
  program.reduced_rank = static_cast<uint32_t>(reduced.size());
  dims.insert(dims.end(), reduced.begin(), reduced.end());
  for (const uint32_t d : dims) plan.sizes.push_back(space.sizes[d]);
  plan.sizes.push_back(row.empty() ? 1 : space.sizes[row[0]]);
  for (size_t k = 0; k < space.strides.size(); ++k) {
    for (const uint32_t d : dims) plan.strides.push_back(space.strides[k][d]);
    const int64_t single = space.reduces ? 0 : 1;  // the row is one element
    const int64_t along = row.empty() ? single : space.strides[k][row[0]];
    plan.strides.push_back(along);
    program.operands[k].layout = along == 0   ? KernelLayout::kBroadcast
                                 : along == 1 ? KernelLayout::kContiguous
                                              : KernelLayout::kStrided;
  }
  int64_t rows = 1;
  for (uint32_t d = 0; d < program.outer_rank; ++d) rows *= plan.sizes[d];
  int64_t work = 1;  // of an element of the row
  for (uint32_t d = program.outer_rank; d < dims.size(); ++d) work *= plan.sizes[d];
  const bool by_elements = program.runs_by_elements();
  plan.range = by_elements ? plan.sizes.back() : rows;
  plan.row_work = by_elements ? work : work * std::max<int64_t>(plan.sizes.back(), 1);
  if (plan.sizes.back() == 0) plan.range = 0;
}

}  // namespace shadowgraph
