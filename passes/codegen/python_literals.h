// Literals of Python that give the same value, bit for bit.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shadowgraph::python {

std::string number(double value);
std::string quoted(std::string_view text);
std::string ints(std::span<const int64_t> list);   // [2, 3]
std::string dtype(c10::ScalarType dtype);          // torch.float32
std::string layout(int64_t layout);                // torch.strided
std::string memory_format(int64_t memory_format);  // torch.preserve_format

}  // namespace shadowgraph::python
