// Layouts: real tensors are split into shards and reassembled.
#include "shadowgraph/shard/layout.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "shadowgraph/shard/simulate.h"

namespace shadowgraph {
namespace {

using Dims = std::vector<int64_t>;

TEST(DeviceMesh, IsReadFromText) {
  const DeviceMesh mesh = DeviceMesh::parse("2x3x4");
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.to_string(), "x=2,y=3,z=4");
  EXPECT_EQ(mesh.coordinate(23, 0), 1);
  EXPECT_EQ(mesh.coordinate(17, 1), 1);
  EXPECT_EQ(mesh.coordinate(17, 2), 1);
  EXPECT_EQ(DeviceMesh::parse("dp=8,tp=4").axes[1].name, "tp");
  EXPECT_EQ(DeviceMesh::parse("8").size(), 8);
  for (const char* bad : {"", "x", "8x", "x8", "0", "8x0", "-1", "8 x 8", "2x2x2x2x2", "a=2,a=3",
                          "99999999999999999999", "65536x65536"}) {
    EXPECT_THROW(DeviceMesh::parse(bad), Error) << bad;
  }
}

TEST(Layout, PrintsAndParses) {
  const Layout layout{Placement::shard(1, 8), Placement::replicate(), Placement::partial(PartialOp::kAverage)};
  EXPECT_EQ(to_string(layout), "S(1,8),R,P(avg)");
  EXPECT_EQ(Layout::parse("S(1,8),R,P(avg)"), layout);
  for (const char* bad : {"", "S", "S()", "S(-1)", "S(1,0)", "R,", "P(mean)", "R R", "R,R,R,R,R", "S(0)x"}) {
    EXPECT_THROW(Layout::parse(bad), Error) << bad;
  }
}

TEST(Layout, LocalSizesDivideOrAreNone) {
  const DeviceMesh mesh = DeviceMesh::parse("2x3");
  const Dims sizes{12, 5};
  EXPECT_EQ(local_sizes(sizes, Layout::parse("S(0),S(0)"), mesh), (Dims{2, 5}));
  EXPECT_EQ(local_sizes(sizes, Layout::parse("S(0),R"), mesh), (Dims{6, 5}));
  EXPECT_EQ(local_sizes(sizes, Layout::parse("S(0),S(0,4)"), mesh), (Dims{2, 5}));
  EXPECT_EQ(local_sizes(sizes, Layout::parse("S(0,2),S(0)"), mesh), std::nullopt);  // 3 devices cannot split 2 parts
  EXPECT_EQ(local_sizes(sizes, Layout::parse("R,S(0,4)"), mesh), (Dims{4, 5}));
  EXPECT_EQ(local_sizes(sizes, Layout::parse("R,S(0,5)"), mesh), std::nullopt);
  EXPECT_EQ(local_sizes(sizes, Layout::parse("S(1),R"), mesh), std::nullopt);
  EXPECT_EQ(local_sizes(sizes, Layout::parse("S(2),R"), mesh), std::nullopt);
  EXPECT_EQ(local_sizes(Dims{}, Layout::parse("P(sum),R"), mesh), Dims{});
}

// Dimension 0 is [batch 2, sequence 4] and y shards the sequence: each device has a part of every batch row.
TEST(Layout, StridedPartsAreStretchesOfEveryOuterRow) {
  const DeviceMesh mesh = DeviceMesh::parse("1x2");
  const at::Tensor full = at::arange(8);
  const at::Tensor part = local_shard(full, Layout::parse("R,S(0,2)"), mesh, 1);
  EXPECT_TRUE(at::equal(part, at::tensor({2, 3, 6, 7})));
}

// The second axis shards the pieces of the first.
TEST(Layout, AxesOnOneDimensionNest) {
  const DeviceMesh mesh = DeviceMesh::parse("2x2");
  const at::Tensor full = at::arange(8);
  EXPECT_TRUE(at::equal(local_shard(full, Layout::parse("S(0),S(0)"), mesh, 1), at::tensor({2, 3})));
  EXPECT_TRUE(at::equal(local_shard(full, Layout::parse("S(0,2),S(0)"), mesh, 1), at::tensor({4, 5})));
}

TEST(Layout, PartsMakeTheWholeAgain) {
  const DeviceMesh mesh = DeviceMesh::parse("2x3");
  const at::Tensor full = at::arange(12 * 6).reshape({12, 6}).to(at::kDouble);
  for (const char* text : {"R,R", "S(0),R", "S(0),S(0)", "S(0),S(1)", "S(1),S(0)", "S(1),S(1)", "S(0),S(0,4)",
                           "S(0,2),S(0,4)", "P(sum),S(0)", "S(1),P(max)", "P(avg),P(sum)", "S(0,3),S(0)"}) {
    const Layout layout = Layout::parse(text);
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) parts.push_back(local_shard(full, layout, mesh, rank));
    EXPECT_TRUE(at::equal(full_tensor(parts, layout, mesh, full.sizes()), full)) << text;
  }
}

TEST(Layout, CopiesThatDifferAndForeignPartsAreRefused) {
  const DeviceMesh mesh = DeviceMesh::parse("2");
  std::vector<at::Tensor> parts{at::zeros({2}), at::ones({2})};
  EXPECT_THROW(full_tensor(parts, Layout::parse("R"), mesh, Dims{2}), Error);
  EXPECT_THROW(full_tensor(parts, Layout::parse("S(0)"), mesh, Dims{2}), Error);
  EXPECT_THROW(full_tensor(parts, Layout::parse("S(0),R"), mesh, Dims{4}), Error);
  parts.pop_back();
  EXPECT_THROW(full_tensor(parts, Layout::parse("S(0)"), mesh, Dims{4}), Error);
  EXPECT_THROW(local_shard(at::zeros({3}), Layout::parse("S(0)"), mesh, 0), Error);
}

}  // namespace
}  // namespace shadowgraph
