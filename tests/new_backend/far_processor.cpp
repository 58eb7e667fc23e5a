// The process that runs the kernels of far_backend.h: far_processor SOCKET MEMORY ADDRESS BYTES
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <vector>

#include "tests/new_backend/far_messages.h"

namespace {

using Kernel = void (*)(void* const* data, const int64_t* sizes, const int64_t* strides, const int64_t* scalars,
                        int64_t begin, int64_t end);

int64_t load(const int64_t* words) {
  std::string path(static_cast<size_t>(words[0]), '\0');
  std::memcpy(path.data(), words + 1, path.size());
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "far_processor: %s\n", dlerror());
  return library == nullptr ? 0 : reinterpret_cast<int64_t>(dlsym(library, "shadowgraph_kernel"));
}

int64_t launch(const int64_t* words) {
  const auto kernel = reinterpret_cast<Kernel>(words[0]);
  const int64_t range = words[1], operands = words[2], sizes = words[3], strides = words[4];
  const int64_t* next = words + 6;
  std::vector<void*> data;
  for (int64_t i = 0; i < operands; ++i) data.push_back(reinterpret_cast<void*>(*next++));
  int64_t wrong = 0;
  data.push_back(&wrong);
  kernel(data.data(), next, next + sizes, next + sizes + strides, 0, range);
  return wrong;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const int socket = std::atoi(arguments[1]);
  auto* const address = reinterpret_cast<void*>(std::strtoull(arguments[3], nullptr, 0));
  const size_t bytes = std::strtoull(arguments[4], nullptr, 0);
  if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, std::atoi(arguments[2]), 0) !=
      address) {
    std::perror("far_processor: mmap");
    return 1;
  }
  std::vector<int64_t> words(far::kMostWords);
  int64_t launches = 0;
  while (recv(socket, words.data(), words.size() * sizeof(int64_t), 0) > 0) {
    int64_t answer = launches;
    if (words[0] == far::kLoad) answer = load(words.data() + 1);
    if (words[0] == far::kLaunch) answer = launch(words.data() + 1), ++launches;
    if (send(socket, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer)) return 1;
  }
  return 0;
}
