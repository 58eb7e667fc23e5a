// Writes one program as a function of C++. program_source.cpp has pointers, elements and rows, column_source.cpp
// reductions of elements that lie apart. Internal to kernels/compiler.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <vector>

#include "kernels/compiler/expression_source.h"
#include "kernels/compiler/program_levels.h"

namespace shadowgraph {

class ProgramWriter {
 public:
  explicit ProgramWriter(const KernelProgram& program) : program_(program), levels_(program) {}
  std::string run();

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  // ---- Pointers and elements
  void pointers(const char* indent, const std::string& column);
  // Opens loops over reduced dimensions but the last `inner`, with pointers x0 ... there.
  void open_nest(uint32_t inner);
  void close_nest(uint32_t inner);
  void nest_pointers(const std::string& innermost);
  std::string element(uint32_t operand) const;
  // Writes the pragma in front of a loop over elements that computes `wanted`.
  void simd(const std::vector<bool>& wanted, const std::string& clauses = "");
  void write_expression(uint32_t i, const char* indent);
  void write_level(uint8_t level, uint32_t phase, const char* indent);
  void write_elements(const std::vector<bool>& wanted, uint32_t phase);
  void write_store(const KernelStore& store);
  void element_loop(const char* from, const char* to, uint32_t phase);

  // ---- Rows
  template <class Body>
  void rows(Body body);
  void one_row();
  void reduce(uint32_t phase);

  // ---- What reductions add up in
  bool is_sum(uint32_t i) const { return program_.expressions[i].operation == KernelOperation::kRowSum; }
  c10::ScalarType type_of(uint32_t i) const { return program_.expressions[i].type; }
  const char* order_type(uint32_t i) const;
  const char* lowest(uint32_t i) const;
  const char* short_type(uint32_t i) const;
  const char* long_type(uint32_t i) const;
  const char* neutral(uint32_t i) const { return is_sum(i) ? "0" : lowest(i); }
  void accumulate(uint32_t i, const std::string& into, const std::string& value);
  std::string value_for(uint32_t i) const;
  std::string result_of(uint32_t i, const std::string& accumulator) const;

  // ---- Columns
  void column_blocks();
  template <class Body>
  void each_column(Body body);
  void reduce_columns(uint32_t phase);
  void derive_columns(uint32_t phase);

  const KernelProgram& program_;
  const ProgramLevels levels_;
  char access_ = 'p';
  uint32_t ahead_ = 0;  // rows, where a loop takes several
  std::string out_;
};

}  // namespace shadowgraph
