// Preloaded into the tool, this library runs the tool's main in a child process per request, so that libtorch, whose
// loading takes longer than most runs, is loaded once. tests/python/limited_runs.py is the client.
//
//     request, on stdin: a number n, then n strings: folder, file for stdout, file for stderr, seconds of the processor,
//     seconds in all, bytes of address space, and the arguments, the tool's name first; each ends with a NUL
//     answer, on stdout: "STATUS RESIDENT\n", as wait4 gives them, RESIDENT in KB
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
Main tools_main;

constexpr size_t kLimits = 6;  // strings before the arguments

bool read_string(std::string& text) {
  text.clear();
  for (int c = std::fgetc(stdin); c != EOF; c = std::fgetc(stdin)) {
    if (c == 0) return true;
    text += static_cast<char>(c);
  }
  return false;
}

std::vector<std::string> read_request() {
  std::string text;
  std::vector<std::string> request;
  if (!read_string(text)) return request;
  request.resize(std::stoul(text));
  for (std::string& one : request) {
    if (!read_string(one)) std::exit(1);
  }
  return request;
}

void limit(int resource, const std::string& most) {
  const rlimit bounds{std::stoul(most), std::stoul(most)};
  setrlimit(static_cast<__rlimit_resource>(resource), &bounds);
}

void point(int descriptor, const char* path, int flags) {
  const int file = open(path, flags, 0600);
  if (file < 0 || dup2(file, descriptor) < 0) _exit(125);
  close(file);
}

// In the child: applies the request, then runs the tool's main.
int run(const std::vector<std::string>& request, char** environment) {
  if (chdir(request[0].c_str()) != 0) _exit(125);
  std::freopen("/dev/null", "r", stdin);
  point(STDOUT_FILENO, request[1].c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  point(STDERR_FILENO, request[2].c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  limit(RLIMIT_CPU, request[3]);
  alarm(static_cast<unsigned>(std::stoul(request[4])));
  limit(RLIMIT_AS, request[5]);
  limit(RLIMIT_CORE, "0");
  std::vector<char*> arguments;
  for (size_t i = kLimits; i < request.size(); ++i) arguments.push_back(const_cast<char*>(request[i].c_str()));
  arguments.push_back(nullptr);
  return tools_main(static_cast<int>(arguments.size()) - 1, arguments.data(), environment);
}

int serve(int, char**, char** environment) {
  while (true) {
    const std::vector<std::string> request = read_request();
    if (request.size() <= kLimits) return 0;
    const pid_t child = fork();
    if (child == 0) std::exit(run(request, environment));
    int status = 0;
    rusage usage{};
    if (child < 0 || wait4(child, &status, 0, &usage) != child) return 1;
    std::printf("%d %ld\n", status, usage.ru_maxrss);
    std::fflush(stdout);
  }
}

}  // namespace

// glibc calls this with the program's main; the first loaded definition takes precedence.
extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*end)(),
                                 void* stack) {
  tools_main = main;
  unsetenv("LD_PRELOAD");
  const auto start = reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(serve, argc, argv, init, fini, end, stack);
}
