// Sweeps: re-plans modified requests, one table row each.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>

#include "parallel/plan/planner.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/units.h"
#include "support/json.h"

namespace shadowgraph {
namespace {

// Exposed communication of a rank, in seconds.
double exposed_of(const PipelineRun& run, int32_t rank) {
  double seconds = run.rank(rank).waits.unshard + run.rank(rank).waits.reduce;
  for (const PipelineActionTime& at : run.actions(rank)) {
    if (computes(at.action)) seconds += run.stages().of(at.action.stage).exposed_unsharded[at.action.work];
  }
  return seconds;
}

StepSource cached(const StepSource& source) {
  StepSource result = source;
  const auto known = std::make_shared<std::map<std::pair<int64_t, int64_t>, Graph>>();
  result.capture = [capture = source.capture, layers = source.layers, known](const StepSize& size) {
    if (layers > 0 && size.layers == 0) return capture(size);  // whole models are rarely captured twice
    const std::pair key{size.micro_batch, size.layers};
    const auto found = known->find(key);
    return clone(found != known->end() ? found->second : known->emplace(key, capture(size)).first->second);
  };
  return result;
}

// Re-plans modified requests, and caches layer costs between them.
class ScenarioRunner {
 public:
  ScenarioRunner(StepSource source, ClusterRequest request) : source_(cached(source)), request_(std::move(request)) {
    request_.simulated = 1;
  }

  const StepSource& source() const { return source_; }
  const ClusterRequest& request() const { return request_; }
  // Layer costs for the request's own device, links and sequence length.
  LayerCostCache& cache() { return caches_["own"]; }
  LayerCostCache& cache(const std::string& other) { return caches_[other]; }
  // The source with another sequence length. Throws Error if the source has a fixed length.
  const StepSource& source_of(int64_t sequence) {
    if (sequence == request_.sequence) return source_;
    if (!source_.with_sequence) throw Error(source_.name + " has a fixed sequence length");
    const auto known = sequences_.find(sequence);
    if (known != sequences_.end()) return known->second;
    return sequences_.emplace(sequence, cached(source_.with_sequence(sequence))).first->second;
  }

  PlanRow row(std::string value, double number, const StepSource& source, const ClusterRequest& request,
              LayerCostCache& cache) {
    PlanRow row{.value = std::move(value), .number = number, .devices = request.devices};
    try {
      const ClusterPlan answer = search_plan(source, request, cache, false);
      if (answer.simulated.empty()) {
        row.why_not = fmt::format("no plan fits in {}", human_bytes(answer.memory));
        return row;
      }
      const SimulatedPlan& best = answer.best();
      row.plan = best.plan;
      row.seconds = best.run.seconds();
      row.bytes = best.bytes();
      row.tokens_per_second = answer.tokens_per_second();
      row.share = answer.model_flops_share();
      row.waiting = best.run.bubble();
      for (int32_t rank = 0; rank < best.run.ranks(); ++rank) row.exposed += exposed_of(best.run, rank);
      row.exposed /= best.run.ranks();
      excess_ = std::max(excess_, static_cast<double>(row.bytes) / static_cast<double>(best.estimated_bytes));
    } catch (const InfeasibleError& error) {  // the runtime overhead exceeds the memory
      row.why_not = error.what();
    }
    return row;
  }

  PlanRow row(std::string value, double number, const ClusterRequest& request) {
    return row(std::move(value), number, source_, request, cache());
  }
  // Returns whether a plan fits according to layer costs, scaled by how far simulations exceeded estimates so far.
  bool fits(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache) {
    try {
      const auto memory = static_cast<double>(usable_memory(request));
      return first_fitting_plan(source, request, cache, static_cast<int64_t>(memory / excess_)).has_value();
    } catch (const InfeasibleError&) {
      return false;
    }
  }

