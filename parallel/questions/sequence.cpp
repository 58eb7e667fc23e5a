#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "parallel/plan/what_would_fit.h"
#include "parallel/questions/asker.h"

namespace shadowgraph {
namespace {

class Sequences {
 public:
  explicit Sequences(Asker& asker) : asker_(asker) {}

  bool fit(int64_t tokens) { return asker_.fits(asker_.source_of(tokens), request(tokens), kept(tokens)); }
  PlanRow row(int64_t tokens) {
    return asker_.row(fmt::format("{}", tokens), static_cast<double>(tokens), asker_.source_of(tokens), request(tokens),
                      kept(tokens));
  }

 private:
  // Longer sequences have micro-batches of one sample, which need least.
  ClusterRequest request(int64_t tokens) const {
    ClusterRequest changed = with_sequence(asker_.request(), tokens);
    if (tokens > asker_.request().sequence && changed.micro_batch.empty()) changed.micro_batch = {1};
    return changed;
  }
  KeptTables& kept(int64_t tokens) {
    return tokens == asker_.request().sequence ? asker_.kept() : asker_.kept(fmt::format("sequence {}", tokens));
  }

  Asker& asker_;
};

}  // namespace

PlanTable ask_sequence(Asker& asker, const PlanQuestion& question) {
  const int64_t own = asker.request().sequence;
  if (own == 0) throw Error("--what sequence is of models with sequences: say how long they are (sequence=, --seq)");
  PlanTable table{.about = question.about,
                  .title = fmt::format("sequences of other lengths, {} tokens a step", asker.request().batch * own),
                  .head = "tokens"};
  Sequences sequences(asker);
  if (!question.values.empty()) {
    for (const double tokens : values_of(question, {}))
      table.rows.push_back(sequences.row(static_cast<int64_t>(tokens)));
  }
  // Twice as long until nothing fits, or half as long until something does; then halfway between, to a sixteenth.
  constexpr int64_t kLongest = int64_t{1} << 24, kShortest = 16;
  int64_t fits = own, too_long = 0;
  while (fits >= kShortest && !sequences.fit(fits)) {
    too_long = fits;
    fits /= 2;
  }
  if (fits < kShortest) {
    table.findings.push_back(fmt::format("not even sequences of {} tokens fit", too_long));
    return table;
  }
  if (question.values.empty()) table.rows.push_back(sequences.row(fits));
  std::string limit;  // why the model has no longer ones
  while (too_long == 0 && fits < kLongest) {
    bool longer = false;
    try {
      longer = sequences.fit(2 * fits);
    } catch (const Error& error) {
      limit = error.what();
    } catch (const std::invalid_argument& error) {  // by models of the tool
      limit = error.what();
    }
    if (!limit.empty()) break;
    if (!longer) {
      too_long = 2 * fits;
    } else {
      fits *= 2;
      if (question.values.empty()) table.rows.push_back(sequences.row(fits));
    }
  }
  const int64_t step = std::max<int64_t>(1, fits / 16);
  while (too_long != 0 && too_long - fits > step) {
    const int64_t middle = fits + (too_long - fits) / (2 * step) * step;
    (sequences.fit(middle) ? fits : too_long) = middle;
  }
  for (int tries = 0; tries < 4 && fits >= kShortest; ++tries, fits -= step) {
    const auto known = std::ranges::find(table.rows, static_cast<double>(fits), &PlanRow::number);
    PlanRow row = known != table.rows.end() ? *known : sequences.row(fits);
    if (!row.why_not.empty()) continue;
    table.findings.push_back(
        fmt::format("sequences of {} tokens are the longest that fit, to a sixteenth: {}", fits, to_string(row.plan)));
    if (!limit.empty()) table.findings.back() = fmt::format("sequences of {} tokens fit; {}", fits, limit);
    if (known == table.rows.end()) table.rows.push_back(std::move(row));
    break;
  }
  std::ranges::stable_sort(table.rows, {}, &PlanRow::number);
  return table;
}

}  // namespace shadowgraph
