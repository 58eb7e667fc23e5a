// Tests the kernel cache: hits within and across processes, broken and foreign entries, a compiler that fails or hangs,
// and a full disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sched.h>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include "shadowgraph/error.h"
#include "shadowgraph/kernels/program.h"
#include "support/hash.h"
#include "tests/kernels/temporary_folder.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A kernel program for x + number on contiguous floats.
KernelProgram adding(double number) {
  KernelProgram program;
  program.operands = {{.dtype = c10::kFloat}, {.dtype = c10::kFloat, .written = true}};
  program.expressions = {{.operation = KernelOperation::kLoad, .type = c10::kFloat},
                         {.operation = KernelOperation::kConstant, .type = c10::kFloat, .number = number},
                         {.operation = KernelOperation::kAdd, .type = c10::kFloat, .operands = {0, 1}}};
  program.stores = {{.operand = 1, .expression = 2}};
  return program;
}

float run(const KernelRef& kernel, float x) {
  float result = 0;
  void* data[] = {&x, &result};
  const int64_t size = 1;
  const int64_t strides[] = {1, 1};
  kernel->function()(data, &size, strides, nullptr, 0, 1);
  return result;
}

std::vector<fs::path> files_of(const std::string& folder, const std::string& ending) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ending) found.push_back(entry.path());
  }
  return found;
}

TEST(KernelCache, AnEntryIsSourceLibraryAndManifestAndIsFoundAgain) {
  const TemporaryFolder folder;
  {
    const auto cache = folder.cache();
    const KernelRef kernel = cache->find("aten::add_Tensor", adding(1));
    ASSERT_EQ(kernel->state(), Kernel::State::kReady) << kernel->problem();
    EXPECT_EQ(run(kernel, 2), 3);
    EXPECT_EQ(cache->find("aten::add_Tensor", adding(1)), kernel);
    EXPECT_EQ(cache->stats().compiled, 1);
    EXPECT_EQ(cache->stats().memory_hits, 1);
  }
  for (const char* ending : {".cpp", ".so", ".json"}) EXPECT_EQ(files_of(folder.path(), ending).size(), 1U) << ending;
  const auto again = folder.cache();
  EXPECT_EQ(run(again->find("aten::add_Tensor", adding(1)), 2), 3);
  EXPECT_EQ(again->stats().compiled, 0);
  EXPECT_EQ(again->stats().loaded, 1);
  EXPECT_GT(again->stats().load_seconds, 0);
  const auto entries = list_kernel_cache(folder.path(), true);
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].problem, "");
  EXPECT_EQ(clear_kernel_cache(folder.path(), /*dry_run=*/true).size(), 1U);
  EXPECT_EQ(clear_kernel_cache(folder.path()).size(), 1U);
  EXPECT_TRUE(files_of(folder.path(), ".so").empty());
}

// Breaks an entry in every possible way: it is skipped, counted and rebuilt.
TEST(KernelCache, BrokenEntriesAreMadeAgain) {
  const auto broken_by = [](const std::function<void(const std::string&)>& damage) {
    const TemporaryFolder folder;
    folder.cache()->find("group", adding(1));
    damage(folder.path());
    EXPECT_FALSE(list_kernel_cache(folder.path(), true).at(0).problem.empty());
    const auto cache = folder.cache();
    const KernelRef kernel = cache->find("group", adding(1));
    EXPECT_EQ(run(kernel, 1), 2);
    EXPECT_EQ(cache->stats().rejected, 1);
    EXPECT_EQ(cache->stats().compiled, 1);
    EXPECT_EQ(list_kernel_cache(folder.path(), true).at(0).problem, "");
  };
  broken_by([](const std::string& path) {
    const fs::path library = files_of(path, ".so").at(0);
    fs::resize_file(library, fs::file_size(library) / 2);
  });
  broken_by([](const std::string& path) {
    std::fstream file(files_of(path, ".so").at(0), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(1000);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(1000);
    file.put(byte);
  });
  broken_by([](const std::string& path) { fs::remove(files_of(path, ".so").at(0)); });
  broken_by([](const std::string& path) { std::ofstream(files_of(path, ".json").at(0)) << "{\"key\": 3"; });
}

TEST(KernelCache, KeysOfOneHashAreToldApart) {
  const TemporaryFolder folder;
  const auto all_alike = [&] {
    return std::make_shared<KernelCache>(
        KernelCacheOptions{.directory = folder.path(), .background = false, .hash = [](const auto&) { return 7; }});
  };
  for (int round = 0; round < 2; ++round) {
    const auto cache = all_alike();
    EXPECT_EQ(run(cache->find("group", adding(1)), 1), 2);
    EXPECT_EQ(run(cache->find("group", adding(5)), 1), 6);
    EXPECT_EQ(run(cache->find("group", adding(1)), 1), 2);
  }
}

// Simulates a folder from another processor, or a replaced compiler.
TEST(KernelCache, WhatAnotherCompilerMadeIsNotTaken) {
  const TemporaryFolder folder;
  folder.cache()->find("group", adding(1));
  const auto other = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path(), .background = false},
                                                   compiler_backend({.flags = {"-O1"}}));
  EXPECT_EQ(run(other->find("group", adding(1)), 1), 2);
  EXPECT_EQ(other->stats().loaded, 0);
  EXPECT_EQ(other->stats().compiled, 1);
}