 private:
  StepSource source_;
  ClusterRequest request_;
  std::map<std::string, LayerCostCache> caches_;
  std::map<int64_t, StepSource> sequences_;
  double excess_ = 1;  // maximum ratio of simulated to estimated bytes
};

// Returns the given values, or else `usual`. Throws Error unless all are positive.
std::vector<double> values_of(const PlanSweepOptions& question, std::vector<double> usual) {
  std::vector<double> values = question.values.empty() ? std::move(usual) : question.values;
  for (const double value : values) {
    if (!(value > 0) || !std::isfinite(value)) {
      throw Error(fmt::format("--values of --sweep {} must be above 0, not {}", to_string(question.kind), value));
    }
  }
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

// Devices per node (innermost link level) if that divides the number of devices; otherwise 1.
int64_t machine_of(const ClusterRequest& request) {
  const int64_t machine = request.links.levels.empty() ? 1 : request.links.levels.front().size;
  return machine > 0 && request.devices % machine == 0 ? machine : 1;
}

PlanRow row_of_devices(ScenarioRunner& runner, int64_t devices) {
  ClusterRequest request = runner.request();
  request.devices = devices;
  return runner.row(fmt::format("{}", devices), static_cast<double>(devices), request);
}

// Powers of two from 1/8 to 8 times the requested number, in whole nodes.
std::vector<double> usual_devices(const ClusterRequest& request) {
  constexpr int64_t kAround = 8;
  std::vector<double> counts;
  int64_t fewest = request.devices;
  while (fewest % 2 == 0 && fewest / 2 >= machine_of(request) && fewest * kAround > request.devices) fewest /= 2;
  for (int64_t devices = fewest; devices <= request.devices * kAround; devices *= 2) {
    counts.push_back(static_cast<double>(devices));
  }
  return counts;
}

std::string value_and_share(const PlanRow& row) { return fmt::format("{} ({:.1f} %)", row.value, 100 * row.share); }

PlanTable sweep_devices(ScenarioRunner& runner, const PlanSweepOptions& question) {
  PlanTable table{.kind = question.kind,
                  .title = fmt::format("{} samples per step with more and fewer devices", runner.request().batch),
                  .head = "devices"};
  for (const double devices : values_of(question, usual_devices(runner.request()))) {
    table.rows.push_back(row_of_devices(runner, static_cast<int64_t>(devices)));
  }
  const auto reaches = [&](const PlanRow& row) { return row.why_not.empty() && row.share >= question.share; };
  std::optional<PlanRow> above, under;
  for (const PlanRow& row : table.rows) {
    if (!row.why_not.empty()) continue;
    if (reaches(row)) {
      above = row;
      under.reset();
    } else if (!under) {
      under = row;
    }
  }
  const std::string share = fmt::format("{:.0f} % of peak FLOP/s", 100 * question.share);
  if (above && under) {
    // Bisects to a quarter of the gap: finer numbers have few divisors, and would show that instead.
    const int64_t step = std::max(machine_of(runner.request()), (under->devices - above->devices) / 4);
    while (under->devices - above->devices > step) {
      PlanRow row = row_of_devices(runner, above->devices + (under->devices - above->devices) / (2 * step) * step);
      table.rows.push_back(row);
      (reaches(row) ? above : under) = std::move(row);
      if (!under->why_not.empty()) break;
    }
    table.findings.push_back(fmt::format("efficiency drops below {} between {} and {} devices", share,
                                         value_and_share(*above), value_and_share(*under)));
  } else if (above) {
    table.findings.push_back(fmt::format("efficiency is still above {} at {} devices, the largest number tried", share,
                                         value_and_share(*above)));
  } else if (under) {
    table.findings.push_back(fmt::format("efficiency is below {} from {} devices, the smallest number that fits", share,
                                         value_and_share(*under)));
  } else {
    table.findings.push_back("no plan was found for any number of devices tried");
  }
  std::ranges::stable_sort(table.rows, {}, &PlanRow::number);
  return table;
}

void speed_up(LinkLevel& level, double factor) {
  level.bandwidth *= factor;
  level.direct *= factor;
  for (LinkGroup& group : level.groups) {
    group.bandwidth *= factor;
    group.direct *= factor;
  }
}

// Links without cost, as an upper bound for faster networks.
Interconnect free_links(Interconnect links) {
  constexpr double kEndless = 1e30;
  links.base = links.device_share = links.ring_fill = 0;
  for (LinkLevel& level : links.levels) {
    level.latency = 0;
    speed_up(level, kEndless);
  }
  return links;
}

// Returns whether layer costs are unchanged: tensor parallelism stays within the innermost links, as fast as before.
bool layer_costs_unchanged(const ClusterRequest& request, size_t level) {
  const auto leaves_node = [&](int64_t tensor) { return tensor > request.links.levels.front().size; };
  return level != 0 && std::ranges::none_of(request.tensor, leaves_node);
}

PlanTable sweep_network(ScenarioRunner& runner, const PlanSweepOptions& question) {
  const ClusterRequest& request = runner.request();
  const Interconnect& links = request.links;
  if (!links.tables.empty() || !links.axes.empty()) {
    throw Error(fmt::format(
        "the interconnect '{}' has measured tables, which cannot be scaled; use one that has only levels, such as h100",
        links.name));
  }
  if (links.levels.empty()) throw Error(fmt::format("the interconnect '{}' has no levels", links.name));
  PlanTable table{.kind = question.kind, .title = "best plans with faster links", .head = "links"};
  PlanRow own = runner.row("unchanged", 1, request);
  table.rows.push_back(own);
  const auto add_row = [&](const std::string& name, double number, Interconnect faster, LayerCostCache& cache) {
    ClusterRequest changed = request;
    changed.links = std::move(faster);
    table.rows.push_back(runner.row(name, number, runner.source(), changed, cache));
    const PlanRow& row = table.rows.back();
    if (own.why_not.empty() && row.why_not.empty()) {
      table.findings.push_back(fmt::format("{}: {:+.1f} % step time", name, 100 * (row.seconds / own.seconds - 1)));
    }
  };
  for (size_t level = links.levels.size(); level-- > 0;) {
    // Each level separately. For the innermost one, a single factor shows whether it matters.
    for (const double factor : values_of(
             question, level == 0 && links.levels.size() > 1 ? std::vector<double>{2} : std::vector<double>{2, 4, 8})) {
      Interconnect faster = links;
      speed_up(faster.levels[level], factor);
      const std::string name = fmt::format("{} x {:g}", links.levels[level].name, factor);
      add_row(name, factor, std::move(faster),
              layer_costs_unchanged(request, level) ? runner.cache() : runner.cache(name));
    }
  }
  add_row("no communication cost", 0, free_links(links), runner.cache("free"));
  if (own.why_not.empty()) {
    table.findings.insert(table.findings.begin(),
                          fmt::format("exposed communication takes {} of {} ({:.1f} %)", human_seconds(own.exposed),
                                      human_seconds(own.seconds), 100 * own.exposed / own.seconds));
  }
  return table;
}

PlanTable sweep_memory(ScenarioRunner& runner, const PlanSweepOptions& question) {
  const ClusterRequest& request = runner.request();
  const auto own = static_cast<double>(request.memory.value_or(request.device.memory));
  PlanTable table{.kind = question.kind, .title = "best plans with more and less memory", .head = "memory"};
  const auto row_of = [&](int64_t memory) {
    ClusterRequest changed = request;
    changed.memory = memory;
    return runner.row(human_bytes(memory), static_cast<double>(memory), changed);
  };
  std::vector<double> usual{0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, 3, 4};
  for (double& memory : usual) memory *= own;
  for (const double memory : values_of(question, std::move(usual))) {
    table.rows.push_back(row_of(static_cast<int64_t>(memory)));
  }
  const auto first = std::ranges::find_if(table.rows, [](const PlanRow& row) { return row.why_not.empty(); });
  if (first == table.rows.end()) {
    table.findings.push_back(fmt::format("no plan fits in {}", table.rows.back().value));
    return table;
  }
  const PlanRow most = table.rows.back();
  constexpr double kSame = 1.01;
  const auto enough = std::ranges::find_if(
      table.rows, [&](const PlanRow& row) { return row.why_not.empty() && row.seconds <= kSame * most.seconds; });
  std::string last = fmt::format("more than {} gains less than 1 %", enough->value);
  if (enough == table.rows.end() - 1)
    last = fmt::format("the gain has not levelled off at {}, the largest value tried", most.value);
  // Finds the smallest memory that fits: bisects to 1 % of the memory for tensors, then adds 1 % until simulations fit.
  const int64_t overhead = runtime_overhead_bytes(request.device);
  auto high = static_cast<int64_t>(first->number);
  int64_t low = first == table.rows.begin() ? overhead : static_cast<int64_t>(std::prev(first)->number);
  const auto hundredth = [&] { return std::max<int64_t>(1, (high - overhead) / 100); };
  while (high - low > hundredth()) {
    ClusterRequest changed = request;
    changed.memory = low + (high - low) / 2;
    (runner.fits(runner.source(), changed, runner.cache()) ? high : low) = *changed.memory;
  }
  for (PlanRow least = row_of(high); high < static_cast<int64_t>(first->number); least = row_of(high += hundredth())) {
    if (!least.why_not.empty()) continue;
    table.findings.push_back(fmt::format("{} is the smallest that fits: {}, {} per step", least.value,
                                         to_string(least.plan), human_seconds(least.seconds)));
    table.rows.push_back(std::move(least));
    break;
  }
  table.findings.push_back(std::move(last));
  std::ranges::stable_sort(table.rows, {}, &PlanRow::number);
  return table;
}

// Finds the largest batch without pipeline and gradient accumulation, by doubling.
std::optional<PlanRow> largest_at_once(ScenarioRunner& runner) {
  constexpr int64_t kMostSamples = 4096;
  std::optional<PlanRow> largest;
  std::vector<int64_t> tensors;
  for (int64_t tensor = 1; tensor <= machine_of(runner.request()); tensor *= 2) tensors.push_back(tensor);
  if (!runner.request().tensor.empty()) tensors = runner.request().tensor;
  for (const int64_t tensor : tensors) {
    ClusterRequest request = runner.request();
    request.tensor = {tensor};
    request.pipeline = {1};
    const int64_t data = request.devices / tensor;
    for (int64_t samples = 1; samples <= kMostSamples; samples *= 2) {
      request.micro_batch = {samples};
      request.batch = data * samples;
      if (largest && request.batch <= static_cast<int64_t>(largest->number)) continue;
      if (!runner.fits(runner.source(), request, runner.cache())) break;
      PlanRow row =
          runner.row(fmt::format("{} in one pass", request.batch), static_cast<double>(request.batch), request);
      if (!row.why_not.empty()) break;
      largest = std::move(row);
    }
  }
  return largest;
}

PlanTable sweep_batch(ScenarioRunner& runner, const PlanSweepOptions& question) {
  const ClusterRequest& own = runner.request();
  PlanTable table{.kind = question.kind, .title = "best plans with larger and smaller batches", .head = "samples"};
  std::vector<double> usual;
  for (const double factor : {0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    const double samples = factor * static_cast<double>(own.batch);
    if (samples >= 1) usual.push_back(std::floor(samples));
  }
  for (const double samples : values_of(question, std::move(usual))) {
    ClusterRequest request = own;
    request.batch = static_cast<int64_t>(samples);
    table.rows.push_back(runner.row(fmt::format("{}", request.batch), samples, request));
  }
  const auto reaches = [&](const PlanRow& row) { return row.why_not.empty() && row.share >= question.share; };
  const auto first = std::ranges::find_if(table.rows, reaches);
  const std::string share = fmt::format("{:.0f} % of peak FLOP/s", 100 * question.share);
  table.findings.push_back(first == table.rows.end() ? fmt::format("no batch tried reaches {}", share)
                                                     : fmt::format("{} samples or more reach {}", first->value, share));
  if (runner.source().any_micro_batch && own.micro_batch.empty() && own.pipeline.empty()) {
    if (std::optional<PlanRow> largest = largest_at_once(runner)) {
      table.findings.push_back(
          fmt::format("{} samples is the largest batch in one pass: {}; larger batches use gradient accumulation with "
                      "the same memory",
                      static_cast<int64_t>(largest->number), to_string(largest->plan)));
      table.rows.push_back(std::move(*largest));
    } else {
      table.findings.push_back("no batch fits in one pass without a pipeline");
    }
  }
  std::ranges::stable_sort(table.rows, {}, &PlanRow::number);
  return table;
}

PlanTable sweep_sequence(ScenarioRunner& runner, const PlanSweepOptions& question) {
  const int64_t own = runner.request().sequence;
  if (own == 0) throw Error("--sweep sequence requires the sequence length: give --seq (sequence=)");
  PlanTable table{
      .kind = question.kind,
      .title = fmt::format("best plans with other sequence lengths, {} tokens per step", runner.request().batch * own),
      .head = "tokens"};
  // Longer sequences use micro-batches of one sample, which need the least memory.
  const auto request_of = [&](int64_t tokens) {
    ClusterRequest changed = with_sequence(runner.request(), tokens);
    if (tokens > own && changed.micro_batch.empty()) changed.micro_batch = {1};
    return changed;
  };
  const auto cache_of = [&](int64_t tokens) -> LayerCostCache& {
    return tokens == own ? runner.cache() : runner.cache(fmt::format("sequence {}", tokens));
  };
  const auto fit = [&](int64_t tokens) {
    return runner.fits(runner.source_of(tokens), request_of(tokens), cache_of(tokens));
  };
  const auto row_of = [&](int64_t tokens) {
    return runner.row(fmt::format("{}", tokens), static_cast<double>(tokens), runner.source_of(tokens),
                      request_of(tokens), cache_of(tokens));
  };
  for (const double tokens : values_of(question, {})) table.rows.push_back(row_of(static_cast<int64_t>(tokens)));
  // Doubles the length until nothing fits, or halves it until something does; then bisects to 1/16.
  constexpr int64_t kLongest = int64_t{1} << 24, kShortest = 16;
  int64_t fits = own, too_long = 0;
  while (fits >= kShortest && !fit(fits)) {
    too_long = fits;
    fits /= 2;
  }
  if (fits < kShortest) {
    table.findings.push_back(fmt::format("sequences of {} tokens do not fit either", too_long));
    return table;
  }
  if (question.values.empty()) table.rows.push_back(row_of(fits));
  std::string limit;  // why the model does not support longer ones
  while (too_long == 0 && fits < kLongest) {
    bool longer = false;
    try {
      longer = fit(2 * fits);
    } catch (const Error& error) {
      limit = error.what();
    } catch (const std::invalid_argument& error) {  // thrown by built-in models
      limit = error.what();
    }
    if (!limit.empty()) break;
    if (!longer) {
      too_long = 2 * fits;
    } else {
      fits *= 2;
      if (question.values.empty()) table.rows.push_back(row_of(fits));
    }
  }
  const int64_t step = std::max<int64_t>(1, fits / 16);
  while (too_long != 0 && too_long - fits > step) {
    const int64_t middle = fits + (too_long - fits) / (2 * step) * step;
    (fit(middle) ? fits : too_long) = middle;
  }
  for (int tries = 0; tries < 4 && fits >= kShortest; ++tries, fits -= step) {
    const auto known = std::ranges::find(table.rows, static_cast<double>(fits), &PlanRow::number);
    PlanRow row = known != table.rows.end() ? *known : row_of(fits);
    if (!row.why_not.empty()) continue;
    table.findings.push_back(
        fmt::format("sequences of {} tokens are the longest that fit, to within 1/16: {}", fits, to_string(row.plan)));
    if (!limit.empty()) table.findings.back() = fmt::format("sequences of {} tokens fit; {}", fits, limit);
    if (known == table.rows.end()) table.rows.push_back(std::move(row));
    break;
  }
  std::ranges::stable_sort(table.rows, {}, &PlanRow::number);
  return table;
}

constexpr double kHour = 3600, kDay = 24 * kHour;

DeviceOffer parse_offer(const std::string& name, const JsonPlace& place) {
  DeviceOffer offer;
  std::string links;
  if (place.is_object()) {
    offer.per_hour = place["per_hour"].amount();
    if (const auto most = place.find("most")) offer.most = most->integer(1, int64_t{1} << 40);
    links = place.text_or("interconnect", "");
    place.refuse_other_keys("a price");
  } else {
    offer.per_hour = place.amount();
  }
  if (!(offer.per_hour > 0)) place.fail("is not a price: give a number above 0, per device and hour");
  const Machine machine = Machine::find(name, links);
  if (!machine.links) place.fail("has no default interconnect: add \"interconnect\", a name or a file");
  offer.device = machine.specs();
  offer.links = machine.network();
  return offer;
}

// Finds the fewest devices of one type that train all tokens in time, starting from an estimate, in steps of 1/8.
class Offer {
 public:
  Offer(ScenarioRunner& runner, const PlanSweepOptions& question, const DeviceOffer& offer, std::vector<PlanRow>& rows)
      : runner_(runner), question_(question), offer_(offer), rows_(rows) {
    request_ = runner.request();
    if (offer.device.name != request_.device.name) request_.memory.reset();
    request_.device = offer.device;
    request_.links = offer.links;
    machine_ = std::max<int64_t>(1, offer.links.levels.empty() ? 1 : offer.links.levels.front().size);
  }

  std::optional<PlanRow> fewest() {
    constexpr int kTries = 16;
    int64_t devices = whole_nodes(runner_.request().devices);
    PlanRow row = row_of(devices);
    for (int tries = 0; tries < kTries && !row.why_not.empty() && 2 * devices <= most(); ++tries)
      row = row_of(devices *= 2);
    if (!row.why_not.empty()) return std::nullopt;
    const double guess = std::ceil(static_cast<double>(devices) * row.training / question_.within);
    row = row_of(whole_nodes(static_cast<int64_t>(std::min(guess, kMostDevices))));
    // Increases: doubles while nothing fits, otherwise by one step.
    for (int tries = 0; tries < kTries && !in_time(row); ++tries) {
      const int64_t more = row.devices + (row.why_not.empty() ? step(row.devices) : row.devices);
      if (more > most()) return std::nullopt;
      row = row_of(more);
    }
    if (!in_time(row)) return std::nullopt;
    for (int tries = 0; tries < kTries && row.devices > machine_; ++tries) {
      PlanRow less = row_of(row.devices - step(row.devices - 1));
      if (!in_time(less)) break;
      row = std::move(less);
    }
    return row;
  }

 private:
  static constexpr double kMostDevices = 1 << 20;

  int64_t most() const {
    const auto all = static_cast<int64_t>(kMostDevices);
    return offer_.most > 0 ? std::clamp(offer_.most / machine_ * machine_, machine_, all) : all;
  }
  // A step is 1/8 to 1/16 of the devices, since other numbers have few divisors.
  int64_t step(int64_t devices) const {
    const auto machines = static_cast<uint64_t>(std::max<int64_t>(1, devices / machine_));
    return machine_ * static_cast<int64_t>(std::max<uint64_t>(1, std::bit_floor(machines) / 8));
  }
  int64_t whole_nodes(int64_t devices) const {
    const int64_t by = step(devices);
    return std::min(most(), std::max(by, (devices + by - 1) / by * by));
  }
  bool in_time(const PlanRow& row) const { return row.why_not.empty() && row.training <= question_.within; }

  PlanRow row_of(int64_t devices) {
    const std::string name = fmt::format("{} x {}", devices, offer_.device.name);
    const auto known = std::ranges::find(rows_, name, &PlanRow::value);
    if (known != rows_.end()) return *known;
    request_.devices = devices;
    const bool own = offer_.device.name == runner_.request().device.name;
    PlanRow row = runner_.row(name, static_cast<double>(devices), runner_.source(), request_,
                              own ? runner_.cache() : runner_.cache("offer " + offer_.device.name));
    if (row.why_not.empty()) {
      row.training = row.seconds * question_.tokens / static_cast<double>(request_.batch * request_.sequence);
      row.price = row.training / kHour * static_cast<double>(devices) * offer_.per_hour;
    }
    rows_.push_back(row);
    return row;
  }

  ScenarioRunner& runner_;
  const PlanSweepOptions& question_;
  const DeviceOffer& offer_;
  std::vector<PlanRow>& rows_;
  ClusterRequest request_;
  int64_t machine_ = 1;
};

PlanTable sweep_price(ScenarioRunner& runner, const PlanSweepOptions& question) {
  if (question.offers.empty()) {
    throw Error("--sweep price requires --prices FILE, with prices per device and hour such as {\"h100\": 2.5}");
  }
  if (!(question.tokens > 0) || !(question.within > 0)) {
    throw Error("--sweep price requires --tokens and --within, for example --tokens 15T --within 14d");
  }
  if (runner.request().sequence == 0) throw Error("--sweep price requires the sequence length: give --seq");
  PlanTable table{.kind = question.kind,
                  .title = fmt::format("{:g} tokens within {:.1f} days", question.tokens, question.within / kDay),
                  .head = "cluster"};
  std::optional<PlanRow> cheapest;
  for (const DeviceOffer& offer : question.offers) {
    const std::optional<PlanRow> row = Offer(runner, question, offer, table.rows).fewest();
    if (!row) {
      table.findings.push_back(
          fmt::format("no number of {} devices tried trains all tokens in time", offer.device.name));
    } else if (!cheapest || row->price < cheapest->price) {
      cheapest = row;
    }
  }
  if (cheapest) {
    table.findings.insert(
        table.findings.begin(),
        fmt::format("cheapest: {}, {:.1f} days, {:.0f} in the currency of the prices: {}", cheapest->value,
                    cheapest->training / kDay, cheapest->price, to_string(cheapest->plan)));
  }
  std::ranges::stable_sort(table.rows, [](const PlanRow& a, const PlanRow& b) {
    return std::pair(!a.why_not.empty(), a.price) < std::pair(!b.why_not.empty(), b.price);
  });
  return table;
}

// Indexed by PlanSweepKind.
constexpr std::array kSweeps{sweep_devices, sweep_network, sweep_memory, sweep_batch, sweep_sequence, sweep_price};

}  // namespace

std::vector<DeviceOffer> parse_offers(const std::string& text, const std::string& name) {
  const nlohmann::json json = parse_json(text, name);
  const std::string heading = name + ": prices, for example {\"h100\": 2.5}";
  const JsonPlace place(json, heading);
  std::vector<DeviceOffer> offers;
  for (const auto& [device, entry] : place.members()) offers.push_back(parse_offer(device, entry));
  if (offers.empty()) place.fail("contains no device");
  return offers;
}

std::vector<DeviceOffer> read_offers(const std::string& path) { return parse_offers(read_file(path), path); }

struct PlanSweep::Kept {
  ScenarioRunner runner;
  int simulated;  // ClusterRequest::simulated for plan(); rows of a sweep use 1
};

PlanSweep::PlanSweep(StepSource source, ClusterRequest request) {
  const int simulated = request.simulated;
  kept_ = std::make_shared<Kept>(Kept{ScenarioRunner(std::move(source), std::move(request)), simulated});
}

ClusterPlan PlanSweep::plan() {
  ClusterRequest request = kept_->runner.request();
  request.simulated = kept_->simulated;
  ClusterPlan answer = search_plan(kept_->runner.source(), request, kept_->runner.cache(), true);
  if (answer.simulated.empty()) {
    throw InfeasibleError(suggest_fitting_changes(kept_->runner.source(), request, kept_->runner.cache()));
  }
  return answer;
}

PlanTable PlanSweep::run(const PlanSweepOptions& question) {
  if (!(question.share > 0 && question.share <= 1)) {
    throw Error(fmt::format("the share of peak FLOP/s must be above 0 and at most 1, not {}", question.share));
  }
  return kSweeps[static_cast<size_t>(question.kind)](kept_->runner, question);
}

SimulatedPlan PlanSweep::simulate(std::string_view plan) {
  const StepSource& source = kept_->runner.source();
  const ClusterRequest& request = kept_->runner.request();
  return kept_->runner.cache().simulator.of(source, request, parse_plan(plan, source, request));
}

}  // namespace shadowgraph
