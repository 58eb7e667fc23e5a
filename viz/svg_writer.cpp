#include <graphviz/gvc.h>

#include <dlfcn.h>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Graphviz's libraries, loaded when the first picture is drawn. shadowgraph does not link them, since Python wheels
// cannot depend on them.
struct Graphviz {
  void* cgraph = dlopen("libcgraph.so.6", RTLD_NOW | RTLD_LOCAL);
  void* gvc = dlopen("libgvc.so.6", RTLD_NOW | RTLD_LOCAL);
  bool complete = cgraph != nullptr && gvc != nullptr;

  template <class T>
  T* find(void* library, const char* name) {
    void* const symbol = library != nullptr ? dlsym(library, name) : nullptr;
    complete = complete && symbol != nullptr;
    return reinterpret_cast<T*>(symbol);
  }
#define SHADOWGRAPH_FROM(library, name) decltype(::name)* name = find<decltype(::name)>(library, #name)
  SHADOWGRAPH_FROM(cgraph, agread);
  SHADOWGRAPH_FROM(cgraph, agclose);
  SHADOWGRAPH_FROM(cgraph, agseterrf);
  SHADOWGRAPH_FROM(cgraph, AgIoDisc);
  SHADOWGRAPH_FROM(cgraph, AgMemDisc);
  SHADOWGRAPH_FROM(gvc, gvContext);
  SHADOWGRAPH_FROM(gvc, gvContextPlugins);
  SHADOWGRAPH_FROM(gvc, gvFreeContext);
  SHADOWGRAPH_FROM(gvc, gvLayout);
  SHADOWGRAPH_FROM(gvc, gvFreeLayout);
  SHADOWGRAPH_FROM(gvc, gvRenderData);
  SHADOWGRAPH_FROM(gvc, gvFreeRenderData);
#undef SHADOWGRAPH_FROM
};
const Graphviz& graphviz() {
  static const auto* const opened = new Graphviz;
  if (!opened->complete) {
    throw Error(
        "drawing SVG needs Graphviz's libraries libgvc.so.6 and libcgraph.so.6; install them (Debian: libgvc6) or "
        "write DOT instead");
  }
  return *opened;
}

// Files and their symbols.
constexpr std::pair<const char*, const char*> kPlugins[] = {
    {"libgvplugin_core.so.6", "gvplugin_core_LTX_library"},
    {"libgvplugin_dot_layout.so.6", "gvplugin_dot_layout_LTX_library"},
};

// Returns the folder of Graphviz's plugins, a subfolder next to libgvc on Debian and in Graphviz's own builds.
std::string plugin_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(graphviz().gvContext), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string library = info.dli_fname;
  const size_t slash = library.rfind('/');
  return slash == std::string::npos ? std::string() : library.substr(0, slash) + "/graphviz/";
}

// Returns the plugins, loaded once per process. Empty if one cannot be found.
const std::vector<lt_symlist_t>& plugins() {
  static const auto* const loaded = [] {
    auto* symbols = new std::vector<lt_symlist_t>;
    const std::string folder = plugin_folder();
    for (const auto& [file, name] : kPlugins) {
      void* handle = dlopen((folder + file).c_str(), RTLD_NOW | RTLD_LOCAL);
      void* symbol = handle != nullptr ? dlsym(handle, name) : nullptr;
      if (symbol == nullptr) return new std::vector<lt_symlist_t>;
      symbols->push_back({name, symbol});
    }
    symbols->push_back({nullptr, nullptr});
    return symbols;
  }();
  return *loaded;
}

// Collects Graphviz's messages. Its error handler takes no context argument; the mutex below makes this safe.
std::string& messages() {
  static std::string text;
  return text;
}
int collect(char* message) {
  if (messages().size() < 2000) messages() += message;
  return 0;
}

struct MessageGuard {
  agusererrf before;
  MessageGuard() : before(graphviz().agseterrf(collect)) { messages().clear(); }
  ~MessageGuard() { graphviz().agseterrf(before); }
};

[[noreturn]] void fail(const std::string& what) {
  std::string text = what;
  if (!messages().empty()) text += ": " + messages();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  throw Error(text);
}

