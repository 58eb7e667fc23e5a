// A generated training step: a chain of blocks with mm, relu, mm, dropout and add in forward, five nodes in backward.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "shadowgraph/graph/text.h"

namespace shadowgraph::bench {

inline Graph training_step(int64_t nodes) {
  const int64_t blocks = nodes / 10;
  std::string head =
      "shadowgraph 1 libtorch 2.13.0\n"
      "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
      "operator aten::relu(Tensor self) -> Tensor\n"
      "operator aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)\n"
      "operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n"
      "operator aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor\n"
      "operator aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor\n"
      "s0 = 64 cpu parameter\ns1 = 64 cpu input\n";
  std::string regions;
  std::string forward =
      "n0: %0 = sg::parameter(name=\"w\") : f32[4,4] @s0 grad\nn1: %1 = sg::input(name=\"x\") : f32[4,4] @s1\n";
  std::string backward;
  int64_t value = 2, storage = 2, node = 2;
  std::string storages;
  const auto fresh = [&](int64_t bytes) {
    storages += fmt::format("s{} = {} cpu temporary\n", storage, bytes);
    return storage++;
  };
  struct Block {
    int64_t in, hidden = 0, rectified = 0, mask = 0, first_node = 0;
    int64_t mask_storage = 0, hidden_storage = 0, rectified_storage = 0;
  };
  std::vector<Block> all;
  int64_t x = 1;
  for (int64_t i = 0; i < blocks; ++i) {
    regions += fmt::format("r{} = module \"layers.{}\" \"Block\" call 0 in r0\n", i + 1, i);
    Block b{.in = x, .first_node = node};
    const auto at = [&](const std::string& rest, const std::string& attribute = "") {
      forward += fmt::format("n{}: {} | r{} grad_mode{}\n", node++, rest, i + 1, attribute);
    };
    b.hidden = value++;
    b.hidden_storage = fresh(64);
    at(fmt::format("%{} = aten::mm(self=%{}, mat2=%0) : f32[4,4] @s{}", b.hidden, x, b.hidden_storage));
    b.rectified = value++;
    b.rectified_storage = fresh(64);
    at(fmt::format("%{} = aten::relu(self=%{}) : f32[4,4] @s{}", b.rectified, b.hidden, b.rectified_storage),
       fmt::format(" free(s{})", b.hidden_storage));
    const int64_t product = value++;
    const int64_t product_storage = fresh(64);
    at(fmt::format("%{} = aten::mm(self=%{}, mat2=%0) : f32[4,4] @s{}", product, b.rectified, product_storage));
    const int64_t dropped = value++;
    b.mask = value++;
    const int64_t dropped_storage = fresh(64);
    b.mask_storage = fresh(16);
    at(fmt::format("%{}, %{} = aten::native_dropout(input=%{}, p=0.1, train=true) : f32[4,4] @s{}, bool[4,4] @s{}",
                   dropped, b.mask, product, dropped_storage, b.mask_storage),
       fmt::format(" free(s{})", product_storage));
    const int64_t out = value++;
    at(fmt::format("%{} = aten::add.Tensor(self=%{}, other=%{}) : f32[4,4] @s{}", out, dropped, x, fresh(64)),
       fmt::format(" free(s{})", dropped_storage));
    x = out;
    all.push_back(b);
  }
  int64_t gradient = x;
  for (size_t i = all.size(); i-- > 0;) {
    const Block& b = all[i];
    const auto at = [&](const std::string& rest, int64_t of, const std::string& attribute) {
      backward += fmt::format("n{}: {} | r{} backward of n{}{}\n", node++, rest, i + 1, of, attribute);
    };
    const auto make = [&](const std::string& call, int64_t of, const std::string& attribute = "") {
      const int64_t made = value++;
      at(fmt::format("%{} = {} : f32[4,4] @s{}", made, call, fresh(64)), of, attribute);
      return made;
    };
    int64_t g =
        make(fmt::format("aten::native_dropout_backward(grad_output=%{}, mask=%{}, scale=1.1)", gradient, b.mask),
             b.first_node + 3, fmt::format(" free(s{})", b.mask_storage));
    make(fmt::format("aten::mm(self=%{}, mat2=%{})", b.rectified, g), b.first_node + 2);
    g = make(fmt::format("aten::threshold_backward(grad_output=%{}, self=%{}, threshold=0)", g, b.rectified),
             b.first_node + 1, fmt::format(" free(s{})", b.rectified_storage));
    make(fmt::format("aten::mm(self=%{}, mat2=%{})", b.in, g), b.first_node);
    gradient = make(fmt::format("aten::add.Tensor(self=%{}, other=%{})", g, gradient), b.first_node + 4);
  }
  return parse(head + storages + regions + forward + backward + fmt::format("sg::output(values=[%{}])\n", gradient));
}

}  // namespace shadowgraph::bench
