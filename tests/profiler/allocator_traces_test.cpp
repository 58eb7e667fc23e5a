// Runs programs of PyTorch's own tests (allocator_traces.txt, which describes its format) through the allocator model.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "shadowgraph/profile/memory.h"

namespace shadowgraph {
namespace {

struct Line {
  int number = 0;
  std::vector<std::string> words;
};
struct Trace {
  std::string name;
  std::vector<std::string> settings;
  int64_t capacity = AllocatorSettings::kUnlimited;
  std::vector<Line> lines;
};

int64_t size_of(const std::string& text) {
  int64_t sum = 0;
  std::istringstream terms(text);
  for (std::string term; std::getline(terms, term, '+');) {
    int64_t product = 1;
    std::istringstream factors(term);
    for (std::string factor; std::getline(factors, factor, '*');) {
      size_t end = 0;
      const int64_t number = std::stoll(factor, &end);
      const std::string unit = factor.substr(end);
      if (unit != "" && unit != "K" && unit != "M" && unit != "G") throw std::invalid_argument("a size: " + text);
      product *= number << (unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : 0);
    }
    sum += product;
  }
  return sum;
}

std::vector<Trace> read_traces() {
  std::ifstream file(SHADOWGRAPH_SOURCE_DIR "/tests/profiler/allocator_traces.txt");
  std::vector<Trace> traces;
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    std::istringstream line(text);
    std::vector<std::string> words;
    for (std::string word; line >> word;) words.push_back(word);
    if (words.empty() || words[0][0] == '#' || words[0] == "claims" || words[0] == "rules") continue;
    if (words[0] == "case") {
      traces.push_back({.name = text.substr(5)});
    } else if (words[0] == "settings") {
      traces.back().settings.push_back(words.size() > 1 ? words[1] : "");
    } else if (words[0] == "capacity") {
      traces.back().capacity = size_of(words.at(1));
    } else {
      traces.back().lines.push_back({number, words});
    }
  }
  return traces;
}

class Replay {
 public:
  Replay(const Trace& trace, const std::string& settings)
      : trace_(trace), allocator_(AllocatorSettings::parse(settings), trace.capacity) {
    allocator_.record_history();
  }
  void run() { run(0, trace_.lines.size()); }

 private:
  struct Tensor {
    CachingAllocator::Handle handle;
    int64_t address = 0;  // stays after the block is freed
  };

  void run(size_t begin, size_t end) {
    for (size_t at = begin; at < end; ++at) {
      const Line& line = trace_.lines[at];
      if (line.words[0] != "repeat") {
        run(line);
        continue;
      }
      const auto close = std::find_if(trace_.lines.begin() + static_cast<std::ptrdiff_t>(at), trace_.lines.end(),
                                      [](const Line& other) { return other.words[0] == "end"; });
      const auto last = static_cast<size_t>(close - trace_.lines.begin());
      for (int64_t i = 0; i < size_of(line.words.at(1)); ++i) {
        round_ = std::to_string(i + 1);
        run(at + 1, last);
      }
      at = last;
    }
  }

  void run(const Line& line) {
    SCOPED_TRACE("allocator_traces.txt:" + std::to_string(line.number));
    std::vector<std::string> words = line.words;
    for (std::string& word : words) {
      if (word.back() == '*') word.replace(word.size() - 1, 1, round_);
    }
    const std::string& verb = words[0];
    if (words.size() > 2 && words[1] == "=") {
      allocate(verb, words);
    } else if (verb == "free") {
      for (size_t i = 1; i < words.size(); ++i) allocator_.free(tensors_.at(words[i]).handle);
    } else if (verb == "share") {
      allocator_.record_stream(tensors_.at(words.at(1)).handle, std::stoi(words.at(2)));
    } else if (verb == "sync") {
      allocator_.synchronize();
    } else if (verb == "empty") {
      allocator_.empty_cache();
    } else if (verb == "expect") {
      EXPECT_EQ(figure(words.at(1)), size_of(words.at(2))) << words[1];
    } else if (verb == "same") {
      EXPECT_EQ(tensors_.at(words.at(1)).address, tensors_.at(words.at(2)).address);
    } else if (verb == "differ") {
      EXPECT_NE(tensors_.at(words.at(1)).address, tensors_.at(words.at(2)).address);
    } else if (verb == "requested") {
      EXPECT_EQ(requested_at(tensors_.at(words.at(1)).address), size_of(words.at(2)));
    } else if (verb == "last") {
      EXPECT_EQ(name_of(allocator_.history().back().action), words.at(1));
    } else {
      ADD_FAILURE() << "what is " << verb << '?';
    }
  }

  void allocate(const std::string& name, const std::vector<std::string>& words) {
    const int64_t bytes = size_of(words[2]);
    if (words.back() == "fails") {
      EXPECT_THROW(allocator_.allocate(bytes), OutOfMemoryError);
      return;
    }
    const int stream = words.size() > 4 ? std::stoi(words[4]) : 0;
    try {
      const auto handle = allocator_.allocate(bytes, stream);
      tensors_[name] = {handle, allocator_.address(handle)};
    } catch (const OutOfMemoryError& error) {
      ADD_FAILURE() << error.what();
    }
  }

  int64_t figure(const std::string& name) const {
    const CachingAllocator::Stats& stats = allocator_.stats();
    const std::map<std::string, int64_t> figures = {{"allocated", stats.allocated.current},
                                                    {"active", stats.active.current},
                                                    {"requested", stats.requested.current},
                                                    {"reserved", stats.reserved.current},
                                                    {"retries", stats.retries},
                                                    {"inactive_split", stats.inactive_split.current}};
    if (const auto at = figures.find(name); at != figures.end()) return at->second;
    const auto segments = allocator_.snapshot();
    if (name == "segments") return std::ssize(segments);
    if (name == "segments.expandable") return std::ranges::count_if(segments, [](auto& s) { return s.expandable; });
    if (name != "blocks") throw std::invalid_argument("a figure: " + name);
    int64_t blocks = 0;
    for (const auto& segment : segments) blocks += std::ssize(segment.blocks);
    return blocks;
  }
  int64_t requested_at(int64_t address) const {
    for (const auto& segment : allocator_.snapshot()) {
      for (const auto& block : segment.blocks) {
        if (block.address == address && block.allocated) return block.requested;
      }
    }
    return -1;
  }
  static std::string name_of(CachingAllocator::Action action) {
    using enum CachingAllocator::Action;
    switch (action) {
      case kAllocate:
        return "alloc";
      case kFreeRequested:
        return "free_requested";
      case kFreeCompleted:
        return "free_completed";
      case kSegmentAllocate:
        return "segment_alloc";
      case kSegmentFree:
        return "segment_free";
    }
    return "";
  }

  const Trace& trace_;
  CachingAllocator allocator_;
  std::map<std::string, Tensor> tensors_;
  std::string round_;
};

TEST(AllocatorTraces, ProgramsOfPyTorchsTests) {
  const std::vector<Trace> traces = read_traces();
  ASSERT_GE(traces.size(), 20U);
  for (const Trace& trace : traces) {
    std::vector<std::string> settings = trace.settings;
    if (settings.empty()) settings.emplace_back();
    for (const std::string& text : settings) {
      SCOPED_TRACE(trace.name + ", settings \"" + text + "\"");
      Replay(trace, text).run();
    }
  }
}

}  // namespace
}  // namespace shadowgraph
