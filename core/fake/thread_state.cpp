#include "core/fake/thread_state.h"

#include <ATen/autocast_mode.h>

namespace shadowgraph {

thread_local constinit ThreadState thread_state;

ThreadObjects& thread_objects() {
  thread_local ThreadObjects belongings;
  return belongings;
}

std::atomic<ErrorTranslator> error_translator{nullptr};
thread_local int untranslated = 0;

void set_error_translator(ErrorTranslator translator) { error_translator.store(translator, std::memory_order_relaxed); }

bool is_autocast_available(c10::DeviceType device) { return at::autocast::is_autocast_available(device); }
bool is_autocast_enabled(c10::DeviceType device) { return at::autocast::is_autocast_enabled(device); }

AutocastScope::AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype, bool enabled, bool cache)
    : device_(device),
      enabled_(at::autocast::is_autocast_enabled(device)),
      cache_(at::autocast::is_autocast_cache_enabled()),
      dtype_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device, enabled);
  if (dtype) at::autocast::set_autocast_dtype(device, *dtype);
  at::autocast::set_autocast_cache_enabled(cache);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_);
  at::autocast::set_autocast_dtype(device_, dtype_);
  at::autocast::set_autocast_cache_enabled(cache_);
}

}  // namespace shadowgraph
