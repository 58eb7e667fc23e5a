#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "profiler/communication/stream_tasks.h"

namespace shadowgraph {
namespace {

// Reference implementation that scans all parts for each write and read.
struct PartByPart {
  struct Part {
    int64_t begin, end;
    int writer;
  };
  std::vector<Part> parts;
  void note(int64_t begin, int64_t end, int writer) {
    std::erase_if(parts, [&](const Part& old) { return begin <= old.begin && old.end <= end; });
    parts.push_back({begin, end, writer});
  }
  std::vector<int> of(int64_t begin, int64_t end) const {
    std::vector<int> writers;
    for (const Part& part : parts) {
      if (part.begin < end && begin < part.end) writers.push_back(part.writer);
    }
    return writers;
  }
};

std::vector<int> writers_of(const WrittenParts<int>& parts, int64_t begin, int64_t end) {
  std::vector<int> writers;
  parts.for_each(begin, end, [&](int writer) { writers.push_back(writer); });
  std::ranges::sort(writers);
  return writers;
}

TEST(WrittenParts, AreThoseOfALookAtEachPart) {
  std::mt19937 random(7);
  for (int run = 0; run < 50; ++run) {
    WrittenParts<int> parts;
    PartByPart slow;
    const int64_t bytes = 8 + run * 4;
    const auto any = [&] { return static_cast<int64_t>(random() % static_cast<uint64_t>(bytes)); };
    for (int i = 0; i < 200; ++i) {
      const int64_t begin = any(), end = begin + any() / (1 + i % 5);
      if (begin < end) {
        parts.note(begin, end, i);
        slow.note(begin, end, i);
      }
      const int64_t from = any(), until = from + 1 + any();
      ASSERT_EQ(writers_of(parts, from, until), slow.of(from, until)) << "run " << run << ", write " << i;
    }
  }
}

TEST(WrittenParts, NothingIsWrittenByNoBytes) {
  WrittenParts<int> parts;
  parts.note(4, 4, 1);
  EXPECT_TRUE(writers_of(parts, 0, 100).empty());
  parts.note(4, 8, 2);
  EXPECT_TRUE(writers_of(parts, 0, 4).empty());
  EXPECT_TRUE(writers_of(parts, 8, 9).empty());
}

// 100,000 parts twice, and a read of each: scanning all parts each time would take 2 x 10^10 steps, that is minutes.
TEST(WrittenParts, AreFoundAmongManyOthers) {
  constexpr int kParts = 100'000, kBytes = 512;
  WrittenParts<int> parts;
  parts.note(0, int64_t{kParts} * kBytes, -1);
  for (int round = 0; round < 2; ++round) {
    for (int p = 0; p < kParts; ++p) parts.note(int64_t{p} * kBytes, int64_t{p + 1} * kBytes, round * kParts + p);
    for (int p = 0; p < kParts; ++p) {
      const std::vector<int> expected{-1, round * kParts + p};
      ASSERT_EQ(writers_of(parts, int64_t{p} * kBytes, int64_t{p + 1} * kBytes), expected);
    }
  }
  EXPECT_EQ(writers_of(parts, 0, int64_t{kParts} * kBytes).size(), size_t{kParts} + 1);
  parts.note(0, int64_t{kParts} * kBytes, -2);
  EXPECT_EQ(writers_of(parts, 700, 701), std::vector<int>{-2});
}

}  // namespace
}  // namespace shadowgraph
