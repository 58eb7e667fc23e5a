// What literals of C++ and of Python have in common: cpp_literals.h, python_literals.h.
#pragma once

#include <c10/util/FunctionRef.h>

#include <string>
#include <string_view>

namespace shadowgraph {

// A finite number: "0.1", "2.0", "1e+300".
std::string decimal(double value);
// In double quotes. What is no printable ASCII, and what is in `escaped`, becomes what `escape` gives for the byte.
std::string quoted(std::string_view text, std::string_view escaped,
                   c10::function_ref<std::string(unsigned char)> escape);

}  // namespace shadowgraph
