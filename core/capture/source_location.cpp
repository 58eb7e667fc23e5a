#include "core/capture/source_location.h"

#include <c10/util/hash.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unistd.h>
#include <unordered_set>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Marks a source that stands for a noted stack. No path of a file begins so.
constexpr std::string_view kNoted = "\x01stack ";

// Returns the folder that shadowgraph was compiled in. Its own frames are known by it where it is linked statically.
std::string_view own_folder() {
  constexpr std::string_view file = __FILE__;
  constexpr std::string_view name = "core/capture/source_location.cpp";
  return file.ends_with(name) ? file.substr(0, file.size() - name.size()) : std::string_view();
}

bool is_library(std::string_view path) {
  const std::string name = std::filesystem::path(path).filename();
  constexpr std::array kNames = {"libtorch",  "libc10",   "libshadowgraph", "libstdc++", "libc.so",
                                 "libc++",    "libgomp",  "libm.so",        "ld-linux",  "libpthread",
                                 "libpython", "libgcc_s", "linux-vdso"};
  return std::any_of(kNames.begin(), kNames.end(), [&](const char* known) { return name.starts_with(known); });
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Says whether a file is a header of libtorch or of the standard library, which is compiled into the user's program, or
// shadowgraph's own.
bool is_others_source(std::string_view file) {
  for (const char* part : {"/torch/include/", "/include/torch/", "/include/ATen/", "/include/c10/",
                           "/csrc/api/include/", "/include/c++/", "/bits/", "/include/shadowgraph/"}) {
    if (contains(file, part)) return true;
  }
  const std::string_view own = own_folder();
  if (own.empty() || !file.starts_with(own)) return false;
  constexpr std::array kRooms = {"core/", "ir/", "include/"};
  return std::any_of(kRooms.begin(), kRooms.end(),
                     [&](const char* room) { return file.substr(own.size()).starts_with(room); });
}

// Quotes a text for a shell, in single quotes.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

struct PipeCloser {
  void operator()(FILE* pipe) const { pclose(pipe); }
};

std::vector<std::string> lines_of_command(const std::string& command) {
  const std::unique_ptr<FILE, PipeCloser> pipe(popen(command.c_str(), "r"));
  std::vector<std::string> lines;
  if (!pipe) return lines;
  char* line = nullptr;
  size_t capacity = 0;
  for (ssize_t size = 0; (size = getline(&line, &capacity, pipe.get())) > 0;) {
    lines.emplace_back(line, line[size - 1] == '\n' ? size - 1 : size);
  }
  std::free(line);
  return lines;
}

// A file that is gone with it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / "shadowgraph-addresses-XXXXXX") {
    const int file = mkstemp(path_.data());
    if (file < 0) throw FileError("cannot write " + path_);
    const bool written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(file);
    if (!written) throw FileError("cannot write " + path_);
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns "file:line" without what binutils adds: " (discriminator 2)". Empty where binutils knows none.
std::string place_of(std::string_view line) {
  line = line.substr(0, std::min(line.find(" ("), line.size()));
  const size_t colon = line.rfind(':');
  if (line.starts_with("??") || colon == line.npos || line.substr(colon + 1) == "0" || line.ends_with('?')) return {};
  return std::string(line);
}

bool is_pytorchs_own(std::string_view file) {
  return file.find("/torch/nn/") != std::string_view::npos || file.find("/torch/_") != std::string_view::npos ||
         file.find("/torch/jit/") != std::string_view::npos ||
         file.find("/torch/functional.py") != std::string_view::npos;
}

// One line of the call stack that tracing writes: "/path/net.py(12): forward".
void add_traced_frame(std::string_view line, UsersFrame& location) {
  const size_t close = line.rfind("): ");
  const size_t open = close == std::string_view::npos ? close : line.rfind('(', close);
  if (open == std::string_view::npos || open == 0) return;
  location.add(line.substr(0, open), line.substr(open + 1, close - open - 1));
}

void add_range(const torch::jit::SourceRange& range, UsersFrame& location) {
  if (!range.source()) return;
  if (const auto place = range.file_line_col()) {
    location.add(std::get<0>(*place), std::to_string(std::get<1>(*place)));
    return;
  }
  const std::string frames = range.source()->text_str().str();
  for (std::string_view rest = frames; !rest.empty() && !location.found();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    add_traced_frame(rest.substr(0, end), location);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

}  // namespace

size_t CppBacktraces::HashOfStack::operator()(const Stack& stack) const {
  size_t hash = stack.size();
  for (const void* address : stack) hash = c10::hash_combine(hash, std::hash<const void*>()(address));
  return hash;
}

std::string CppBacktraces::note() {
  Stack stack = torch::unwind::unwind();
  const auto [entry, fresh] = index_.try_emplace(std::move(stack), stacks_.size());
  if (fresh) stacks_.push_back(&entry->first);
  return std::string(kNoted) + std::to_string(entry->second);
}

// The question is about the call, which ends before the address that it returns to.
void CppBacktraces::symbolize(const std::vector<const Stack*>& stacks) {
  struct Asked {
    std::string addresses;  // a line each
    std::vector<void*> frames;
  };
  std::map<std::string, Asked> by_library;
  std::unordered_set<void*> seen;
  for (const Stack* stack : stacks) {
    for (void* frame : *stack) {
      if (known_.contains(frame) || !seen.insert(frame).second) continue;
      const auto library = torch::unwind::libraryFor(frame);
      if (!library || is_library(library->first)) continue;
      Asked& asked = by_library[library->first];
      std::array<char, 32> address{};
      std::snprintf(address.data(), address.size(), "0x%llx\n",
                    static_cast<unsigned long long>(library->second) - 1);  // NOLINT(google-runtime-int)
      asked.addresses += address.data();
      asked.frames.push_back(frame);
    }
  }
  for (const auto& [library, asked] : by_library) {
    const TemporaryFile addresses(asked.addresses);
    const auto lines =
        lines_of_command("addr2line -a -i -e " + quoted(library) + " < " + quoted(addresses.path()) + " 2> /dev/null");
    // Each answer is a line with the address, then one for each function that is inlined there, innermost first.
    size_t frame = 0;
    bool any = false;
    for (const std::string& line : lines) {
      if (line.starts_with("0x")) {
        frame += any ? 1 : 0;
        any = true;
      } else if (any && frame < asked.frames.size()) {
        if (std::string place = place_of(line); !place.empty()) known_[asked.frames[frame]].push_back(std::move(place));
      }
    }
    if (any) continue;
    // Without binutils, libtorch reads the line table itself and misses what is inlined.
    const auto found = torch::unwind::symbolize(asked.frames, torch::unwind::Mode::fast);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i].lineno == 0 || found[i].filename.starts_with("??")) continue;
      known_[asked.frames[i]].push_back(found[i].filename + ":" + std::to_string(found[i].lineno));
    }
  }
}

