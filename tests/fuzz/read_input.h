// Shared by fuzz targets with JSON input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>

#include "shadowgraph/error.h"
#include "support/json.h"

namespace shadowgraph {

// Calls read(json) if the input is JSON. Invalid inputs must throw Error; anything else is a finding.
template <class Read>
int read_json_input(const uint8_t* data, size_t size, const Read& read) {
  try {
    read(parse_json({reinterpret_cast<const char*>(data), size}, "input"));
  } catch (const Error&) {}
  return 0;
}

}  // namespace shadowgraph
