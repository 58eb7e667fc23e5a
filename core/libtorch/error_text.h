// Messages of errors that libtorch may have thrown.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace shadowgraph {

// Returns the message without libtorch's backtrace.
inline std::string message_of(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

}  // namespace shadowgraph