TEST(KernelCache, ReadOnlyAndOffWriteNothing) {
  for (const KernelCacheMode mode : {KernelCacheMode::kReadOnly, KernelCacheMode::kOff}) {
    const TemporaryFolder folder;
    KernelCache cache({.directory = folder.path(), .mode = mode, .background = false});
    EXPECT_EQ(run(cache.find("group", adding(1)), 1), 2);
    EXPECT_TRUE(files_of(folder.path(), ".so").empty());
  }
}

TEST(KernelCache, ACompilerThatFailsHangsOrIsNotThereIsNoError) {
  const TemporaryFolder folder;
  const auto with = [&](const std::string& script, std::chrono::milliseconds timeout) {
    const std::string compiler = folder.path() + "/compiler";
    std::ofstream(compiler) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(compiler, fs::perms::owner_all);
    KernelCache cache({.directory = folder.path(), .background = false},
                      compiler_backend({.compiler = compiler, .timeout = timeout}));
    const KernelRef kernel = cache.find("group", adding(1));
    EXPECT_EQ(kernel->function(), nullptr);
    EXPECT_EQ(kernel->state(), Kernel::State::kFailed);
    EXPECT_EQ(cache.stats().failed, 1);
    EXPECT_EQ(cache.find("group", adding(1)), kernel) << "compiled again";
    EXPECT_EQ(cache.stats().failed, 1);
    return kernel->problem();
  };
  EXPECT_THAT(with("echo no such thing >&2; exit 1", std::chrono::seconds(20)), HasSubstr("no such thing"));
  EXPECT_THAT(with("sleep 60", std::chrono::milliseconds(200)), HasSubstr("did not finish within 200 ms"));
  EXPECT_THAT(compiler_backend({.compiler = "/nowhere/g++"})->problem(), HasSubstr("/nowhere/g++"));
}

// The folder is not writable, as on a full disk.
TEST(KernelCache, AFolderThatTakesNothingLeavesKernelsToThisProcess) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "in the way";
  KernelCache cache({.directory = file, .background = false});
  EXPECT_EQ(run(cache.find("group", adding(1)), 1), 2);
  EXPECT_GT(cache.stats().write_errors, 0);
}

// A file system of 32 KiB, in a child process with private mounts: the library does not fit.
TEST(KernelCache, AFullDiskLeavesKernelsToThisProcess) {
  const TemporaryFolder folder;
  constexpr int kNoMounts = 77;
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(kNoMounts);
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=32k") != 0) ::_exit(kNoMounts);
    const auto cache = folder.cache();
    std::ofstream(folder.path() + "/full") << std::string(24 << 10, 'x');
    const KernelRef kernel = cache->find("group", adding(1));
    const bool right = kernel->function() != nullptr && run(kernel, 1) == 2;
    const bool told = cache->stats().write_errors > 0 && cache->stats().compiled == 1;
    const bool nothing = list_kernel_cache(folder.path(), true).empty();
    ::_exit(!right ? 1 : !told ? 2 : !nothing ? 3 : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoMounts) GTEST_SKIP() << "this process has no permission to mount";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The manifest lists a library that cannot be loaded on this machine.
TEST(KernelCache, ALibraryThatDoesNotLoadIsMadeAgain) {
  const TemporaryFolder folder;
  folder.cache()->find("group", adding(1));
  const std::string garbage = "no library";
  std::ofstream(files_of(folder.path(), ".so").at(0), std::ios::trunc) << garbage;
  const fs::path manifest = files_of(folder.path(), ".json").at(0);
  std::string text;
  std::getline(std::ifstream(manifest), text, '\0');
  const size_t at = text.find("\"sha256\": \"") + 11;
  text.replace(at, 64, sha256(garbage));
  std::ofstream(manifest, std::ios::trunc) << text;
  EXPECT_EQ(list_kernel_cache(folder.path(), true).at(0).problem, "") << "the problem is detected only on loading";
  const auto cache = folder.cache();
  EXPECT_EQ(run(cache->find("group", adding(1)), 1), 2);
  EXPECT_EQ(cache->stats().rejected, 1);
  EXPECT_EQ(cache->stats().compiled, 1);
}

// Its leftover lock and temporary files do not affect other processes.
TEST(KernelCache, AProcessThatIsKilledWhileItCompiles) {
  const TemporaryFolder folder;
  const std::string compiler = folder.path() + "/compiler";
  std::ofstream(compiler) << "#!/bin/sh\ncd " << folder.path()
                          << "\n[ -e begun ] && exec c++ \"$@\"\ntouch begun\nsleep 5\n";
  fs::permissions(compiler, fs::perms::owner_all);
  const auto made = [&] {
    return std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path(), .background = false},
                                         compiler_backend({.compiler = compiler}));
  };
  const pid_t pid = ::fork();
  if (pid == 0) {
    made()->find("group", adding(1));
    ::_exit(0);
  }
  while (!fs::exists(folder.path() + "/begun")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  const auto cache = made();
  EXPECT_EQ(run(cache->find("group", adding(1)), 1), 2);
  EXPECT_EQ(list_kernel_cache(folder.path(), true).size(), 1U);
}

