#include "core/rules/families.h"

#include "core/rules/registry.h"

namespace shadowgraph::rules {

void register_all(RuleRegistry& registry) {
  register_convolution(registry);
  register_normalization(registry);
  register_elementwise(registry);
  register_indexing(registry);
  register_random(registry);
  register_reduction(registry);
  register_pooling(registry);
  register_attention(registry);
  register_recurrent(registry);
  register_recurrent_kernels(registry);
  register_loss(registry);
  register_shape(registry);
  register_fourier(registry);
  register_views(registry);
  register_plain_operands(registry);
  register_linalg(registry);
  register_grouping(registry);
  register_factories(registry);
  register_quantization(registry);
  register_direct_convolution(registry);
  register_attention_kernels(registry);
  register_kernel_dtypes(registry);
  register_data_dependent(registry);
  register_collectives(registry);
}

}  // namespace shadowgraph::rules
