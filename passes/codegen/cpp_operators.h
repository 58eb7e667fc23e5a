// How C++ calls an operator: which function or method of ATen stands for which overload.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shadowgraph {

struct CppOperator {
  std::string_view name;    // "aten::add.Tensor"
  char form = 'o';          // f: at::add(...), m: self.add(...), o: at::_ops::add_Tensor::call(...)
  uint32_t counts = 0;      // bit n: no other overload could be meant by the first n arguments
  std::string_view header;  // in ATen/ops, without .h; "" for the operator's own name

  std::string header_name() const;
  std::string function() const;  // "add"
  std::string record() const;    // "add_Tensor", in at::_ops
};

// nullptr: not an operator of ATen; it is called through the dispatcher.
const CppOperator* find_cpp_operator(std::string_view name);

}  // namespace shadowgraph