// The child compiles the kernel that its parent is compiling, even if the parent ends first.
TEST(KernelCache, AProcessThatForksWhileItCompiles) {
  for (const bool parent_waits : {true, false}) {
    const TemporaryFolder folder;
    const std::string compiler = folder.path() + "/compiler";
    std::ofstream(compiler) << "#!/bin/sh\ntouch " << folder.path() << "/begun\nsleep 0.3\nexec c++ \"$@\"\n";
    fs::permissions(compiler, fs::perms::owner_all);
    const pid_t parent = ::fork();
    if (parent == 0) {
      ::alarm(60);  // ends a process that waits for itself
      const auto cache = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path()},
                                                       compiler_backend({.compiler = compiler}));
      const KernelRef kernel = cache->find("group", adding(1));
      while (!fs::exists(folder.path() + "/begun")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(60);
        cache->wait();
        const bool right = kernel->state() == Kernel::State::kReady && run(kernel, 1) == 2;
        std::ofstream(folder.path() + (right ? "/right" : "/wrong"));
        ::_exit(0);
      }
      if (parent_waits) ::waitpid(child, nullptr, 0);
      ::_exit(0);
    }
    ::waitpid(parent, nullptr, 0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto ended = [&](const char* name) { return fs::exists(folder.path() + name); };
    while (!ended("/right") && !ended("/wrong") && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(ended("/right")) << parent_waits;
  }
}

TEST(KernelCache, TwoProcessesCompileOnce) {
  const TemporaryFolder folder;
  // Each child reports its number of compilations as its exit status.
  const auto child = [&] {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    const auto cache = folder.cache();
    const KernelRef kernel = cache->find("group", adding(3));
    const bool right = kernel->function() != nullptr && run(kernel, 1) == 4;
    ::_exit(right ? static_cast<int>(cache->stats().compiled) : 9);
  };
  const pid_t children[] = {child(), child(), child()};
  int compiled = 0;
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    compiled += WEXITSTATUS(status);
  }
  EXPECT_EQ(compiled, 1);
}

TEST(KernelCache, ThreadsGetOneKernel) {
  const TemporaryFolder folder;
  const auto cache = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path()});
  std::vector<std::thread> threads;
  std::vector<KernelRef> found(4);
  for (size_t t = 0; t < found.size(); ++t) {
    threads.emplace_back([&, t] { found[t] = cache->find("group", adding(2)); });
  }
  for (std::thread& thread : threads) thread.join();
  cache->wait();
  for (const KernelRef& kernel : found) EXPECT_EQ(kernel, found[0]);
  EXPECT_EQ(cache->stats().compiled, 1);
  EXPECT_EQ(run(found[0], 1), 3);
}

TEST(KernelCache, KeepsItsLimitByItself) {
  const TemporaryFolder folder;
  const auto cache = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path(), .max_bytes = 1});
  for (const double number : {1.0, 2.0, 3.0}) cache->find("group", adding(number));
  cache->wait();
  EXPECT_LT(list_kernel_cache(folder.path(), false).size(), 3U);
}

TEST(KernelCache, TheLimitTakesTheLeastRecentlyUsed) {
  const TemporaryFolder folder;
  for (const double number : {1.0, 2.0, 3.0}) folder.cache()->find("group", adding(number));
  int64_t bytes = 0;
  for (const auto& entry : list_kernel_cache(folder.path(), false)) bytes += entry.bytes;
  EXPECT_EQ(prune_kernel_cache(folder.path(), bytes).size(), 0U);
  EXPECT_EQ(prune_kernel_cache(folder.path(), bytes - 1, /*dry_run=*/true).size(), 1U);
  EXPECT_EQ(prune_kernel_cache(folder.path(), bytes - 1).size(), 1U);
  EXPECT_EQ(list_kernel_cache(folder.path(), true).size(), 2U);
}

