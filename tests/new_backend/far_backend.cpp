#include "tests/new_backend/far_backend.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <spawn.h>
#include <unistd.h>

#include "tests/new_backend/far_messages.h"

extern char** environ;

namespace far {
namespace {

using shadowgraph::KernelFunction;
using shadowgraph::KernelLaunch;
using shadowgraph::UnsupportedError;

constexpr size_t kBytes = size_t{2} << 30;  // of address space; pages are allocated on first access
constexpr size_t kAlignment = 64;

// Memory shared with another process: first fit, never returned to the system.
class SharedMemory final : public c10::Allocator {
 public:
  static SharedMemory& get() {
    static auto& memory = *new SharedMemory();
    return memory;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const size_t wanted = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    const std::lock_guard lock(mutex_);
    const auto hole = std::ranges::find_if(free_, [&](const auto& hole) { return hole.second >= wanted; });
    TORCH_CHECK(hole != free_.end(), "the shared memory is full");
    const auto [at, size] = *hole;
    free_.erase(hole);
    if (size > wanted) free_.emplace(at + wanted, size - wanted);
    used_.emplace(at, wanted);
    return {base_ + at, base_ + at, &SharedMemory::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &SharedMemory::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  int file() const { return file_; }
  char* base() const { return base_; }

 private:
  SharedMemory() : file_(memfd_create("shadowgraph_far", MFD_CLOEXEC)) {
    TORCH_CHECK(file_ >= 0 && ftruncate(file_, kBytes) == 0, "no memory to share");
    void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    TORCH_CHECK(mapped != MAP_FAILED, "no memory to share");
    base_ = static_cast<char*>(mapped);
    free_.emplace(0, kBytes);
  }

  static void release(void* address) {
    SharedMemory& memory = get();
    const std::lock_guard lock(memory.mutex_);
    const auto found = memory.used_.find(static_cast<size_t>(static_cast<char*>(address) - memory.base_));
    auto at = memory.free_.emplace(*found).first;
    memory.used_.erase(found);
    const auto next = std::next(at);
    if (next != memory.free_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      memory.free_.erase(next);
    }
    if (at == memory.free_.begin()) return;
    const auto before = std::prev(at);
    if (before->first + before->second != at->first) return;
    before->second += at->second;
    memory.free_.erase(at);
  }

  const int file_;
  char* base_ = nullptr;
  std::mutex mutex_;
  std::map<size_t, size_t> free_, used_;  // offset -> bytes
};

// Generated C++ is the same as for the host; only the process that runs it differs.
class Backend final : public shadowgraph::KernelBackend {
 public:
  explicit Backend(const Processor& processor)
      : processor_(processor), compiler_(shadowgraph::compiler_backend()), identity_("far\n" + compiler_->identity()) {}

  c10::DeviceType device() const override { return c10::kPrivateUse1; }
  const std::string& identity() const override { return identity_; }
  const std::string& problem() const override { return compiler_->problem(); }
  std::string source(const shadowgraph::KernelProgram& program) const override { return compiler_->source(program); }
  std::string compile(const std::string& source, const std::string& library) const override {
    return compiler_->compile(source, library);
  }

  KernelFunction load(const std::string& library) const override {
    std::vector<int64_t> words{kLoad, static_cast<int64_t>(library.size())};
    words.resize(2 + (library.size() + sizeof(int64_t) - 1) / sizeof(int64_t));
    std::memcpy(words.data() + 2, library.data(), library.size());
    const int64_t handle = processor_.ask(words);
    if (handle == 0) throw UnsupportedError("the other process cannot load " + library);
    return reinterpret_cast<KernelFunction>(handle);
  }

  bool launch(KernelFunction kernel, const KernelLaunch& launch) const override {
    std::vector<int64_t> words{kLaunch, reinterpret_cast<int64_t>(kernel), launch.range};
    for (const size_t length :
         {launch.data.size(), launch.sizes.size(), launch.strides.size(), launch.scalars.size()}) {
      words.push_back(static_cast<int64_t>(length));
    }
    for (void* const operand : launch.data) {
      if (operand != nullptr && !processor_.shares(operand))
        throw UnsupportedError("an operand outside of the shared memory");
      words.push_back(reinterpret_cast<int64_t>(operand));
    }
    for (const auto& numbers : {launch.sizes, launch.strides, launch.scalars}) {
      words.insert(words.end(), numbers.begin(), numbers.end());
    }
    return processor_.ask(words) == 0;
  }

 private:
  const Processor& processor_;
  const std::shared_ptr<const shadowgraph::KernelBackend> compiler_;
  const std::string identity_;
};

}  // namespace

Processor::Processor(const std::string& program) {
  const SharedMemory& memory = SharedMemory::get();
  int sockets[2];
  TORCH_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "no sockets");
  socket_ = sockets[0];
  // The child finds its sockets and memory at these descriptors.
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], 30);
  posix_spawn_file_actions_adddup2(&actions, memory.file(), 31);
  std::vector<std::string> arguments{program, "30", "31", std::to_string(reinterpret_cast<uintptr_t>(memory.base())),
                                     std::to_string(kBytes)};
  std::vector<char*> raw;
  for (std::string& argument : arguments) raw.push_back(argument.data());
  raw.push_back(nullptr);
  const int failed = posix_spawn(&pid_, program.c_str(), &actions, nullptr, raw.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(sockets[1]);
  TORCH_CHECK(failed == 0, program, " cannot be started: ", std::strerror(failed));
  c10::SetCPUAllocator(&SharedMemory::get(), /*priority=*/1);
}

Processor::~Processor() {
  close(socket_);
  waitpid(pid_, nullptr, 0);
}

int64_t Processor::ask(std::span<const int64_t> words) const {
  TORCH_CHECK(words.size() <= kMostWords);
  const std::lock_guard lock(mutex_);
  int64_t answer = 0;
  if (send(socket_, words.data(), words.size_bytes(), MSG_NOSIGNAL) != static_cast<ssize_t>(words.size_bytes()) ||
      recv(socket_, &answer, sizeof(answer), 0) != sizeof(answer)) {
    throw UnsupportedError("the process that runs kernels has ended");
  }
  return answer;
}

bool Processor::shares(const void* address) const {
  const char* const base = SharedMemory::get().base();
  return address >= base && address < base + kBytes;
}

int64_t Processor::launches() const {
  const int64_t question = kLaunches;
  return ask({&question, 1});
}

std::shared_ptr<const shadowgraph::KernelBackend> backend(const Processor& processor) {
  return std::make_shared<Backend>(processor);
}

}  // namespace far
