// Counts the bytes that one thread allocates from libtorch's CPU allocator, whichever thread frees them. Loaded with
// ctypes; the allocator stays installed until the process ends. Allocations by gloo's threads are not counted.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <mutex>
#include <thread>
#include <unordered_map>

namespace {

class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    if (std::this_thread::get_id() == counted_) {
      const std::lock_guard lock(mutex_);
      bytes_[data] = static_cast<int64_t>(bytes);
      live += static_cast<int64_t>(bytes);
    }
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

  int64_t live = 0;
  static Counting& here() {
    static auto* counting = new Counting;
    return *counting;
  }

 private:
  static void give_back(void* data) {
    {
      Counting& counting = here();
      const std::lock_guard lock(counting.mutex_);
      if (const auto block = counting.bytes_.find(data); block != counting.bytes_.end()) {
        counting.live -= block->second;
        counting.bytes_.erase(block);
      }
    }
    c10::free_cpu(data);
  }
  const std::thread::id counted_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::unordered_map<const void*, int64_t> bytes_;
};

}  // namespace

extern "C" void install() { c10::SetCPUAllocator(&Counting::here(), /*priority=*/100); }
extern "C" int64_t live_bytes() { return Counting::here().live; }
