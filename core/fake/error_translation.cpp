#include "core/fake/error_translation.h"

namespace shadowgraph {

std::atomic<ErrorTranslator> error_translator{nullptr};
thread_local int untranslated = 0;

void set_error_translator(ErrorTranslator translator) { error_translator.store(translator, std::memory_order_relaxed); }

}  // namespace shadowgraph
