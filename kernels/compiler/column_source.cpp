// Writes reductions of elements that lie apart: one element of the row after the other, in blocks that stay in the
// cache.
#include <algorithm>

#include "kernels/compiler/program_writer.h"

namespace shadowgraph {
namespace {

// A loop takes so many rows at a time, so that sums are loaded and stored less often.
constexpr uint32_t kWays = 4;

}  // namespace

void ProgramWriter::column_blocks() {
  const bool by_elements = program_.runs_by_elements();
  line("for (i64 block = {}; block < {}; block += 512) {{", by_elements ? "begin" : "0", by_elements ? "end" : "N");
  line("const i64 to = {}, n = block + 512 < to ? 512 : to - block;", by_elements ? "end" : "N");
  pointers("", "block");
  derive_columns(0);
  for (uint32_t phase = 0; phase < levels_.last_phase(); ++phase) {
    reduce_columns(phase);
    derive_columns(phase + 1);
  }
  each_column([this] {
    for (const KernelStore& store : levels_.row_stores()) {
      const uint32_t i = store.expression;
      line("{{");
      if (levels_.is_column(i)) line("const {} e{} = m{}[j];", cpp_type(type_of(i)), i, i);
      write_store(store);
      line("}}");
    }
  });
  element_loop("0", "n", levels_.last_phase());
  line("}}");
}

template <class Body>
void ProgramWriter::each_column(Body body) {
  line("_Pragma(\"omp simd\")\nfor (i64 j = 0; j < n; ++j) {{");
  body();
  line("}}");
}

void ProgramWriter::reduce_columns(uint32_t phase) {
  const std::vector<uint32_t> own = levels_.reductions(phase);
  const std::vector<bool> wanted = levels_.needed_by_loop(phase);
  const uint32_t ways = levels_.is_costly_loop(wanted) ? 1 : kWays;
  const auto each = [&](const auto& body) {
    each_column([&] {
      for (const uint32_t i : own) body(i);
    });
  };
  for (const uint32_t i : own)
    line("{} a{}[512]; {} b{}[512]; {} m{}[512];", long_type(i), i, short_type(i), i, cpp_type(type_of(i)), i);
  each([&](uint32_t i) { line("a{}[j] = {};", i, neutral(i)); });
  open_nest(1);
  line("for (i64 first = 0, R = sizes[{}]; first < R; first += 256) {{",
       program_.outer_rank + program_.reduced_rank - 1);
  line("const i64 past = first + 256 < R ? first + 256 : R;\ni64 r = first;");
  each([&](uint32_t i) { line("b{}[j] = {};", i, neutral(i)); });
  const auto loop = [&](uint32_t of) {
    line("for (; r + {0} <= past; r += {0}) {{", of);
    nest_pointers("r");
    simd(wanted);
    line("for (i64 j = 0; j < n; ++j) {{");
    for (const uint32_t i : own) line("{} v{} = b{}[j];", short_type(i), i, i);
    for (ahead_ = 0; ahead_ < of; ++ahead_) {
      line("{{");
      write_elements(wanted, phase);
      for (const uint32_t i : own) accumulate(i, fmt::format("v{}", i), value_for(i));
      line("}}");
    }
    ahead_ = 0;
    for (const uint32_t i : own) line("b{0}[j] = v{0};", i);
    line("}}\n}}");
  };
  if (ways > 1) loop(ways);
  loop(1);
  each([&](uint32_t i) { accumulate(i, fmt::format("a{}[j]", i), fmt::format("b{}[j]", i)); });
  line("}}");
  close_nest(1);
  each([&](uint32_t i) { line("m{}[j] = {};", i, result_of(i, fmt::format("a{}[j]", i))); });
}

// Computes what follows from reductions and from operands of the row alone.
void ProgramWriter::derive_columns(uint32_t phase) {
  for (uint32_t i = 0; i < program_.expressions.size(); ++i) {
    const KernelExpression& e = program_.expressions[i];
    if (!levels_.is_column(i) || levels_.phase(i) != phase || is_reduction(e.operation)) continue;
    line("{} m{}[512];", cpp_type(e.type), i);
    std::vector<bool> own(program_.expressions.size());
    own[i] = true;
    simd(own);
    line("for (i64 j = 0; j < n; ++j) {{");
    for (uint32_t k = 0; k < arity(e.operation); ++k) {
      const uint32_t o = e.operands[k];
      const bool twice = std::find(e.operands, e.operands + k, o) != e.operands + k;
      if (levels_.is_column(o) && !twice) line("const {} e{} = m{}[j];", cpp_type(type_of(o)), o, o);
    }
    write_expression(i, "");
    line("m{0}[j] = e{0};\n}}", i);
  }
}

}  // namespace shadowgraph
