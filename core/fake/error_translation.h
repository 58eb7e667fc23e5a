// Translates our errors on their way out through libtorch's dispatcher, to whoever called an operator. Internal to
// core/.
#pragma once

#include <atomic>

#include "shadowgraph/error.h"

namespace shadowgraph {

extern std::atomic<ErrorTranslator> error_translator;
extern thread_local int untranslated;

// While it lives, errors of this thread stay what they are: the library called the operator, and catches them itself.
class UntranslatedErrors {
 public:
  UntranslatedErrors() { ++untranslated; }
  ~UntranslatedErrors() { --untranslated; }
  UntranslatedErrors(const UntranslatedErrors&) = delete;
  UntranslatedErrors& operator=(const UntranslatedErrors&) = delete;
};

// Throws what the translator makes of it, if there is one (set_error_translator).
inline void translate(const Error& error) {
  if (untranslated > 0) return;
  if (const ErrorTranslator translator = error_translator.load(std::memory_order_relaxed)) translator(error);
}

}  // namespace shadowgraph
