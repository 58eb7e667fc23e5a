#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <limits>
#include <link.h>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "shadowgraph/shard/solver.h"
#include "sharding/solver/highs.h"

namespace shadowgraph {

// The functions declared in highs_c_api.h, with HighsInt as 32 bits, which open() checks.
struct HighsLibrary::Functions {
  void* library = nullptr;
  std::vector<std::string> missing;

  // Converts to the type of the function that it initializes.
  struct Symbol {
    void* address;
    template <class T>
    operator T*() const {
      return reinterpret_cast<T*>(address);
    }
  };
  Symbol find(const char* name) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) missing.emplace_back(name);
    return {symbol};
  }

  explicit Functions(void* opened) : library(opened) {}

  void* (*create)() = find("Highs_create");
  void (*destroy)(void*) = find("Highs_destroy");
  int32_t (*size_of_int)(const void*) = find("Highs_getSizeofHighsInt");
  void (*reset_threads)(int32_t) = find("Highs_resetGlobalScheduler");
  int32_t (*set_bool)(void*, const char*, int32_t) = find("Highs_setBoolOptionValue");
  int32_t (*set_int)(void*, const char*, int32_t) = find("Highs_setIntOptionValue");
  int32_t (*set_double)(void*, const char*, double) = find("Highs_setDoubleOptionValue");
  int32_t (*pass_mip)(void*, int32_t columns, int32_t rows, int32_t terms, int32_t format, int32_t sense, double offset,
                      const double* cost, const double* lower, const double* upper, const double* row_lower,
                      const double* row_upper, const int32_t* begin, const int32_t* index, const double* value,
                      const int32_t* integrality) = find("Highs_passMip");
  int32_t (*set_start)(void*, int32_t entries, const int32_t* index,
                       const double* value) = find("Highs_setSparseSolution");
  int32_t (*run)(void*) = find("Highs_run");
  int32_t (*status)(const void*) = find("Highs_getModelStatus");
  int32_t (*int_info)(const void*, const char*, int32_t*) = find("Highs_getIntInfoValue");
  int32_t (*double_info)(const void*, const char*, double*) = find("Highs_getDoubleInfoValue");
  int32_t (*solution)(const void*, double* values, double* duals, double* row_values,
                      double* row_duals) = find("Highs_getSolution");
  int32_t (*iis)(void*, int32_t* columns, int32_t* rows, int32_t* column_index, int32_t* row_index,
                 int32_t* column_bound, int32_t* row_bound, int32_t* column_status,
                 int32_t* row_status) = find("Highs_getIis");
};

namespace {

constexpr double kNoBound = std::numeric_limits<double>::infinity();
constexpr int32_t kByRows = 2;    // kHighsMatrixFormatRowwise
constexpr int32_t kMinimize = 1;  // kHighsObjSenseMinimize
constexpr int32_t kOptimal = 7;   // kHighsModelStatus...
constexpr int32_t kInfeasible = 8;
constexpr int32_t kUnboundedOrInfeasible = 9;  // costs are bounded: infeasible
constexpr int32_t kFeasible = 2;               // kHighsSolutionStatusFeasible, of "primal_solution_status"
constexpr int32_t kIrreducibleFromLp = 6;      // kIisStrategyFromLp + kIisStrategyIrreducible

// Returns the folders of Python packages from which this process has loaded libraries.
std::vector<std::string> package_folders() {
  std::vector<std::string> folders;
  const auto look = [](dl_phdr_info* info, size_t, void* to) {
    const std::string_view name = info->dlpi_name != nullptr ? info->dlpi_name : "";
    for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
      const size_t at = name.rfind(folder);
      if (at == std::string_view::npos) continue;
      auto& found = *static_cast<std::vector<std::string>*>(to);
      std::string prefix(name.substr(0, at + folder.size()));
      if (std::ranges::find(found, prefix) == found.end()) found.push_back(std::move(prefix));
    }
    return 0;
  };
  dl_iterate_phdr(look, &folders);
  if (const char* environment = std::getenv("VIRTUAL_ENV")) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(environment) + "/lib", error)) {
      folders.push_back(entry.path().string() + "/site-packages/");
    }
  }
  return folders;
}

std::vector<std::string> candidates(const std::string& path) {
  const char* variable = std::getenv("SHADOWGRAPH_HIGHS");
  const std::string given = !path.empty() ? path : variable != nullptr ? variable : "";
  std::error_code error;
  if (!given.empty()) {
    if (!std::filesystem::is_directory(given, error)) return {given};
    return {given + "/libhighs.so.1", given + "/libhighs.so"};
  }
  std::vector<std::string> names;
  for (const std::string& folder : package_folders()) {
    for (const char* name : {"highspy/libhighs.so.1", "highspy/libhighs.so", "highspy.libs/libhighs.so.1"}) {
      if (std::filesystem::exists(folder + name, error)) names.push_back(folder + name);
    }
  }
  names.emplace_back("libhighs.so.1");
  names.emplace_back("libhighs.so");
  return names;
}

