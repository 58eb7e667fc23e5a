// The built-in rules, one registration function per operator family and file.
#pragma once

namespace shadowgraph {
class RuleRegistry;
}

namespace shadowgraph::rules {

void register_convolution(RuleRegistry& registry);
void register_normalization(RuleRegistry& registry);
void register_elementwise(RuleRegistry& registry);
void register_indexing(RuleRegistry& registry);
void register_random(RuleRegistry& registry);
void register_reduction(RuleRegistry& registry);
void register_pooling(RuleRegistry& registry);
void register_attention(RuleRegistry& registry);
void register_recurrent(RuleRegistry& registry);
void register_recurrent_kernels(RuleRegistry& registry);
void register_loss(RuleRegistry& registry);
void register_shape(RuleRegistry& registry);
void register_fourier(RuleRegistry& registry);
void register_views(RuleRegistry& registry);
void register_plain_operands(RuleRegistry& registry);
void register_linalg(RuleRegistry& registry);
void register_grouping(RuleRegistry& registry);
void register_factories(RuleRegistry& registry);
void register_quantization(RuleRegistry& registry);
void register_direct_convolution(RuleRegistry& registry);
void register_attention_kernels(RuleRegistry& registry);
void register_kernel_dtypes(RuleRegistry& registry);
void register_data_dependent(RuleRegistry& registry);
void register_collectives(RuleRegistry& registry);

// All of the above.
void register_all(RuleRegistry& registry);

}  // namespace shadowgraph::rules
