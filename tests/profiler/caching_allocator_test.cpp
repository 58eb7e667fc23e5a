// The model of PyTorch's caching allocator: settings compared with libtorch's own parser, hand-computed sums, and
// invariants under random programs.
#include <c10/core/AllocatorConfig.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

#include "shadowgraph/profile/memory.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = kMebibyte;

// ---- Settings

struct SettingsText {
  const char* text;
};

TEST(AllocatorSettings, MeanWhatLibtorchTakesThemFor) {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  for (const std::string text : {"max_split_size_mb:20", "max_split_size_mb:100,max_non_split_rounding_mb:64",
                                 "expandable_segments:True", "garbage_collection_threshold:0.6",
                                 "roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
                                 "roundup_power2_divisions:[64:8,>:16] , max_split_size_mb : 30",
                                 "large_segment_size_mb:40,max_split_size_mb:60"}) {
    // The parser keeps earlier settings, so reset to the defaults first.
    Config::instance().parseArgs(
        "large_segment_size_mb:20,expandable_segments:False,roundup_power2_divisions:[1:0,>:0]");
    Config::instance().parseArgs(text);
    const AllocatorSettings ours = AllocatorSettings::parse(text);
    if (text.find("max_split_size") != text.npos) {
      EXPECT_EQ(ours.max_split_size, static_cast<int64_t>(Config::max_split_size())) << text;
    }
    EXPECT_EQ(ours.max_non_split_rounding, static_cast<int64_t>(Config::max_non_split_rounding_size())) << text;
    EXPECT_EQ(ours.large_segment_size, static_cast<int64_t>(Config::large_segment_size())) << text;
    EXPECT_EQ(ours.expandable_segments, Config::use_expandable_segments()) << text;
    if (ours.garbage_collection_threshold > 0) {
      EXPECT_EQ(ours.garbage_collection_threshold, Config::garbage_collection_threshold()) << text;
    }
    const auto& divisions = Config::roundup_power2_divisions();
    ASSERT_EQ(divisions.size(), ours.roundup_power2_divisions.size());
    for (size_t i = 0; i < divisions.size(); ++i) {
      EXPECT_EQ(ours.roundup_power2_divisions[i], static_cast<int64_t>(divisions[i])) << text << " at " << i;
    }
  }
}

TEST(AllocatorSettings, WhatLibtorchRefusesIsRefusedByName) {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  for (const std::string text :
       {"max_split_size_mb:19", "large_segment_size_mb:10", "max_non_split_rounding_mb:1",
        "garbage_collection_threshold:1.0", "roundup_power2_divisions:3", "roundup_power2_divisions:0",
        "roundup_power2_divisions:[100:2]", "roundup_power2_divisions:[256:3]", "expandable_segments:true",
        "max_split_size_mb:", "large_segment_size_mb:40,max_split_size_mb:30"}) {
    EXPECT_ANY_THROW(Config::instance().parseArgs(text)) << text;
    try {
      AllocatorSettings::parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      const std::string last = text.substr(text.rfind(',') + 1);
      EXPECT_THAT(error.what(), HasSubstr(last.substr(0, last.find(':'))));
    }
    Config::instance().parseArgs("large_segment_size_mb:20");
  }
}

TEST(AllocatorSettings, OtherAllocatorsAndUnknownNamesAreRefused) {
  EXPECT_THROW(AllocatorSettings::parse("backend:cudaMallocAsync"), Error);
  EXPECT_THROW(AllocatorSettings::parse("max_splt_size_mb:100"), Error);
  EXPECT_THROW(AllocatorSettings::parse("max_split_size_mb:100 expandable_segments:True"), Error);
  EXPECT_THROW(AllocatorSettings::parse("max_split_size_mb:1x0"), Error);
  EXPECT_THROW(AllocatorSettings::parse("roundup_power2_divisions:[256:2"), Error);
  EXPECT_EQ(AllocatorSettings::parse(""), AllocatorSettings());
  EXPECT_EQ(AllocatorSettings::parse("backend:native,pinned_use_background_threads:True"), AllocatorSettings());
}

// ---- Rules