std::string problem_of(const std::string& folder) {
  KernelCache cache({.directory = folder, .background = false});
  EXPECT_EQ(run(cache.find("group", adding(1)), 1), 2) << "compiled for this process";
  EXPECT_EQ(cache.stats().loaded, 0);
  return cache.stats().write_errors > 0 ? "not stored" : "";
}

// Folders and files that other users could have put there.
TEST(KernelCache, LoadsNothingThatOthersCanWrite) {
  using fs::perms;
  const TemporaryFolder folder;
  folder.cache()->find("group", adding(1));
  EXPECT_EQ(fs::status(folder.path() + "/group").permissions(), perms::owner_all);
  const fs::path library = files_of(folder.path(), ".so").at(0);
  fs::permissions(library, perms::group_write, fs::perm_options::add);
  EXPECT_THAT(list_kernel_cache(folder.path(), true).at(0).problem, HasSubstr("other users can write"));
  const auto again = folder.cache();
  again->find("group", adding(1));
  EXPECT_EQ(again->stats().rejected, 1);
  // A link in place of the library, with the same content.
  const fs::path elsewhere = folder.path() + "/elsewhere";
  fs::rename(library, elsewhere);
  fs::create_symlink(elsewhere, library);
  EXPECT_THAT(list_kernel_cache(folder.path(), true).at(0).problem, HasSubstr("symbolic link"));

  fs::permissions(folder.path() + "/group", perms::others_write, fs::perm_options::add);
  EXPECT_EQ(problem_of(folder.path()), "not stored");
  fs::permissions(folder.path() + "/group", perms::owner_all);
  fs::permissions(folder.path(), perms::all);
  EXPECT_EQ(problem_of(folder.path()), "not stored");
}

TEST(KernelCache, AFolderOfAnotherUserIsNotUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give folders away";
  const TemporaryFolder folder;
  folder.cache()->find("group", adding(1));
  ASSERT_EQ(::chown(folder.path().c_str(), 12345, 12345), 0);
  EXPECT_EQ(problem_of(folder.path()), "not stored");
  ASSERT_EQ(::chown(folder.path().c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(files_of(folder.path(), ".so").at(0).c_str(), 12345, 12345), 0);
  EXPECT_THAT(list_kernel_cache(folder.path(), true).at(0).problem, HasSubstr("another user (uid 12345)"));
}

// With umask 0 others could otherwise write to all that is made.
TEST(KernelCache, FilesArePrivateWhateverTheUmask) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(0);
  const std::string directory = folder.path() + "/new/cache";
  KernelCache({.directory = directory, .background = false}).find("group", adding(1));
  ::umask(before);
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.path().extension() == ".cpp") continue;  // never read
    EXPECT_EQ(entry.status().permissions() & (fs::perms::group_write | fs::perms::others_write), fs::perms::none)
        << entry.path();
  }
  KernelCache again({.directory = directory, .background = false});
  again.find("group", adding(1));
  EXPECT_EQ(again.stats().loaded, 1);
}

// A cache in a folder with contents: compiling, pruning and clearing leave them.
TEST(KernelCache, FilesOfOthersStay) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() + "/project");
  fs::create_directories(folder.path() + "/group");
  std::vector<std::string> names = {"/project/package.json", "/project/main.cpp", "/project/kernel.cpp",
                                    "/group/package.json", "/a.lock"};
  for (const std::string& name : names) std::ofstream(folder.path() + name) << "mine";
  fs::create_symlink("../project", folder.path() + "/group/.shadowgraph-link");
  EXPECT_THROW(clear_kernel_cache(folder.path()), FileError) << "not a cache yet";
  {
    KernelCache cache({.directory = folder.path(), .max_bytes = 1, .background = false});
    for (const double number : {1.0, 2.0}) cache.find("group", adding(number));
    EXPECT_EQ(cache.stats().write_errors, 0);
  }
  prune_kernel_cache(folder.path(), 0);
  clear_kernel_cache(folder.path());
  names.emplace_back("/shadowgraph-kernels.txt");
  std::vector<std::string> left;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.is_regular_file()) left.push_back(entry.path().string().substr(folder.path().size()));
  }
  EXPECT_THAT(left, ::testing::UnorderedElementsAreArray(names));
}

}  // namespace
}  // namespace shadowgraph
