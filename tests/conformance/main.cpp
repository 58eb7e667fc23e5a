// Compares fake tensors with eager on PyTorch's own samples (export_samples.py).
//
//     conformance SAMPLES [--allow FILE] [--only GLOB] [--jobs N] [--share PERCENT] [--table FILE] [--all] [--faults N]
//
// Every sample runs for real on the CPU and on fake CPU tensors, in child processes. Prints counts by dtype and each
// kind of disagreement with one example (--all: every disagreeing sample). Fails if a sample crashes, is wrong without
// an entry in the allow list, or if fewer than 99.8 % of the samples that do not depend on data agree.
#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <fnmatch.h>
#include <iostream>
#include <map>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "tests/conformance/allow_list.h"
#include "tests/conformance/verdict.h"
#include "tests/conformance/workers.h"

namespace shadowgraph::conformance {
namespace {

constexpr unsigned kSeconds = 60;  // limit per sample

struct Counts {
  size_t agree = 0;
  size_t data = 0;
  size_t typed = 0;
  size_t wrong = 0;
  size_t allowed = 0;
  size_t crash = 0;
  size_t eager_crash = 0;
  // among agreeing samples:
  size_t raised = 0;
  size_t gradients = 0;
  size_t writes = 0;
  size_t composites = 0;

  size_t compared() const { return agree + typed + wrong + allowed + crash; }
  Counts& operator+=(const Counts& other) {
    for (size_t Counts::*const field :
         {&Counts::agree, &Counts::data, &Counts::typed, &Counts::wrong, &Counts::allowed, &Counts::crash,
          &Counts::eager_crash, &Counts::raised, &Counts::gradients, &Counts::writes, &Counts::composites}) {
      this->*field += other.*field;
    }
    return *this;
  }
  double share() const { return compared() == 0 ? 1 : static_cast<double>(agree) / static_cast<double>(compared()); }
};

struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::string text_of(const Result& result) {
  return fmt::format("{}{}{}", static_cast<int>(result.verdict), result.compared, result.difference);
}

Result result_of(const std::string& text) {
  return {static_cast<Verdict>(text.at(0) - '0'), text.substr(2), static_cast<uint8_t>(text.at(1) - '0')};
}

// Returns whether a call of the program is a composite of other operators.
bool is_composite_call(const Sample& sample) {
  const auto op = Samples::find(sample.op);
  return sample.level == Level::kAboveAutograd && op &&
         op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// Replaces numbers by N, so that similar disagreements share a row.
std::string kind_of(const std::string& difference) {
  std::string kind;
  for (const char c : difference) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      kind += c;
    } else if (kind.empty() || kind.back() != 'N') {
      kind += 'N';
    }
  }
  return kind;
}

// A sample and a fault are encoded as one number; the faults of the first tensors follow the unmodified sample.
constexpr size_t kFaultKinds = Fault::kMoreDimensions;
constexpr size_t kFaultyTensors = 4;
constexpr size_t kFaults = 1 + kFaultyTensors * kFaultKinds;

Fault fault_of(size_t index) {
  const size_t fault = index % kFaults;
  if (fault == 0) return {};
  return {static_cast<Fault::Kind>(1 + (fault - 1) % kFaultKinds), (fault - 1) / kFaultKinds};
}

// Adds all faults for up to `most` evenly spaced samples per operator, excluding derived forms.
std::vector<size_t> with_faults(const Samples& samples, const std::vector<size_t>& indices, size_t most) {
  std::map<std::string, std::vector<size_t>> by_operator;
  for (const size_t index : indices) {
    const Sample sample = samples.sample(index);
    if (sample.dtype == "float32" && sample.level != Level::kMadeUp) by_operator[sample.op].push_back(index);
  }
  std::vector<size_t> result;
  for (const auto& [op, all] : by_operator) {
    const size_t count = std::min(most, all.size());
    for (size_t i = 0; i < count; ++i) {
      const size_t index = all[i * all.size() / count];
      const size_t tensors = std::min(samples.arguments(index, Contents::kShared).tensors.size(), kFaultyTensors);
      for (size_t fault = 1; fault <= tensors * kFaultKinds; ++fault) result.push_back(index * kFaults + fault);
    }
  }
  return result;
}

class Report {
 public:
  Report(const Samples& samples, AllowList& allow, bool all) : samples_(samples), allow_(allow), all_(all) {}

  void add(size_t index, const Result& result) {
    const Sample sample = samples_.sample(index);
    Counts& counts = by_dtype_[sample.dtype];
    switch (result.verdict) {
      case Verdict::kAgree:
        ++counts.agree;
        counts.raised += (result.compared & kRaised) != 0;
        counts.gradients += (result.compared & kGradients) != 0;
        counts.writes += (result.compared & kWrites) != 0;
        counts.composites += is_composite_call(sample);
        return;
      case Verdict::kEagerCrash:
        ++counts.eager_crash;
        break;
      case Verdict::kDataDependent:
        ++counts.data;
        ++data_dependent_[sample.op];
        return;
      case Verdict::kCrash:
        ++counts.crash;
        break;
      case Verdict::kTypedError:
      case Verdict::kWrong:
        if (AllowRow* row = allow_.find(sample.op, result.difference)) {
          ++row->used;
          ++(row->data ? counts.data : counts.allowed);
          return;
        }
        ++(result.verdict == Verdict::kWrong ? counts.wrong : counts.typed);
        break;
    }
    const char* verdict = kVerdictNames[static_cast<int>(result.verdict)];
    if (all_) {
      fmt::print("{} #{} {} ({}, {}): {}\n", verdict, index, sample.op, sample.origin, sample.dtype, result.difference);
      return;
    }
    auto& row = kinds_[fmt::format("{} {}: {}", verdict, sample.op, kind_of(result.difference))];
    if (row.first++ == 0) {
      row.second = fmt::format("{} {}: {} (#{}, {}, {})", verdict, sample.op, result.difference, index, sample.origin,
                               sample.dtype);
    }
  }

