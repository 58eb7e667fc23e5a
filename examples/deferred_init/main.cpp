// Initializes a model without memory, materializes two shards of a parameter as two ranks would, and compares them with
// eager initialization.
#include <shadowgraph/shadowgraph.h>
#include <torch/torch.h>

#include <iostream>

namespace {

struct Net : torch::nn::Module {
  Net() {
    body = register_module("body", torch::nn::Linear(512, 2048));
    head = register_module("head", torch::nn::Linear(2048, 512));
  }
  torch::nn::Linear body{nullptr}, head{nullptr};
};

std::shared_ptr<Net> make_deferred() {
  torch::manual_seed(7);
  return sg::deferred_init([] { return std::make_shared<Net>(); });  // nothing is allocated
}

}  // namespace

int main() {
  // Each rank initializes the deferred model and materializes its rows.
  const at::Tensor first = sg::materialize_shard(make_deferred()->head->weight, 0, 0, 256);
  const at::Tensor second = sg::materialize_shard(make_deferred()->head->weight, 0, 256, 256);

  // Materializes only the last layer, with the same values as in the full model.
  const auto net = make_deferred();
  sg::materialize_module(*net->head);

  torch::manual_seed(7);
  const Net eager;
  const bool same = at::equal(at::cat({first, second}), eager.head->weight) &&
                    at::equal(net->head->bias, eager.head->bias) && sg::is_deferred(net->body->weight);
  std::cout << (same ? "as built eagerly\n" : "DIFFERENT\n");

  sg::write_weights("head.pt", {{"weight", net->head->weight}, {"bias", net->head->bias}});  // readable by torch.load
  return same ? 0 : 1;
}
