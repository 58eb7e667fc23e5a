// C++ literals that reproduce a value bit for bit.
#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shadowgraph::cpp {

std::string number(int64_t value);
std::string number(double value);                  // 0.5, or std::bit_cast<double>(...) for a NaN with non-default bits
std::string quoted(std::string_view text);         // any bytes
std::string ints(std::span<const int64_t> list);   // {2, 3}
std::string dtype(c10::ScalarType dtype);          // at::kFloat
std::string layout(int64_t layout);                // at::kStrided
std::string memory_format(int64_t memory_format);  // at::MemoryFormat::Preserve

// Returns text that is safe in a // comment.
std::string comment(std::string_view given);

}  // namespace shadowgraph::cpp

// Python literals that reproduce a value bit for bit.

namespace shadowgraph::python {

std::string number(double value);
std::string quoted(std::string_view text);
std::string ints(std::span<const int64_t> list);   // [2, 3]
std::string dtype(c10::ScalarType dtype);          // torch.float32
std::string layout(int64_t layout);                // torch.strided
std::string memory_format(int64_t memory_format);  // torch.preserve_format

// Strings, numbers, booleans, null, lists, and objects as dicts.
std::string literal(const nlohmann::json& value);
// Returns text that is safe in a # comment and in a docstring.
std::string comment(std::string_view given);
bool is_keyword(std::string_view name);
// Returns object.name, or getattr(object, "name") for keywords. `name` must be an identifier.
std::string attribute(const std::string& object, std::string_view name);

}  // namespace shadowgraph::python