TEST(CachingAllocator, SmallRequestsShareSegmentsOfTwoMebibytes) {
  CachingAllocator allocator;
  const auto a = allocator.allocate(1);
  const auto b = allocator.allocate(513);
  EXPECT_EQ(allocator.stats().requested.current, 514);
  EXPECT_EQ(allocator.stats().allocated.current, 512 + 1024);
  EXPECT_EQ(allocator.stats().reserved.current, 2 * kMiB);
  EXPECT_EQ(allocator.stats().inactive_split.current, 2 * kMiB - 1536);
  EXPECT_EQ(allocator.address(b), allocator.address(a) + 512);
  allocator.allocate(kMiB);  // a small request, too large for the space left in the segment
  allocator.allocate(kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 4 * kMiB);
  EXPECT_EQ(allocator.stats().segments.current, 2);
}

TEST(CachingAllocator, NothingIsAllocatedForNoBytes) {
  CachingAllocator allocator;
  const auto handle = allocator.allocate(0);
  EXPECT_FALSE(handle.valid());
  allocator.free(handle);
  EXPECT_EQ(allocator.stats().reserved.peak, 0);
}

TEST(CachingAllocator, MiddlingRequestsTakeTwentyMebibytesAndLargeOnesTheirOwn) {
  CachingAllocator allocator;
  allocator.allocate(kMiB + 1);  // rounded to 1 MiB + 512
  EXPECT_EQ(allocator.stats().reserved.current, 20 * kMiB);
  allocator.allocate(9 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 20 * kMiB);
  allocator.allocate(10 * kMiB + 1);  // rounded up to 2 MiB
  EXPECT_EQ(allocator.stats().reserved.current, 32 * kMiB);
}

TEST(CachingAllocator, ALargeBlockIsSplitOnlyIfMoreThanOneMebibyteIsLeft) {
  CachingAllocator allocator;
  const auto a = allocator.allocate(30 * kMiB);
  allocator.free(a);
  const auto b = allocator.allocate(29 * kMiB);
  EXPECT_EQ(allocator.stats().allocated.current, 30 * kMiB) << "a remainder of one mebibyte must not be split off";
  allocator.free(b);
  const auto c = allocator.allocate(29 * kMiB - 512);
  EXPECT_EQ(allocator.stats().allocated.current, 29 * kMiB - 512);
  EXPECT_EQ(allocator.stats().inactive_split.current, kMiB + 512);
  allocator.free(c);
  EXPECT_EQ(allocator.stats().inactive_split.current, 0) << "the free halves must be merged";
  EXPECT_EQ(allocator.stats().reserved.current, 30 * kMiB);
}

TEST(CachingAllocator, TheTightestBlockIsTakenAndNeighborsMerge) {
  CachingAllocator allocator;
  std::vector<CachingAllocator::Handle> blocks;
  for (const int64_t size : {40, 24, 32}) blocks.push_back(allocator.allocate(size * kMiB));
  const int64_t second = allocator.address(blocks[1]);
  for (const auto block : blocks) allocator.free(block);
  EXPECT_EQ(allocator.address(allocator.allocate(23 * kMiB)), second);
  EXPECT_EQ(allocator.stats().reserved.current, 96 * kMiB);
  EXPECT_EQ(allocator.stats().device_allocations, 3);
}

TEST(CachingAllocator, BlocksBeyondTheLimitAreNeitherSplitNorGivenToSmallerRequests) {
  CachingAllocator allocator(AllocatorSettings::parse("max_split_size_mb:50"));
  allocator.free(allocator.allocate(64 * kMiB));
  allocator.allocate(30 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 94 * kMiB) << "30 are below the limit, 64 above";
  const auto big = allocator.allocate(60 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 94 * kMiB) << "a block 4 MiB larger is within the rounding";
  EXPECT_EQ(allocator.stats().allocated.current, 94 * kMiB);
  allocator.free(big);
  allocator.free(allocator.allocate(100 * kMiB));
  allocator.allocate(64 * kMiB);
  allocator.allocate(60 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, (30 + 64 + 100 + 60) * kMiB) << "100 exceed 60 by more than 20";
}