// Maps names to ids in order of appearance. Graphviz's default ids are addresses, and subgraphs are laid out and
// written in the order of ids, so pictures would differ from run to run.
struct Names {
  std::unordered_map<std::string, IDTYPE> ids;
  std::unordered_map<IDTYPE, const std::string*> names;
  IDTYPE next = 1;
};
void* open_names(Agraph_t*, Agdisc_t*) { return new Names; }
long map_name(void* state, int kind, char* name, IDTYPE* id, int create) {
  auto* all = static_cast<Names*>(state);
  if (name == nullptr) {
    *id = all->next++;
    return 1;
  }
  const std::string key = std::to_string(kind == AGINEDGE ? AGOUTEDGE : kind) + name;
  const auto found = all->ids.find(key);
  if (found == all->ids.end() && create == 0) return 0;
  *id = found != all->ids.end() ? found->second : all->next++;
  if (found == all->ids.end()) all->names[*id] = &all->ids.emplace(key, *id).first->first;
  return 1;
}
long allow_id(void*, int, IDTYPE) { return 1; }
void forget_id(void*, int, IDTYPE) {}
char* name_of(void* state, int, IDTYPE id) {
  const auto* all = static_cast<Names*>(state);
  const auto found = all->names.find(id);
  return found == all->names.end() ? nullptr : const_cast<char*>(found->second->c_str()) + 1;  // skip the kind
}
void close_names(void* state) { delete static_cast<Names*>(state); }
void register_id(void*, int, void*) {}
Agiddisc_t counted_ids{open_names, map_name, allow_id, forget_id, name_of, close_names, register_id};

// Lets Graphviz read from the string_view `channel`.
int read_text(void* channel, char* buffer, int size) {
  auto& left = *static_cast<std::string_view*>(channel);
  const size_t count = left.copy(buffer, static_cast<size_t>(size));
  left.remove_prefix(count);
  return static_cast<int>(count);
}

Agraph_t* parse(const std::string& dot) {
  Agiodisc_t reading{read_text, graphviz().AgIoDisc->putstr, graphviz().AgIoDisc->flush};
  Agdisc_t disciplines{graphviz().AgMemDisc, &counted_ids, &reading};
  std::string_view text = dot;
  return graphviz().agread(&text, &disciplines);
}

struct ContextDeleter {
  void operator()(GVC_t* context) const { graphviz().gvFreeContext(context); }
};
struct GraphDeleter {
  void operator()(Agraph_t* graph) const { graphviz().agclose(graph); }
};

// A layout, freed before its graph and context.
struct GraphLayout {
  GVC_t* context;
  Agraph_t* graph;
  bool done;
  GraphLayout(GVC_t* c, Agraph_t* g) : context(c), graph(g), done(graphviz().gvLayout(c, g, "dot") == 0) {}
  ~GraphLayout() { graphviz().gvFreeLayout(context, graph); }
};

}  // namespace

std::string render_svg(const std::string& dot) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const MessageGuard silence;

  // If the plugins are not in the usual folder, Graphviz searches by its configuration.
  std::unique_ptr<GVC_t, ContextDeleter> context(plugins().empty() ? graphviz().gvContext()
                                                                   : graphviz().gvContextPlugins(plugins().data(), 0));
  if (!context) fail("Graphviz could not be started");
  std::unique_ptr<Agraph_t, GraphDeleter> graph(parse(dot));
  if (!graph) fail("not a graph in the DOT language");
  const GraphLayout layout(context.get(), graph.get());
  if (!layout.done) {
    fail(
        "Graphviz failed to compute a layout; if it has no layout engine 'dot', install its plugins (Debian: libgvc6) "
        "or write DOT instead");
  }
  char* data = nullptr;
  unsigned int length = 0;
  if (graphviz().gvRenderData(context.get(), graph.get(), "svg", &data, &length) != 0 || data == nullptr) {
    graphviz().gvFreeRenderData(data);
    fail("Graphviz failed to write SVG");
  }
  std::string svg(data, length);
  graphviz().gvFreeRenderData(data);
  return svg;
}

}  // namespace shadowgraph
