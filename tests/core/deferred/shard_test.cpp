// Materializes parts of tensors: the same elements as the whole, without allocating the whole.
#include <torch/torch.h>

#include "tests/core/deferred/check.h"
#include "tests/counting_allocator.h"

namespace shadowgraph {
namespace {

using namespace testing;

void expect_shards_of(const std::function<at::Tensor()>& make, bool without_whole, const std::string& what) {
  torch::manual_seed(31);
  const at::Tensor eager = make();
  torch::manual_seed(31);
  const at::Tensor described = deferred_init(make);
  for (int64_t dim = 0; dim < eager.dim(); ++dim) {
    const int64_t size = eager.size(dim);
    for (const auto& [start, length] : std::vector<std::pair<int64_t, int64_t>>{
             {0, size}, {0, size / 2}, {size / 2, size - size / 2}, {size - 1, 1}, {size / 3, size / 4}, {0, 0}}) {
      const at::Tensor part = materialize_shard(described, dim, start, length, {}, without_whole);
      EXPECT_TRUE(at::equal(part, eager.narrow(dim, start, length)))
          << what << ", dimension " << dim << " from " << start << " length " << length;
      EXPECT_TRUE(part.is_contiguous());
    }
  }
  EXPECT_TRUE(is_deferred(described));
}

TEST(Shard, IsTheSameElements) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto options = at::TensorOptions().dtype(dtype);
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{40, 7}, {16, 16}, {1003}, {5, 6, 11}, {700, 801}}) {
      const std::string what = c10::str(dtype, " ", c10::IntArrayRef(sizes));
      expect_shards_of([=] { return torch::rand(sizes, options); }, true, "rand " + what);
      expect_shards_of([=] { return torch::randn(sizes, options); }, true, "randn " + what);
      expect_shards_of(
          [=] {
            torch::rand({9});
            at::Tensor w = torch::empty(sizes, options);
            w.uniform_(-1, 1);
            w.normal_(0, 0.02).mul_(2).add_(1).clamp_(-1, 1.03);
            return w;
          },
          true, "a chain " + what);
      expect_shards_of([=] { return torch::rand(sizes, options).to(at::kFloat) * torch::ones(sizes); }, true,
                       "two tensors " + what);
    }
  }
  expect_shards_of([] { return torch::randint(0, 100, {30, 5}); }, true, "randint");
  expect_shards_of([] { return torch::full({30, 5}, 2.5); }, true, "full");
}

TEST(Shard, FallsBackToTheWholeOrSaysWhyNot) {
  const auto padded = [] {
    at::Tensor w = torch::randn({20, 8});
    w[3].zero_();
    return w;
  };
  expect_shards_of(padded, false, "with a row of zeros");
  const at::Tensor described = deferred_init(padded);
  const std::string message = message_of<DeferredError>([&] { materialize_shard(described, 0, 0, 2, {}, true); });
  EXPECT_NE(message.find("without the whole"), std::string::npos) << message;
  expect_shards_of([] { return torch::rand({6, 6}).t(); }, false, "transposed");
  message_of<DeferredError>([&] { materialize_shard(described, 2, 0, 1); });
  message_of<DeferredError>([&] { materialize_shard(described, 0, 19, 2); });
  message_of<DeferredError>([&] { materialize_shard(described, 0, -1, 2); });
}

TEST(Shard, NeverAllocatesTheWhole) {
  CountingAllocator& allocator = CountingAllocator::install();
  const at::Tensor described = deferred_init([] { return torch::randn({8192, 4096}); });  // 128 MiB
  const int64_t before = allocator.live;
  allocator.most = before;
  const at::Tensor rows = materialize_shard(described, 0, 1000, 512, {}, true);
  EXPECT_LE(allocator.most - before, rows.numel() * 4 + (int64_t{4} << 20));
  const int64_t between = allocator.live;
  allocator.most = between;
  const at::Tensor columns = materialize_shard(described, 1, 64, 128, {}, true);
  EXPECT_LE(allocator.most - between, columns.numel() * 4 + (int64_t{4} << 20));
  EXPECT_TRUE(at::equal(rows.narrow(1, 64, 128), columns.narrow(0, 1000, 512)));
}

// The peak is at most one temporary tensor above the materialized result, with or without conversion.
TEST(Materialize, MemoryPeaksOneTensorAboveWhatIsKept) {
  CountingAllocator& allocator = CountingAllocator::install();
  const int64_t each = 1024 * 1024 * 4;
  const auto make = [] {
    Tensors all;
    for (int i = 0; i < 12; ++i) all.push_back(torch::rand({1024, 1024}));
    for (at::Tensor& tensor : all) tensor.normal_();  // initializers run after all tensors are allocated
    return all;
  };
  const Tensors plain = deferred_init(make);
  int64_t before = allocator.live;
  allocator.most = before;
  materialize_tensors(plain);
  EXPECT_LE(allocator.most - before, 12 * each + (1 << 16));
  const Tensors half = deferred_init(make);
  before = allocator.live;
  allocator.most = before;
  materialize_tensors(half, {.dtype = at::kHalf});
  EXPECT_LE(allocator.most - before, 12 * each / 2 + each + (1 << 16));
  const Tensors dropped = deferred_init(make);
  before = allocator.live;
  allocator.most = before;
  for (const at::Tensor& tensor : dropped) {
    materialize_tensor(tensor);
    dematerialize(tensor);
  }
  EXPECT_LE(allocator.most - before, each + (1 << 16));
  EXPECT_LE(allocator.live - before, 1 << 16);
}

}  // namespace
}  // namespace shadowgraph