// Sizes from PyTorch's test of this setting (test_cuda.py, test_allocator_settings).
TEST(CachingAllocator, SizesAreRoundedToPartsOfPowersOfTwo) {
  const auto rounded = [](const char* settings, int64_t bytes) {
    CachingAllocator allocator(AllocatorSettings::parse(settings));
    allocator.allocate(bytes);
    return allocator.stats().allocated.current;
  };
  const int64_t floats = 21 * kMiB * 4;          // 84 MiB: between 64 and 128
  const int64_t many = int64_t{100} * kMiB * 4;  // 400 MiB: between 256 and 512
  EXPECT_EQ(rounded("", floats), floats);
  EXPECT_EQ(rounded("roundup_power2_divisions:4", floats), 96 * kMiB);
  EXPECT_EQ(rounded("roundup_power2_divisions:8", floats), 88 * kMiB);
  EXPECT_EQ(rounded("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", floats), 88 * kMiB);
  EXPECT_EQ(rounded("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", many), 512 * kMiB);
  EXPECT_EQ(rounded("roundup_power2_divisions:[64:1,128:2,256:4,512:2,1024:1,>:1]", many), 448 * kMiB);
  EXPECT_EQ(rounded("roundup_power2_divisions:4", 5000), 5120) << "also for small sizes: 4096 plus a quarter";
  EXPECT_EQ(rounded("roundup_power2_divisions:4", 1025), 1536) << "but not if a division is smaller than a block";
}

TEST(CachingAllocator, StreamsDoNotShareBlocks) {
  CachingAllocator allocator;
  allocator.free(allocator.allocate(30 * kMiB, 0));
  allocator.allocate(30 * kMiB, 1);
  EXPECT_EQ(allocator.stats().reserved.current, 60 * kMiB);
  allocator.allocate(30 * kMiB, 0);
  EXPECT_EQ(allocator.stats().reserved.current, 60 * kMiB);
}

TEST(CachingAllocator, ABlockUsedOnAnotherStreamWaits) {
  CachingAllocator allocator;
  const auto a = allocator.allocate(30 * kMiB, 0);
  allocator.record_stream(a, 1);
  allocator.free(a);
  EXPECT_EQ(allocator.stats().allocated.current, 0);
  EXPECT_EQ(allocator.stats().active.current, 30 * kMiB);
  allocator.allocate(30 * kMiB, 0);
  EXPECT_EQ(allocator.stats().reserved.current, 60 * kMiB);
  allocator.synchronize();
  EXPECT_EQ(allocator.stats().active.current, 30 * kMiB);
  allocator.allocate(30 * kMiB, 0);
  EXPECT_EQ(allocator.stats().reserved.current, 60 * kMiB);
}

TEST(CachingAllocator, WithoutRoomTheCacheIsGivenBackAndThenItFails) {
  CachingAllocator allocator({}, 100 * kMiB);
  const auto a = allocator.allocate(60 * kMiB);
  allocator.free(a);
  allocator.allocate(80 * kMiB);
  EXPECT_EQ(allocator.stats().retries, 1);
  EXPECT_EQ(allocator.stats().reserved.current, 80 * kMiB);
  EXPECT_EQ(allocator.stats().device_frees, 1);
  try {
    allocator.allocate(30 * kMiB);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tried to allocate 30.00 MiB. Of a limit of 100.00 MiB"));
  }
  EXPECT_EQ(allocator.stats().reserved.current, 80 * kMiB);
}

TEST(CachingAllocator, ASegmentThatIsHeldInPartCannotBeGivenBack) {
  CachingAllocator allocator;
  const auto a = allocator.allocate(5 * kMiB);
  const auto b = allocator.allocate(5 * kMiB);
  allocator.free(a);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved.current, 20 * kMiB);
  EXPECT_EQ(allocator.stats().inactive_split.current, 15 * kMiB);
  allocator.free(b);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved.current, 0);
  EXPECT_EQ(allocator.stats().segments.current, 0);
}

TEST(CachingAllocator, GarbageIsCollectedBeyondTheThreshold) {
  CachingAllocator allocator(
      AllocatorSettings::parse("garbage_collection_threshold:0.5,per_process_memory_fraction:1.0"), 200 * kMiB);
  for (const int64_t size : {30, 40, 50}) allocator.free(allocator.allocate(size * kMiB));
  EXPECT_EQ(allocator.stats().reserved.current, 120 * kMiB);
  allocator.allocate(60 * kMiB);  // 120 exceed 100: segments older than the average are released
  EXPECT_LT(allocator.stats().reserved.current, 180 * kMiB);
  EXPECT_EQ(allocator.stats().retries, 0);
}

