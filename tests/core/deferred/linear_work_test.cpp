// Programs that write and read a tensor thousands of times: work must stay linear, whichever tensors are read and when.
// Work is counted in nodes run, which does not depend on machine load.
#include <torch/torch.h>

#include <random>

#include "core/deferred/record.h"
#include "tests/core/deferred/check.h"

namespace shadowgraph {
namespace {

using namespace testing;

uint64_t nodes_run(const at::Tensor& described) { return DeferredRecord::of(*as_fake(described))->nodes_run(); }

TEST(LinearWork, ValuesReadInALoop) {
  for (const int count : {1000, 4000}) {
    uint64_t work = 0;
    const at::Tensor total = deferred_init([&] {
      at::Tensor x = torch::zeros({4});
      const at::Tensor one = torch::ones({4});
      float last = 0;
      for (int i = 0; i < count; ++i) {
        x.add_(one);
        x[i % 4].add_(0.5);
        last = x.max().item<float>();
      }
      EXPECT_EQ(last, static_cast<float>(count) + 0.5F * static_cast<float>((count + 3) / 4));
      work = nodes_run(x);
      return x;
    });
    // Two writes, the view, max, their operands, and the first reads, which replay from the beginning.
    EXPECT_LT(work, 10U * static_cast<uint64_t>(count) + 1000) << count;
    materialize_tensor(total);
    EXPECT_EQ(total[1].item<float>(), static_cast<float>(count) + 0.5F * static_cast<float>((count + 2) / 4));
  }
}

// Clones of a tensor between writes to it.
Tensors clones_between_writes(int count) {
  Tensors all;
  at::Tensor x = torch::zeros({2, 3});
  for (int i = 0; i < count; ++i) {
    x.add_(1);
    if (i == count / 2) x.t_();
    x.as_strided({6}, {1}, 0).slice(0, i % 5).mul_(1.0625).sub_(0.5);
    if (i % 100 == 99) x.select(0, 0).normal_();
    all.push_back(x.clone());
  }
  all.push_back(x);
  return all;
}

TEST(LinearWork, ClonesInOneCall) {
  for (const int count : {1000, 4000}) {
    const Tensors clones = deferred_init([&] { return clones_between_writes(count); });
    const auto record = DeferredRecord::of(*as_fake(clones[0]));
    materialize_tensors(clones);
    EXPECT_LT(record->nodes_run(), 7U * static_cast<uint64_t>(count)) << count;
  }
}

TEST(LinearWork, ClonesOneByOneInAnyOrder) {
  for (const int count : {500, 2000}) {
    at::manual_seed(8);
    const Tensors eager = clones_between_writes(count);
    for (const std::string order : {"forwards", "backwards", "shuffled"}) {
      at::manual_seed(8);
      const Tensors clones = deferred_init([&] { return clones_between_writes(count); });
      const auto record = DeferredRecord::of(*as_fake(clones[0]));
      std::vector<size_t> places(clones.size());
      std::iota(places.begin(), places.end(), 0U);
      std::mt19937 shuffle(5);
      if (order == "backwards") std::reverse(places.begin(), places.end());
      if (order == "shuffled") std::shuffle(places.begin(), places.end(), shuffle);
      for (const size_t i : places) {
        materialize_tensor(clones[i]);
        ASSERT_TRUE(same_bits(clones[i], eager[i])) << order << " " << i;
      }
      // A snapshot is taken every 64 writes; a clone takes three writes, of six nodes each.
      const uint64_t each = order == "forwards" ? 20 : 150;
      EXPECT_LT(record->nodes_run(), each * static_cast<uint64_t>(count) + 1000) << order << " " << count;
    }
  }
}

// Reads a snapshot in every way: as other dtypes and shapes, and through tensors whose geometry changed in place.
// Storages have grown, and one operator writes several of them.
TEST(LinearWork, WhatBeginsAtASnapshotIsAsInEager) {
  const auto make = [] {
    at::Tensor x = torch::zeros({3, 4});
    at::Tensor other = x.detach();
    at::Tensor y = torch::zeros({5});
    at::Tensor early = x.select(0, 1);
    at::Tensor left = y.detach();  // set_ is the 64th write to the storage of y, and detaches y from it
    const at::Tensor before = x.clone();
    double sum = 0;
    for (int i = 0; i < 90; ++i) {
      x.add_(i % 3);
      at::_foreach_add_({x, y}, 0.5);
      if (i == 40) other.resize_({6, 4}).view({-1}).slice(0, 12).fill_(3);
      if (i == 50) x.unsqueeze_(0);
      if (i == 62) y.set_(torch::ones({5}));
      if (i % 10 == 9) sum += x.sum().item<double>() + y.sum().item<double>();
    }
    at::Tensor bits = x.view(at::kInt).select(1, 2);
    return Tensors{before, early.clone(), bits, other, y, torch::full({1}, sum), x, left, left.clone()};
  };
  expect_as_eager_in_some_orders(make);
}

// Snapshots do not resolve lazy negative and conjugate bits.
TEST(LinearWork, LazyBitsAreKept) {
  expect_as_eager_in_some_orders([] {
    at::Tensor x = torch::zeros({4}, at::kComplexFloat);
    at::Tensor conjugate = x.conj();
    at::Tensor imaginary = at::imag(conjugate);
    double sum = 0;
    for (int i = 0; i < 80; ++i) {
      x.add_(c10::complex<double>(1, 2));
      sum += at::imag(x).sum().item<double>();
    }
    imaginary.unsqueeze_(0);
    sum += imaginary.sum().item<double>();
    return Tensors{conjugate, imaginary, torch::full({1}, sum)};
  });
}

// Independent streams give other contents, so a snapshot from one mode is never used in the other.
TEST(LinearWork, SnapshotsBelongToEagersNumbers) {
  at::manual_seed(3);
  const auto make = [] {
    at::Tensor x = torch::zeros({4});
    Tensors all;
    for (int i = 0; i < 200; ++i) {
      x.add_(torch::rand({4}));
      if (i % 50 == 0) all.push_back(x.clone());
    }
    all.push_back(x);
    return all;
  };
  const Tensors eager = make();
  at::manual_seed(3);
  const Tensors described = deferred_init(make);
  at::manual_seed(4);
  const Tensors alone = deferred_init(make);
  const MaterializeOptions independent{.independent_streams = 5};
  materialize_tensor(described[4]);
  materialize_tensor(described[3], independent);
  materialize_tensor(alone[3], independent);
  EXPECT_TRUE(same_bits(described[4], eager[4]));
  EXPECT_TRUE(same_bits(described[3], alone[3]));
  EXPECT_FALSE(at::equal(described[3], eager[3]));
  materialize_tensor(described[2]);
  EXPECT_TRUE(same_bits(described[2], eager[2]));
}

TEST(LinearWork, SnapshotsTakeNoMoreThanTheirShare) {
  Snapshots snapshots;
  const at::Tensor small = torch::zeros({1 << 18});  // 1 MiB
  for (uint32_t i = 1; i <= 500; ++i) {
    small.fill_(static_cast<float>(i));
    snapshots.keep(StorageId(0), i * 10, small.storage(), true);
    ASSERT_LE(snapshots.bytes(), Snapshots::kMaxBytes);
  }
  EXPECT_GT(snapshots.spacing(StorageId(0)), Snapshots::kSpacing);
  EXPECT_GT(snapshots.bytes(), Snapshots::kMaxBytes / 4);
  // Snapshots that are present have the correct contents.
  for (const uint32_t before : {200U, 2000U, 4999U}) {
    const auto found = snapshots.latest(StorageId(0), before);
    ASSERT_TRUE(found.bytes.defined());
    EXPECT_LE(found.position, before);
    EXPECT_EQ(found.bytes.view(at::kFloat)[7].item<float>(), static_cast<float>(found.position / 10));
  }
  // Large snapshots are not kept; temporary ones replace each other.
  snapshots.keep(StorageId(1), 5, torch::zeros({8 << 20}).storage(), true);
  EXPECT_FALSE(snapshots.latest(StorageId(1), 100).bytes.defined());
  for (const uint32_t position : {3U, 4U, 5U}) snapshots.keep(StorageId(2), position, small.storage(), false);
  EXPECT_FALSE(snapshots.latest(StorageId(2), 4).bytes.defined());
  EXPECT_EQ(snapshots.latest(StorageId(2), 9).position, 5U);
}

}  // namespace
}  // namespace shadowgraph
