// Unpacks files of gzip.
#pragma once

#include <string>
#include <string_view>

namespace shadowgraph {

bool is_packed(std::string_view bytes);  // begins as gzip's files do
// Throws ParseError for what is damaged, cut short, or larger than 4 GiB when unpacked.
std::string unpacked(std::string_view bytes, const std::string& name);

}  // namespace shadowgraph
