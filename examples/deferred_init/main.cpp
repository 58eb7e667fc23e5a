// Describes a model, makes two parts of it as two processes of a group would, and checks them against the whole.
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

std::shared_ptr<Net> describe() {
  torch::manual_seed(7);
  return sg::deferred_init([] { return std::make_shared<Net>(); });  // nothing is allocated
}

}  // namespace

int main() {
  // Each process describes the whole and makes its rows of it.
  const at::Tensor first = sg::materialize_shard(describe()->head->weight, 0, 0, 256);
  const at::Tensor second = sg::materialize_shard(describe()->head->weight, 0, 256, 256);

  // The last layer alone, with the numbers that it has in the whole network.
  const auto net = describe();
  sg::materialize_module(*net->head);

  torch::manual_seed(7);
  const Net eager;
  const bool same = at::equal(at::cat({first, second}), eager.head->weight) &&
                    at::equal(net->head->bias, eager.head->bias) && sg::is_deferred(net->body->weight);
  std::cout << (same ? "as built eagerly\n" : "DIFFERENT\n");

  sg::write_weights("head.pt", {{"weight", net->head->weight}, {"bias", net->head->bias}});  // torch.load reads it
  return same ? 0 : 1;
}
