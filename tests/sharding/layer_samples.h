// Samples for sharding rules: operators called by layers, losses and optimizers.
#pragma once

namespace shadowgraph::samples_of_rules {

void norms();
void convolutions();
void planes();
void losses();
void attention();
void gpu_forms();
void packed_attention();
void grouped_products();
void indices();
void factories();
void lists();

}  // namespace shadowgraph::samples_of_rules