// A segment's age is the number of searches since it was freed. The three free segments have ages 3, 1 and 1: the
// average is 5/3, so only the first is collected.
TEST(CachingAllocator, TheOldestGarbageIsCollected) {
  CachingAllocator allocator(
      AllocatorSettings::parse("garbage_collection_threshold:0.5,per_process_memory_fraction:1.0"), 400 * kMiB);
  allocator.record_history();
  const auto a = allocator.allocate(30 * kMiB);
  const auto b = allocator.allocate(40 * kMiB);
  const auto c = allocator.allocate(50 * kMiB);
  const int64_t oldest = allocator.address(a);
  allocator.free(a);
  allocator.allocate(60 * kMiB);
  allocator.allocate(36 * kMiB);
  allocator.free(b);
  allocator.free(c);
  EXPECT_EQ(allocator.stats().reserved.current, 216 * kMiB);
  allocator.allocate(70 * kMiB);  // 216 exceed 200
  EXPECT_EQ(allocator.stats().reserved.current, (216 - 30 + 70) * kMiB);
  std::vector<int64_t> collected;
  for (const CachingAllocator::Event& event : allocator.history()) {
    if (event.action == CachingAllocator::Action::kSegmentFree) collected.push_back(event.address);
  }
  EXPECT_EQ(collected, std::vector<int64_t>{oldest});
}

TEST(CachingAllocator, ExpandableSegmentsGrowByPages) {
  CachingAllocator allocator(AllocatorSettings::parse("expandable_segments:True"));
  const auto a = allocator.allocate(30 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 40 * kMiB) << "two pages of 20 MiB";
  const auto b = allocator.allocate(30 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 60 * kMiB) << "the rest of the second page, and a third page";
  EXPECT_EQ(allocator.address(b), allocator.address(a) + 30 * kMiB);
  allocator.free(a);
  allocator.free(b);
  allocator.allocate(60 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 60 * kMiB) << "merged into one block";
  allocator.allocate(1024);
  EXPECT_EQ(allocator.stats().reserved.current, 62 * kMiB) << "small blocks use pages of 2 MiB";
}

TEST(CachingAllocator, FreePagesOfAnExpandableSegmentAreGivenBackFromItsMiddle) {
  CachingAllocator allocator(AllocatorSettings::parse("expandable_segments:True"));
  const auto a = allocator.allocate(20 * kMiB);
  const auto b = allocator.allocate(50 * kMiB);
  const auto c = allocator.allocate(10 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 80 * kMiB);
  allocator.free(b);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved.current, 40 * kMiB) << "50 free MiB hold two whole pages";
  allocator.allocate(45 * kMiB);
  EXPECT_EQ(allocator.stats().reserved.current, 80 * kMiB) << "the gap must be filled first";
  allocator.free(a);
  allocator.free(c);
}

// ---- Random programs

struct Live {
  CachingAllocator::Handle handle;
  int64_t bytes;
};

void expect_consistent(const CachingAllocator& allocator, const std::vector<Live>& live, uint32_t seed) {
  int64_t reserved = 0, allocated = 0, requested = 0, stuck = 0, end = 0;
  size_t held = 0;
  for (const auto& segment : allocator.snapshot()) {
    ASSERT_GE(segment.address, end) << "segments overlap, seed " << seed;
    end = segment.address + segment.bytes;
    reserved += segment.bytes;
    int64_t at = segment.address;
    bool was_free = false;
    for (const auto& block : segment.blocks) {
      ASSERT_EQ(block.address, at) << "blocks leave a gap, seed " << seed;
      at += block.bytes;
      const bool is_free = !block.active;
      ASSERT_FALSE(was_free && is_free) << "free neighbors are not merged, seed " << seed;
      was_free = is_free;
      if (block.allocated) {
        allocated += block.bytes;
        requested += block.requested;
        ++held;
        ASSERT_GE(block.bytes, block.requested);
      } else if (segment.blocks.size() > 1 && !segment.expandable) {
        stuck += block.bytes;
      }
    }
    ASSERT_EQ(at, end) << "seed " << seed;
  }
  const auto& stats = allocator.stats();
  EXPECT_EQ(stats.reserved.current, reserved) << seed;
  EXPECT_EQ(stats.allocated.current, allocated) << seed;
  EXPECT_EQ(stats.requested.current, requested) << seed;
  EXPECT_EQ(held, live.size()) << seed;
  EXPECT_GE(stats.reserved.peak, stats.reserved.current);
  EXPECT_EQ(stats.inactive_split.current, stuck) << seed;
}

