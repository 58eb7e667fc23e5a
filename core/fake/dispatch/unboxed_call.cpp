#include "core/fake/dispatch/unboxed_call.h"

namespace shadowgraph {

UnboxedOperator::UnboxedOperator(const char* name, const char* overload, const std::type_info& symbolic,
                                 const std::type_info& plain)
    : op(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)), symbolic_(symbolic), plain_(plain) {}

const OperatorInfo* UnboxedOperator::find() {
  const OperatorInfo& found = OperatorInfo::of(op);
  const auto fits = [&](const std::shared_ptr<const ShapeRule>& rule) {
    if (!rule) return true;
    if (rule->sees_devices || rule->function_type == nullptr) return false;  // rules from Python are boxed
    return *rule->function_type == symbolic_ || *rule->function_type == plain_;
  };
  if (!fits(found.rule) || !fits(found.composite_rule)) return nullptr;
  info_.store(&found, std::memory_order_release);
  return &found;
}

void register_unboxed_operators(torch::Library& aten) {
  register_unboxed_views(aten);
  register_unboxed_pointwise(aten);
  register_unboxed_products(aten);
  register_unboxed_reductions(aten);
}

}  // namespace shadowgraph