  Counts total() const {
    Counts total;
    for (const auto& [dtype, counts] : by_dtype_) total += counts;
    return total;
  }

  std::string table() const {
    std::string text =
        "| dtype | agree | of | share | wrong | allowed | no rule | crash | depend on data "
        "|\n|---|---|---|---|---|---|---|---|---|\n";
    const auto row = [&](const std::string& name, const Counts& c) {
      text += fmt::format("| {} | {} | {} | {:.2f} % | {} | {} | {} | {} | {} |\n", name, c.agree, c.compared(),
                          100 * c.share(), c.wrong, c.allowed, c.typed, c.crash, c.data);
    };
    for (const auto& [dtype, counts] : by_dtype_) row(dtype, counts);
    row("all", total());
    const Counts all = total();
    text += fmt::format(
        "\n| of those that agree | samples |\n|---|---|\n"
        "| both raise | {} |\n"
        "| gradients of arguments were compared | {} |\n"
        "| arguments were written, and how often was compared | {} |\n"
        "| composites, called as OpInfo calls them | {} |\n",
        all.raised, all.gradients, all.writes, all.composites);
    return text;
  }

  void print() const {
    for (const auto& [kind, row] : kinds_) fmt::print("{:5} x {}\n", row.first, row.second);
    fmt::print("{}", table());
    const Counts counts = total();
    if (counts.eager_crash != 0) fmt::print("eager crashed on {} samples\n", counts.eager_crash);
    std::string names;
    for (const auto& [op, count] : data_dependent_) names += fmt::format(" {} ({})", op, count);
    fmt::print("depend on data:{}\n", names);
    for (const AllowRow& row : allow_.rows()) {
      if (row.used == 0) fmt::print("allow list: not met here: {} | {}\n", row.op, row.pattern);
    }
  }

 private:
  const Samples& samples_;
  AllowList& allow_;
  bool all_;
  std::map<std::string, Counts> by_dtype_;
  std::map<std::string, std::pair<size_t, std::string>> kinds_;
  std::map<std::string, size_t> data_dependent_;
};

int run(int argc, char** argv) {
  CLI::App app("Holds fake tensors against eager on exported samples");
  std::string path;
  std::string allow_path;
  std::string only = "*";
  std::string table_path;
  int jobs = 2;
  double bar = 99.8;
  bool all = false;
  std::vector<size_t> chosen;
  size_t faults = 0;
  app.add_option("samples", path, "what export_samples.py wrote")->required();
  app.add_option("--allow", allow_path, "disagreements that stand");
  app.add_option("--only", only, "operators, as a glob: 'aten::linalg_*'");
  app.add_option("--sample", chosen, "samples by number");
  app.add_option("--jobs", jobs, "processes")->check(CLI::Range(1, 256));
  app.add_option("--share", bar, "percent of the samples that do not depend on data which must agree");
  app.add_option("--table", table_path, "writes the table of counts there");
  app.add_flag("--all", all, "prints every sample that disagrees");
  app.add_option("--faults", faults, "changes dtypes and sizes of arguments instead, in as many samples an operator");
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  NoWarnings no_warnings;
  c10::WarningUtils::set_warning_handler(&no_warnings);
  AllowList allow = allow_path.empty() ? AllowList() : AllowList(allow_path);
  const Samples samples(path);
  if (samples.torch_version().substr(0, 6) != std::string(TORCH_VERSION).substr(0, 6)) {
    throw Error("the samples are of torch " + samples.torch_version() + ", this is " TORCH_VERSION);
  }
  std::vector<size_t> indices = chosen;
  for (size_t i = 0; chosen.empty() && i < samples.size(); ++i) {
    if (only == "*" || fnmatch(only.c_str(), samples.sample(i).op.c_str(), 0) == 0) indices.push_back(i);
  }
  if (faults != 0) {
    indices = with_faults(samples, indices, faults);
  } else {
    for (size_t& index : indices) index *= kFaults;
  }
  Report report(samples, allow, all || !chosen.empty());
  run_in_children(
      indices, jobs, kSeconds,
      [&](size_t index, const std::function<void(char)>& mark) {
        return text_of(judge(
            samples, index / kFaults, [&](bool real) { mark(real ? 'e' : 'f'); }, fault_of(index)));
      },
      [&](size_t index, bool died, char mark, const std::string& text) {
        report.add(index / kFaults,
                   !died ? result_of(text) : Result{mark == 'f' ? Verdict::kCrash : Verdict::kEagerCrash, text});
      });
  report.print();
  if (!table_path.empty()) write_file(table_path, report.table());
  const Counts counts = report.total();
  // A faulty call may corrupt memory in eager and crash later.
  const bool sound = faults != 0 || (counts.crash == 0 && counts.wrong == 0);
  const bool good = sound && 100 * counts.share() >= bar;
  fmt::print("{} samples, {:.2f} % of {} that do not depend on data agree: {}\n", indices.size(), 100 * counts.share(),
             counts.compared(), good ? "good" : "not good enough");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace shadowgraph::conformance

int main(int argc, char** argv) {
  try {
    return shadowgraph::conformance::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "conformance: " << error.what() << '\n';
    return 2;
  }
}