std::string CppBacktraces::users_line(const Stack& stack) const {
  for (void* frame : stack) {
    const auto found = known_.find(frame);
    if (found == known_.end()) continue;
    for (const std::string& place : found->second) {
      if (!is_others_source(place)) return std::filesystem::path(place).lexically_normal();
    }
  }
  return {};
}

std::string CppBacktraces::line_of(const std::string& noted) {
  if (!noted.starts_with(kNoted)) return noted;
  const Stack* const stack = stacks_[std::stoul(noted.substr(kNoted.size()))];
  symbolize({stack});
  return users_line(*stack);
}

void CppBacktraces::resolve(Graph& graph) {
  symbolize(stacks_);
  for (const NodeId node : graph.nodes()) {
    const std::string_view source = graph.text_or_empty(graph.node(node).source);
    if (!source.starts_with(kNoted)) continue;
    graph.set_source(node, users_line(*stacks_[std::stoul(std::string(source.substr(kNoted.size())))]));
  }
}

void UsersFrame::add(std::string_view file, std::string_view line) {
  if (file.empty() || !users_.empty()) return;
  std::string& place = is_pytorchs_own(file) ? innermost_ : users_;
  if (place.empty()) place.assign(file).append(":").append(line);
}

std::string script_location() {
  UsersFrame location;
  for (const torch::jit::StackEntry& frame : torch::jit::currentCallstack()) {
    // The range is of the code in the file; that was generated from the Python that is wanted.
    if (const auto python = frame.range.findSourceRangeThatGenerated()) add_range(*python, location);
    if (location.found()) break;
  }
  return std::move(location).text();
}

}  // namespace shadowgraph
