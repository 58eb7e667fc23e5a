// A CPU allocator that counts live bytes, for tests of predicted memory.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace shadowgraph {

// Counts allocated minus freed bytes. Stays installed until the process ends; ctest runs each test in its own process.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& install() {
    static auto* counting = [] {
      auto* made = new CountingAllocator;
      c10::SetCPUAllocator(made, /*priority=*/100);
      return made;
    }();
    return *counting;
  }

  // oneDNN allocates scratch memory through raw_allocate, which requires the data pointer as context.
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    const std::lock_guard lock(mutex_);
    bytes_[data] = static_cast<int64_t>(bytes);
    live += static_cast<int64_t>(bytes);
    most = std::max(most, live);
    report(data, static_cast<int64_t>(bytes));
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

  int64_t live = 0;
  int64_t most = 0;  // since the last reset

 private:
  // Reports to libtorch's profiler, as the replaced allocator does.
  static void report(void* data, int64_t bytes) {
    if (c10::memoryProfilingEnabled()) {
      c10::reportMemoryUsageToProfiler(data, bytes, 0, 0, c10::Device(c10::DeviceType::CPU));
    }
  }
  static void give_back(void* data) {
    CountingAllocator& counting = install();
    {
      const std::lock_guard lock(counting.mutex_);
      const auto block = counting.bytes_.find(data);
      if (block != counting.bytes_.end()) {
        counting.live -= block->second;
        report(data, -block->second);
        counting.bytes_.erase(block);
      }
    }
    c10::free_cpu(data);
  }
  std::mutex mutex_;
  std::unordered_map<const void*, int64_t> bytes_;
};

}  // namespace shadowgraph
