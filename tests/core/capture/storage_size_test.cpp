// Tests programs that resize storages: recorded memory events and computed results.
#include <ATen/native/Resize.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/deferred/deferred.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void resize(const at::Tensor& tensor, int64_t bytes) {
  if (tensor.is_meta() || tensor.storage().device().is_meta()) {
    resize_storage(tensor.storage(), static_cast<size_t>(bytes));
  } else {
    at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), static_cast<size_t>(bytes));
  }
}

// An FSDP-style block: its weight is gathered, used, freed, gathered again and used again.
at::Tensor gathered_twice(const at::Tensor& x, const at::Tensor& shard) {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = at::empty({2 * shard.size(0), shard.size(1)});
  at::Tensor y = x;
  for (int i = 0; i < 2; ++i) {
    resize(whole, 4 * whole.numel());
    whole.copy_(at::cat({shard, shard * (i + 2)}));
    y = at::mm(y, whole.t());
    resize(whole, 0);
    y = y.relu();
  }
  return y;
}

Graph capture_gathered_twice() {
  const FakeTensorMode mode;
  const at::Tensor x = at::empty({3, 8}), shard = at::empty({4, 8});
  Capture session;
  session.name_input(x, "x");
  session.name_input(shard, "shard");
  return session.finish({gathered_twice(x, shard)});
}

TEST(StorageSize, MemoryGivenBackAndTakenAgainIsTwoStorages) {
  const Graph graph = capture_gathered_twice();
  verify(graph);
  std::vector<StorageId> blocks;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (storage.bytes == 8 * 8 * 4 && graph.target(storage.born).name() == "aten::empty.memory_format") {
      blocks.emplace_back(i);
    }
  }
  ASSERT_EQ(blocks.size(), 2) << to_text(graph);
  // empty of 0 bytes
  EXPECT_EQ(graph.target(graph.storage(blocks[0]).freed_after).name(), "aten::empty.memory_format");
  EXPECT_TRUE(graph.is_before(graph.storage(blocks[0]).freed_after, graph.storage(blocks[1]).born));
  EXPECT_TRUE(graph.storage(blocks[1]).freed_after.valid());
  // The peak has x (96 bytes), the shard (128), the block and cat's result (256 each), a scaled shard (128), and y (96).
  EXPECT_EQ(MemoryTimeline::of(graph).peak().bytes, 96 + 128 + 256 + 256 + 128 + 96);

  const at::Tensor real_x = at::rand({3, 8}), real_shard = at::rand({4, 8});
  Interpreter interpreter(graph);
  const at::Tensor replayed = interpreter.run(Bindings().bind("x", real_x).bind("shard", real_shard)).outputs[0];
  EXPECT_TRUE(at::equal(replayed, gathered_twice(real_x, real_shard)));
  EXPECT_EQ(to_text(parse(to_text(graph))), to_text(graph));
}

at::Tensor grown_and_shrunk(const at::Tensor& x) {
  const at::Tensor base = x * 2;  // 6 elements
  resize(base, 10 * 4);
  const at::Tensor longer = base.as_strided({10}, {1});
  longer.slice(0, 6).copy_(x.slice(0, 0, 4));
  resize(base, 8 * 4);
  return base.as_strided({8}, {1}).clone();
}

Graph capture_grown_and_shrunk() {
  const FakeTensorMode mode;
  const at::Tensor x = at::empty({6});
  Capture session;
  session.name_input(x, "x");
  return session.finish({grown_and_shrunk(x)});
}

TEST(StorageSize, ContentsThatBothHaveRoomForStay) {
  const Graph graph = capture_grown_and_shrunk();
  verify(graph);
  const at::Tensor real = at::rand({6});
  const at::Tensor replayed = Interpreter(graph).run(Bindings().bind("x", real)).outputs[0];
  EXPECT_TRUE(at::equal(replayed, grown_and_shrunk(real)));
}

TEST(StorageSize, AStorageThatTheCaptureHadNotMetIsBornWhereItGrows) {
  const FakeTensorMode mode;
  const at::Tensor whole = at::empty({16});
  resize(whole, 0);
  const at::Tensor x = at::empty({16});
  Capture session;
  session.name_input(x, "x");
  at::Tensor y = x.relu();
  resize(whole, 64);
  y = y.sin();
  whole.copy_(y);
  y = whole.cos();
  resize(whole, 0);
  const Graph graph = session.finish({y.tan()});
  verify(graph);
  std::vector<std::string> names;
  for (const NodeId node : graph.nodes()) names.push_back(graph.target(node).name());
  EXPECT_THAT(names,
              ::testing::ElementsAre("sg::input", "aten::relu", "aten::empty.memory_format", "aten::sin", "aten::copy_",
                                     "aten::cos", "aten::empty.memory_format", "aten::tan", "sg::output"))
      << to_text(graph);
}

// Two storages first seen when resized: one is used afterwards; the other is shrunk again and then only viewed.
TEST(StorageSize, AStorageThatShrinksAgainIsNotBorn) {
  const FakeTensorMode mode;
  const at::Tensor used = at::empty({16}), unused = at::empty({16});
  const at::Tensor look = unused.narrow(0, 0, 0);
  resize(used, 0);
  resize(unused, 0);
  Capture session;
  resize(used, 64);
  resize(unused, 64);
  resize(unused, 0);
  used.fill_(1);
  const Graph graph = session.finish({used, look});
  verify(graph);
  EXPECT_EQ(nodes_calling(graph, "aten::empty").size(), 1) << to_text(graph);
}

TEST(StorageSize, MemoryThatWasGivenBackIsNotUsed) {
  const FakeTensorMode mode;
  const Capture session;
  const at::Tensor x = at::empty({2, 4});
  resize(x, 0);
  const at::Tensor view = x.view({8});  // a view reads no data
  EXPECT_THAT([&] { at::add(view, 1); },
              ThrowsMessage<Error>(AllOf(HasSubstr("aten::add"), HasSubstr("uses a tensor of shape [8]"),
                                         HasSubstr("needs 32 bytes, but its storage has 0"))));
}

TEST(StorageSize, WhatIsNoFakeOrIsDescribedIsRefused) {
  const at::Tensor real = at::zeros({4});
  EXPECT_THAT([&] { resize_storage(real.storage(), 0); }, ThrowsMessage<Error>(HasSubstr("holds data")));
  EXPECT_THAT(
      [] {
        deferred_init([] {
          const at::Tensor described = at::empty({4});
          resize_storage(described.storage(), 0);
          return described;
        });
      },
      ThrowsMessage<DeferredError>(HasSubstr("cannot resize the storage of a deferred tensor")));
}

}  // namespace
}  // namespace shadowgraph
