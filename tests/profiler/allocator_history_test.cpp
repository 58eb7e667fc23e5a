// Allocation sequences from PyTorch's own allocator tests (test/test_cuda.py of 2.13), with their assertions. PyTorch
// ships no recorded snapshots, only programs that create them on a GPU; the sizes are from there.
#include <gtest/gtest.h>

#include <algorithm>

#include "shadowgraph/profile/memory.h"

namespace shadowgraph {
namespace {

CachingAllocator allocator_of(const char* settings, int64_t capacity = AllocatorSettings::kUnlimited) {
  return CachingAllocator(AllocatorSettings::parse(settings), capacity);
}

// test_memory_stats: 256 floats are 1 KiB of active memory, until they are freed.
TEST(AllocatorHistory, AKibibyteIsActiveAndGoes) {
  CachingAllocator allocator;
  const auto block = allocator.allocate(256 * 4);
  EXPECT_EQ(allocator.stats().active.current, 1024);
  allocator.free(block);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().active.current, 0);
  EXPECT_EQ(allocator.stats().reserved.current, 0);
}

// test_memory_snapshot_script and test_cpp_memory_snapshot_pickle: one block with a requested size of 311 x 411 x 4
// bytes; the last event is its allocation, with that size.
TEST(AllocatorHistory, TheLastEventIsTheAllocationWithWhatWasAskedFor) {
  CachingAllocator allocator;
  allocator.record_history();
  allocator.allocate(311 * 411 * 4);
  int found = 0;
  for (const auto& segment : allocator.snapshot()) {
    for (const auto& block : segment.blocks) found += block.requested == 311 * 411 * 4 ? 1 : 0;
  }
  EXPECT_EQ(found, 1);
  ASSERT_FALSE(allocator.history().empty());
  EXPECT_EQ(allocator.history().back().action, CachingAllocator::Action::kAllocate);
  EXPECT_EQ(allocator.history().back().bytes, 311 * 411 * 4);
}

// test_memory_snapshot_skip_actions and test_memory_plots_free_segment_stack: the events from a tensor's allocation to
// an empty cache, in order.
TEST(AllocatorHistory, EventsFromTheFirstByteToAnEmptyCache) {
  CachingAllocator allocator;
  allocator.record_history();
  allocator.free(allocator.allocate(128 * 128 * 4));
  allocator.empty_cache();
  using enum CachingAllocator::Action;
  std::vector<CachingAllocator::Action> actions;
  for (const auto& event : allocator.history()) actions.push_back(event.action);
  EXPECT_EQ(actions, (std::vector{kSegmentAllocate, kAllocate, kFreeRequested, kFreeCompleted, kSegmentFree}));
}

// test_out_of_memory_retry: half of the memory twice does not fit beside the context, unless the first is freed.
TEST(AllocatorHistory, HalfOfTheMemoryTwice) {
  const int64_t total = 80 * 1024 * kMebibyte;
  CachingAllocator allocator = allocator_of("", total - 520 * kMebibyte);
  const auto first = allocator.allocate(total / 2);
  EXPECT_THROW(allocator.allocate(total / 2), OutOfMemoryError);
  allocator.free(first);
  EXPECT_NO_THROW(allocator.allocate(total / 2));
}

// test_max_split_expandable: of 120 MiB, three times 40 fit and a fourth does not; once freed, a single request of 120
// fits. The test changes the setting between requests; here each setting has a separate allocator.
TEST(AllocatorHistory, ThreeTimesFortyOf120) {
  for (const char* settings : {"expandable_segments:False,max_split_size_mb:40",
                               "expandable_segments:True,max_split_size_mb:40", "expandable_segments:True", ""}) {
    CachingAllocator allocator = allocator_of(settings, 120 * kMebibyte);
    std::vector<CachingAllocator::Handle> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(allocator.allocate(40 * kMebibyte));
    EXPECT_THROW(allocator.allocate(40 * kMebibyte), OutOfMemoryError) << settings;
    for (const auto block : blocks) allocator.free(block);
    EXPECT_NO_THROW(allocator.allocate(120 * kMebibyte)) << settings;
    EXPECT_EQ(allocator.stats().reserved.current, 120 * kMebibyte) << settings;
  }
}

// test_garbage_collect_expandable: with a collection threshold of half of 120 MiB, 80 fit after two times 40 were
// freed.
TEST(AllocatorHistory, EightyAfterTwoTimesForty) {
  for (const char* settings :
       {"garbage_collection_threshold:0.5,per_process_memory_fraction:1.0",
        "expandable_segments:True,garbage_collection_threshold:0.5,per_process_memory_fraction:1.0"}) {
    CachingAllocator allocator = allocator_of(settings, 120 * kMebibyte);
    const auto a = allocator.allocate(40 * kMebibyte);
    const auto b = allocator.allocate(40 * kMebibyte);
    allocator.free(a);
    allocator.free(b);
    EXPECT_NO_THROW(allocator.allocate(80 * kMebibyte)) << settings;
    EXPECT_LE(allocator.stats().reserved.current, 120 * kMebibyte) << settings;
  }
}

// test_allocate_in_thread_to_pool: four floats, then ten times c = a + b of 20 MiB each: four segments, or two if
// segments are expandable.
TEST(AllocatorHistory, TenTimesThreeOfTwentyMebibytes) {
  for (const bool expandable : {false, true}) {
    CachingAllocator allocator = allocator_of(expandable ? "expandable_segments:True" : "");
    allocator.free(allocator.allocate(16));
    CachingAllocator::Handle held[3];
    for (int round = 0; round < 10; ++round) {
      for (auto& block : held) block = allocator.allocate(20 * kMebibyte);
      for (const auto block : held) allocator.free(block);
    }
    EXPECT_EQ(allocator.snapshot().size(), expandable ? 2U : 4U);
    allocator.empty_cache();
    EXPECT_EQ(allocator.snapshot().size(), 0U);
  }
}

// TestBlockStateAbsorption: 11 blocks of 512 bytes, all freed but the sixth: one segment with two free blocks around
// it.
TEST(AllocatorHistory, OneBlockStaysInTheMiddleOfASegment) {
  CachingAllocator allocator;
  std::vector<CachingAllocator::Handle> blocks;
  for (int i = 0; i < 11; ++i) blocks.push_back(allocator.allocate(512));
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i != 5) allocator.free(blocks[i]);
  }
  const auto segments = allocator.snapshot();
  ASSERT_EQ(segments.size(), 1U);
  ASSERT_EQ(segments[0].blocks.size(), 3U);
  EXPECT_EQ(segments[0].bytes, 2 * kMebibyte);
  EXPECT_EQ(segments[0].blocks[0].bytes, 5 * 512);
  EXPECT_TRUE(segments[0].blocks[1].active);
  EXPECT_EQ(segments[0].blocks[2].bytes, 2 * kMebibyte - 6 * 512);
}

}  // namespace
}  // namespace shadowgraph