TEST(CachingAllocator, RandomProgramsKeepItConsistent) {
  const std::vector<std::string> settings = {"", "expandable_segments:True", "max_split_size_mb:32",
                                             "roundup_power2_divisions:4",
                                             "max_split_size_mb:64,max_non_split_rounding_mb:64"};
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    CachingAllocator allocator(AllocatorSettings::parse(settings[seed % settings.size()]), 600 * kMiB);
    std::vector<Live> live;
    for (int i = 0; i < 400; ++i) {
      if (live.size() > 30 || (!live.empty() && random() % 2 == 0)) {
        const size_t at = random() % live.size();
        allocator.free(live[at].handle);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        const int64_t bytes = 1 + static_cast<int64_t>(random() % (1u << (10 + random() % 16)));
        try {
          live.push_back({allocator.allocate(bytes), bytes});
        } catch (const OutOfMemoryError&) {
          for (const Live& one : live) allocator.free(one.handle);
          live.clear();
        }
      }
      if (random() % 40 == 0) allocator.empty_cache();
      if (i % 20 == 0) expect_consistent(allocator, live, seed);
      if (HasFatalFailure()) return;
    }
    for (const Live& one : live) allocator.free(one.handle);
    allocator.empty_cache();
    EXPECT_EQ(allocator.stats().reserved.current, 0) << "seed " << seed;
    EXPECT_EQ(allocator.stats().active.current, 0);
    EXPECT_EQ(allocator.stats().inactive_split.current, 0);
  }
}

TEST(CachingAllocator, ADeviceSmallerThanAPageHoldsNothing) {
  for (const int64_t capacity : {0, 1, 1024}) {
    CachingAllocator allocator(AllocatorSettings::parse("expandable_segments:True"), capacity);
    for (const int64_t bytes : {int64_t{1}, 30 * kMiB, int64_t{1} << 62}) {
      EXPECT_THROW(allocator.allocate(bytes), OutOfMemoryError) << bytes << " of " << capacity;
    }
    EXPECT_EQ(allocator.stats().reserved.current, 0);
  }
}

// Sizes in files may be arbitrary; the total of reserved memory is limited to a petabyte.
TEST(CachingAllocator, SizesThatNoSumHoldsAreRefused) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  for (const char* settings : {"", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"}) {
    for (const int64_t capacity : {AllocatorSettings::kUnlimited, kLargest - 1}) {
      CachingAllocator allocator(AllocatorSettings::parse(settings), capacity);
      const auto held = allocator.allocate(int64_t{1} << 30);
      for (const int64_t bytes : {kLargest, kLargest - 1, int64_t{1} << 62, int64_t{1} << 50}) {
        EXPECT_THROW(allocator.allocate(bytes), OutOfMemoryError) << bytes << " with " << settings;
      }
      allocator.free(held);
      EXPECT_GE(allocator.stats().reserved.current, 0);
    }
  }
}

TEST(CachingAllocator, HistoryTellsWhatTheStatisticsTell) {
  CachingAllocator allocator;
  allocator.record_history();
  const auto a = allocator.allocate(3 * kMiB, 0, 7);
  allocator.free(a);
  allocator.empty_cache();
  using Action = CachingAllocator::Action;
  std::vector<Action> actions;
  for (const auto& event : allocator.history()) actions.push_back(event.action);
  EXPECT_EQ(actions, (std::vector<Action>{Action::kSegmentAllocate, Action::kAllocate, Action::kFreeRequested,
                                          Action::kFreeCompleted, Action::kSegmentFree}));
  EXPECT_EQ(allocator.history()[1].tag, 7u);
  EXPECT_EQ(allocator.history()[1].bytes, 3 * kMiB);
}

}  // namespace
}  // namespace shadowgraph
