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
#include <unistd.h>
#include <unordered_set>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Marks a source that refers to a collected backtrace. No file path starts like this.
constexpr std::string_view kBacktracePrefix = "\x01stack ";

// Returns the source folder of shadowgraph, to recognize its own frames where it is linked statically.
std::string_view source_root() {
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

// Returns whether a file is shadowgraph's own, or a header of libtorch or the standard library, which is compiled into
// the user's program.
bool is_library_source(std::string_view file) {
  for (const char* part : {"/torch/include/", "/include/torch/", "/include/ATen/", "/include/c10/",
                           "/csrc/api/include/", "/include/c++/", "/bits/", "/include/shadowgraph/"}) {
    if (contains(file, part)) return true;
  }
  const std::string_view own = source_root();
  if (own.empty() || !file.starts_with(own)) return false;
  const std::string_view inside = file.substr(own.size());
  return inside.starts_with("core/") || inside.starts_with("ir/") || inside.starts_with("include/");
}

// Quotes a text for the shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::vector<std::string> lines_of_command(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
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

// Removed by the destructor.
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
  C10_DISABLE_COPY_AND_ASSIGN(TemporaryFile);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns "file:line" without addr2line's suffix " (discriminator 2)"; empty if unknown.
std::string place_of(std::string_view line) {
  line = line.substr(0, std::min(line.find(" ("), line.size()));
  const size_t colon = line.rfind(':');
  if (line.starts_with("??") || colon == line.npos || line.substr(colon + 1) == "0" || line.ends_with('?')) return {};
  return std::string(line);
}

bool is_pytorch_file(std::string_view file) {
  return contains(file, "/torch/nn/") || contains(file, "/torch/_") || contains(file, "/torch/jit/") ||
         contains(file, "/torch/functional.py");
}

// Parses a line of the call stack written by tracing: "/path/net.py(12): forward".
void add_traced_frame(std::string_view line, UserFrame& location) {
  const size_t close = line.rfind("): ");
  const size_t open = close == std::string_view::npos ? close : line.rfind('(', close);
  if (open == std::string_view::npos || open == 0) return;
  location.add(line.substr(0, open), line.substr(open + 1, close - open - 1));
}

void add_range(const torch::jit::SourceRange& range, UserFrame& location) {
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
  return std::string(kBacktracePrefix) + std::to_string(entry->second);
}

// Looks up the call, which ends before the return address.
void CppBacktraces::symbolize(const std::vector<const Stack*>& stacks) {
  struct Query {
    std::string addresses;  // one per line
    std::vector<void*> frames;
  };
  std::map<std::string, Query> by_library;
  std::unordered_set<void*> seen;
  for (const Stack* stack : stacks) {
    for (void* frame : *stack) {
      if (known_.contains(frame) || !seen.insert(frame).second) continue;
      const auto library = torch::unwind::libraryFor(frame);
      if (!library || is_library(library->first)) continue;
      Query& query = by_library[library->first];
      std::array<char, 32> address{};
      std::snprintf(address.data(), address.size(), "0x%llx\n",
                    static_cast<unsigned long long>(library->second) - 1);  // NOLINT(google-runtime-int)
      query.addresses += address.data();
      query.frames.push_back(frame);
    }
  }
  for (const auto& [library, query] : by_library) {
    const TemporaryFile addresses(query.addresses);
    const auto lines =
        lines_of_command("addr2line -a -i -e " + quoted(library) + " < " + quoted(addresses.path()) + " 2> /dev/null");
    // Output: a line with the address, then one for each function inlined there, innermost first.
    size_t addresses_seen = 0;
    for (const std::string& line : lines) {
      if (line.starts_with("0x")) {
        ++addresses_seen;
      } else if (addresses_seen > 0 && addresses_seen <= query.frames.size()) {
        std::string place = place_of(line);
        if (!place.empty()) known_[query.frames[addresses_seen - 1]].push_back(std::move(place));
      }
    }
    if (addresses_seen > 0) continue;
    // Without addr2line: libtorch reads the line table, but omits inlined functions.
    const auto found = torch::unwind::symbolize(query.frames, torch::unwind::Mode::fast);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i].lineno == 0 || found[i].filename.starts_with("??")) continue;
      known_[query.frames[i]].push_back(found[i].filename + ":" + std::to_string(found[i].lineno));
    }
  }
}

std::string CppBacktraces::user_line(const Stack& stack) const {
  for (void* frame : stack) {
    const auto found = known_.find(frame);
    if (found == known_.end()) continue;
    for (const std::string& place : found->second) {
      if (!is_library_source(place)) return std::filesystem::path(place).lexically_normal();
    }
  }
  return {};
}

std::string CppBacktraces::line_of(const std::string& noted) {
  if (!noted.starts_with(kBacktracePrefix)) return noted;
  const Stack* const stack = stacks_[std::stoul(noted.substr(kBacktracePrefix.size()))];
  symbolize({stack});
  return user_line(*stack);
}

void CppBacktraces::resolve(Graph& graph) {
  symbolize(stacks_);
  for (const NodeId node : graph.nodes()) {
    const std::string_view source = graph.text_or_empty(graph.node(node).source);
    if (!source.starts_with(kBacktracePrefix)) continue;
    graph.set_source(node, user_line(*stacks_[std::stoul(std::string(source.substr(kBacktracePrefix.size())))]));
  }
}

void UserFrame::add(std::string_view file, std::string_view line) {
  if (file.empty() || !users_.empty()) return;
  std::string& place = is_pytorch_file(file) ? innermost_ : users_;
  if (place.empty()) place.assign(file).append(":").append(line);
}

std::string script_location() {
  UserFrame location;
  for (const torch::jit::StackEntry& frame : torch::jit::currentCallstack()) {
    // The range refers to the code in the file, which was generated from the Python source.
    if (const auto python = frame.range.findSourceRangeThatGenerated()) add_range(*python, location);
    if (location.found()) break;
  }
  return std::move(location).text();
}

}  // namespace shadowgraph
