#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <spawn.h>
#include <thread>
#include <unistd.h>

#include "kernels/compiler/program_source.h"
#include "shadowgraph/kernels/program.h"

extern char** environ;

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

// -nostdlib: the functions that kernels call (memset, erf) are in the process.
constexpr const char* kFixedFlags[] = {"-std=gnu++17",       "-w", "-fPIC", "-shared", "-nostdlib", "-fno-exceptions",
                                       "-fvisibility=hidden"};

std::string in_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string candidate = std::string(rest.substr(0, end)) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0 && fs::is_regular_file(candidate)) return candidate;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return "";
}

// Returns the processor's model and features, on which -march=native depends.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, found;
  while (std::getline(file, line) && !line.empty()) {
    if (line.starts_with("model name") || line.starts_with("flags") || line.starts_with("Features"))
      found += line + "\n";
  }
  return found;
}

// Identifies the compiler binary by path, size and time: querying its version takes longer than loading all kernels.
std::string file_identity(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  struct stat status {};
  if (error || ::stat(real.c_str(), &status) != 0) return path;
  return fmt::format("{} {} {}.{}", real.string(), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

class CompilerBackend : public KernelBackend {
 public:
  explicit CompilerBackend(const CompilerBackendOptions& options) : timeout_(options.timeout) {
    std::string wanted = options.compiler;
    if (const char* named = std::getenv("CXX"); wanted.empty() && named != nullptr) wanted = named;
    if (!wanted.empty()) {
      compiler_ = in_path(wanted);
    } else {
      for (const char* name : {"g++", "c++", "clang++"}) {
        if (compiler_.empty()) compiler_ = in_path(name);
      }
    }
    if (compiler_.empty()) {
      problem_ = wanted.empty() ? "no C++ compiler found (c++, g++, clang++); install one, or set CXX"
                                : "the compiler '" + wanted + "' cannot be run; install it, or set CXX";
      return;
    }
    arguments_ = {compiler_};
    for (const char* flag : kFixedFlags) arguments_.emplace_back(flag);
    const auto& flags = options.flags.empty() ? kernel_flags() : options.flags;
    arguments_.insert(arguments_.end(), flags.begin(), flags.end());
    identity_ =
        fmt::format("generator {}\nabi 1 {} bits\ncompiler {}\nflags {}\n{}", kGeneratorVersion, 8 * sizeof(void*),
                    file_identity(compiler_), fmt::join(arguments_.begin() + 1, arguments_.end(), " "), processor());
  }

  const std::string& identity() const override { return identity_; }
  const std::string& problem() const override { return problem_; }
  std::string source(const KernelProgram& program) const override { return program_source(program); }

  std::string compile(const std::string& source, const std::string& library) const override {
    if (!problem_.empty()) return problem_;
    std::vector<std::string> arguments = arguments_;
    arguments.insert(arguments.end(), {"-o", library, source});
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    const std::string log = library + ".log";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    // The compiler gets a separate process group, so that a timeout can end it with its children.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    pid_t child = 0;
    const int failed = ::posix_spawn(&child, compiler_.c_str(), &actions, &attributes, raw.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0)
      return fmt::format("'{}' cannot be started: {}", compiler_, std::generic_category().message(failed));
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    int status = 0;
    std::chrono::milliseconds pause(1);
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        ::kill(-child, SIGKILL);
        ::waitpid(child, &status, 0);
        std::remove(log.c_str());
        return fmt::format("'{}' did not finish within {} ms", compiler_, timeout_.count());
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause + pause / 4 + std::chrono::milliseconds(1), std::chrono::milliseconds(10));
    }
    std::string output;
    if (std::ifstream file(log); file) {
      output.assign(std::istreambuf_iterator<char>(file), {});
      output.resize(std::min<size_t>(output.size(), 2000));
    }
    std::remove(log.c_str());
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
    return fmt::format("'{}' failed ({}): {}", compiler_, status, output);
  }

  KernelFunction load(const std::string& library) const override {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw UnsupportedError(fmt::format("cannot load '{}': {}", library, ::dlerror()));
    void* symbol = ::dlsym(handle, kKernelSymbol);
    if (symbol == nullptr) {
      ::dlclose(handle);
      throw UnsupportedError(fmt::format("'{}' does not define {}", library, kKernelSymbol));
    }
    return reinterpret_cast<KernelFunction>(symbol);
  }

 private:
  std::string compiler_;
  std::vector<std::string> arguments_;
  std::string identity_, problem_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

// -ffp-contract=off: eager rounds products before adding; where it does not, the program uses kMultiplyAdd.
// -fno-tree-pre: without it, loops with tanh and expm1 are not vectorized (tanh: 0.29 x eager instead of 3.7 x).
const std::vector<std::string>& kernel_flags() {
  static const std::vector<std::string> flags = {
      "-O3",     "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
      "-fwrapv", "-fopenmp-simd", "-fno-tree-pre"};
  return flags;
}

std::shared_ptr<const KernelBackend> compiler_backend(const CompilerBackendOptions& options) {
  return std::make_shared<CompilerBackend>(options);
}

}  // namespace shadowgraph