// A HiGHS model without output; one at a time, since HiGHS has one thread pool per process.
template <class Functions>
class Model {
 public:
  Model(const Functions& f, const HighsProgram& program, bool integers) : f_(f), lock_(mutex()) {
    f.reset_threads(1);
    model_ = f.create();
    f.set_bool(model_, "output_flag", 0);
    f.pass_mip(model_, static_cast<int32_t>(program.cost.size()), static_cast<int32_t>(program.row_lower.size()),
               static_cast<int32_t>(program.column.size()), kByRows, kMinimize, 0, program.cost.data(),
               program.lower.data(), program.upper.data(), program.row_lower.data(), program.row_upper.data(),
               program.row_begin.data(), program.column.data(), program.factor.data(),
               integers ? program.integer.data() : nullptr);
  }
  ~Model() { f_.destroy(model_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  void* get() const { return model_; }

 private:
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }

  const Functions& f_;
  const std::lock_guard<std::mutex> lock_;
  void* model_ = nullptr;
};

}  // namespace

int32_t HighsProgram::add_column(double cost_of_it, double lowest, double highest, bool is_integer) {
  cost.push_back(cost_of_it);
  lower.push_back(lowest);
  upper.push_back(highest);
  integer.push_back(is_integer ? 1 : 0);
  return static_cast<int32_t>(cost.size() - 1);
}

void HighsProgram::add_row(double lowest, double highest) {
  row_lower.push_back(lowest);
  row_upper.push_back(highest);
  row_begin.push_back(static_cast<int32_t>(column.size()));
}

void HighsProgram::add_term(int32_t of_column, double times) {
  column.push_back(of_column);
  factor.push_back(times);
}

const HighsLibrary& HighsLibrary::open(const std::string& path) {
  static auto* const mutex = new std::mutex;
  static auto* const known = new std::map<std::string, const HighsLibrary*>;
  const std::lock_guard lock(*mutex);
  std::vector<std::string> reasons;
  for (const std::string& name : candidates(path)) {
    const auto found = known->find(name);
    if (found != known->end()) return *found->second;
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reasons.emplace_back(dlerror());
      continue;
    }
    auto functions = std::make_unique<Functions>(library);
    if (!functions->missing.empty()) {
      reasons.push_back(fmt::format("{} lacks {}", name, fmt::join(functions->missing, ", ")));
      continue;
    }
    void* const model = functions->create();
    const int32_t bytes = functions->size_of_int(model);
    functions->destroy(model);
    if (bytes != sizeof(int32_t)) {
      reasons.push_back(fmt::format("{} has integers of {} bytes; expected 4", name, bytes));
      continue;
    }
    return *known->emplace(name, new HighsLibrary(functions.release())).first->second;
  }
  throw Error(
      fmt::format("cannot load HiGHS ({}); run 'pip install highspy', or give the path of libhighs.so.1 with --highs, "
                  "SolveOptions::highs or SHADOWGRAPH_HIGHS",
                  fmt::join(reasons, "; ")));
}

HighsAnswer HighsLibrary::solve(const HighsProgram& program, const HighsOptions& options) const {
  const Functions& f = *functions_;
  const Model model(f, program, true);
  f.set_int(model.get(), "threads", options.threads);
  f.set_double(model.get(), "time_limit", std::max(options.time_limit, 0.0));
  f.set_double(model.get(), "mip_rel_gap", options.gap);
  f.set_double(model.get(), "mip_abs_gap", options.absolute_gap);
  if (!options.start_columns.empty()) {
    f.set_start(model.get(), static_cast<int32_t>(options.start_columns.size()), options.start_columns.data(),
                options.start_values.data());
  }
  f.run(model.get());
  HighsAnswer answer;
  const int32_t status = f.status(model.get());
  answer.status = status == kOptimal                                          ? HighsStatus::kOptimal
                  : status == kInfeasible || status == kUnboundedOrInfeasible ? HighsStatus::kInfeasible
                                                                              : HighsStatus::kNone;
  int32_t primal = 0;
  f.int_info(model.get(), "primal_solution_status", &primal);
  answer.found = primal == kFeasible;
  answer.bound = -kNoBound;
  if (std::ranges::find(program.integer, 1) != program.integer.end()) {
    f.double_info(model.get(), "mip_dual_bound", &answer.bound);
  } else if (answer.status == HighsStatus::kOptimal) {
    f.double_info(model.get(), "objective_function_value", &answer.bound);
  }
  if (answer.found) {
    answer.values.resize(program.cost.size());
    std::vector<double> duals(program.cost.size());
    std::vector<double> row_values(program.row_lower.size());
    std::vector<double> row_duals(program.row_lower.size());
    f.solution(model.get(), answer.values.data(), duals.data(), row_values.data(), row_duals.data());
  }
  return answer;
}

std::vector<int32_t> HighsLibrary::conflicting_rows(const HighsProgram& program, double time_limit) const {
  const Functions& f = *functions_;
  const Model model(f, program, false);
  f.set_double(model.get(), "time_limit", std::max(time_limit, 0.0));
  f.set_int(model.get(), "iis_strategy", kIrreducibleFromLp);
  f.set_double(model.get(), "iis_time_limit", std::max(time_limit, 0.0));
  int32_t columns = 0, rows = 0;
  std::vector<int32_t> column_index(program.cost.size());
  std::vector<int32_t> column_bound(program.cost.size());
  std::vector<int32_t> row_index(program.row_lower.size());
  std::vector<int32_t> row_bound(program.row_lower.size());
  f.iis(model.get(), &columns, &rows, column_index.data(), row_index.data(), column_bound.data(), row_bound.data(),
        nullptr, nullptr);
  row_index.resize(static_cast<size_t>(rows));
  return row_index;
}

}  // namespace shadowgraph
