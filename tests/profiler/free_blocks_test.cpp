#include "profiler/memory/free_blocks.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <set>
#include <tuple>

namespace shadowgraph {
namespace {

bool is_before(const FreeBlock& a, const FreeBlock& b) {
  return std::tie(a.stream, a.size, a.address) < std::tie(b.stream, b.size, b.address);
}

// The reference implementation.
TEST(FreeBlocks, AreInTheOrderOfASet) {
  std::mt19937 random(11);
  const auto any = [&](uint64_t most) { return static_cast<int64_t>(random() % most); };
  for (const uint64_t sizes : {3U, 40U, 100'000U}) {
    FreeBlocks blocks;
    std::set<FreeBlock, decltype(&is_before)> tree(is_before);
    for (int64_t i = 0; i < 6000; ++i) {
      const FreeBlock made{static_cast<int32_t>(any(3)), any(sizes), any(1 << 30), static_cast<uint32_t>(i)};
      // Grows first, then shrinks until empty.
      if (any(100) < (i < 2000 ? 70 : 20)) {
        if (tree.insert(made).second) blocks.insert(made);
      } else if (!tree.empty()) {
        auto gone = tree.lower_bound(made);
        if (gone == tree.end()) gone = tree.begin();
        const FreeBlock block = *gone;
        FreeBlocks::Place place = blocks.lower_bound(block.stream, block.size);
        while (blocks.block(place) != block.block) place = blocks.next(place);
        i % 2 == 0 ? blocks.erase(block) : blocks.erase(place);
        tree.erase(gone);
      }
      const auto stream = static_cast<int32_t>(any(4));
      const int64_t size = any(sizes + 1);
      const auto expected = tree.lower_bound({stream, size, 0, 0});
      const FreeBlocks::Place found = blocks.lower_bound(stream, size);
      ASSERT_EQ(found == blocks.end(), expected == tree.end());
      ASSERT_EQ(found == blocks.begin(), expected == tree.begin());
      if (expected != tree.end()) {
        ASSERT_EQ(blocks.block(found), expected->block);
      }
      if (expected != tree.begin()) {
        ASSERT_EQ(blocks.block(blocks.previous(found)), std::prev(expected)->block);
      }
    }
    FreeBlocks::Place at = blocks.begin();
    for (const FreeBlock& block : tree) {
      ASSERT_EQ(blocks.block(at), block.block);
      at = blocks.next(at);
    }
    EXPECT_EQ(at, blocks.end());
  }
}

}  // namespace
}  // namespace shadowgraph
