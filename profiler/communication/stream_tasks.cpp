#include "profiler/communication/stream_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "profiler/stream_notes.h"
#include "profiler/time/copy_engines.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/kernel_class.h"

namespace shadowgraph {
namespace {

// A kernel more has a beginning and an end more.
constexpr double kBeginsAndEnds = 2e-6;

}  // namespace

StreamTasks::StreamTasks(const Graph& graph, const Communication& communication, const StepTime& time,
                         StreamSchedule& schedule, StreamTaskRules rules)
    : graph_(graph),
      communication_(communication),
      time_(time),
      schedule_(schedule),
      rules_(std::move(rules)),
      first_(schedule.tasks()),
      written_(graph) {
  host_call_ = time.calls() > 0 ? time.host() / static_cast<double>(time.calls()) : 0;
}

// 1: it goes as a whole.
uint32_t StreamTasks::pieces_of(NodeId node) const {
  uint32_t pieces = 1;
  const std::string_view note = graph_.has_notes(node) ? graph_.note(node, "pieces") : std::string_view();
  if (note.empty() || rules_.whole) return pieces;
  const auto [end, error] = std::from_chars(note.data(), note.data() + note.size(), pieces);
  if (error != std::errc() || end != note.data() + note.size() || pieces == 0) {
    throw Error(fmt::format("the note \"pieces\" of {} is no number: '{}'", graph_.target(node).name(), note));
  }
  return pieces;
}

uint32_t StreamTasks::task(NodeId node, uint32_t stream, StreamSchedule::Task what) {
  uint32_t& last = last_of(last_on_, stream);
  after_.push_back(last);
  what.issued = host_;
  what.device = rules_.device;
  last = schedule_.add(what, after_);
  node_of_.push_back(node);
  after_.clear();
  return last;
}

void StreamTasks::add(NodeId node) {
  const StreamNotes notes = stream_notes(graph_, node);
  for (const uint32_t event : notes.waits) wait_for(event);
  if (const Collective* collective = communication_.find(node)) {
    communicate(node, *collective, notes.stream);
  } else if (is_beside_kernels(graph_, node)) {
    copy(node, notes.stream);
  } else {
    compute(node, notes.stream);
  }
  if (notes.event != 0) events_[notes.event] = last_of(last_on_, notes.stream);
}

// An event whose node a pass has erased stands for all that was issued.
void StreamTasks::wait_for(uint32_t event) {
  if (const auto known = events_.find(event); known != events_.end()) {
    after_.push_back(known->second);
  } else if (!rules_.is_part) {
    for (const auto& [stream, last] : last_on_) after_.push_back(last);
  }
}

void StreamTasks::communicate(NodeId node, const Collective& collective, uint32_t stream) {
  host_ += host_call_;
  const double seconds = rules_.seconds ? rules_.seconds(collective) : collective.cost.seconds();
  const uint32_t channel = rules_.channel ? rules_.channel(collective) : collective.group;
  const uint32_t pieces = collective.asynchronous && seconds > 0 ? pieces_of(node) : 1;
  std::vector<uint32_t> made;  // pieces of what is sent
  if (pieces > 1) {
    const auto found = pieces_.find(graph_.value(graph_.arguments(node)[0].ref.value).storage);
    if (found != pieces_.end() && found->second.size() == pieces) made = found->second;
  }
  uint32_t& before = last_of(last_of_channel_, channel);
  if (collective.asynchronous) {
    // What the current stream is to wait for, it waits for all the same.
    if (!after_.empty()) task(node, stream, {});
    if (made.empty()) after_.push_back(last_of(last_on_, stream));
    stream = kFirstChannel + channel;
  }
  after_.push_back(before);
  const StreamSchedule::Task whole{.seconds = seconds,
                                   .is_collective = true,
                                   .meeting = rules_.meeting ? rules_.meeting(collective) : StreamSchedule::kNone};
  if (made.empty()) wait_for_inputs(node, stream);
  if (pieces > 1) {
    communicate_in_pieces(node, pieces, stream, whole, made);
  } else {
    task(node, stream, whole);
  }
  before = last_of(last_on_, stream);
  makes(node, before, stream);
  nodes_.emplace_back(node, before);
}

// A piece is sent when it is made; where nothing makes it in pieces, all are sent one after another.
void StreamTasks::communicate_in_pieces(NodeId node, uint32_t pieces, uint32_t stream, StreamSchedule::Task whole,
                                        const std::vector<uint32_t>& made) {
  whole.seconds /= pieces - 1;
  std::vector<uint32_t>& sent = pieces_[graph_.value(graph_.results(node)[0].ref.value).storage];
  sent.clear();
  for (uint32_t piece = 0; piece + 1 < pieces; ++piece) {
    if (!made.empty()) after_.push_back(made[piece]);
    sent.push_back(task(node, stream, whole));
    whole.meeting = StreamSchedule::kNone;
  }
}

void StreamTasks::compute(NodeId node, uint32_t stream) {
  const NodeTime& at = time_.of(node);
  const bool runs = at.kind != KernelClass::kFree;
  const std::string_view name = graph_.target(node).name();
  bool waits = name.starts_with("_c10d_functional::wait_tensor");
  // Who reads what comes in pieces waits for it.
  if (name == "_c10d_functional::wait_tensor") {
    waits = !pieces_.contains(graph_.value(graph_.results(node)[0].ref.value).storage);
  }
  if (runs) host_ += host_call_;
  const uint32_t pieces = runs ? pieces_of(node) : 1;
  if (pieces > 1) {
    makes(node, compute_in_pieces(node, pieces, stream, at.seconds), stream);
  } else {
    if (runs || waits) wait_for_inputs(node, stream);
    if (runs || !after_.empty()) {
      const uint32_t made = task(node, stream, {.seconds = runs ? at.seconds : 0});
      if (runs) makes(node, made, stream);
    }
  }
  nodes_.emplace_back(node, last_of(last_on_, stream));
}

// An engine begins when the stream has done what was issued before.
void StreamTasks::copy(NodeId node, uint32_t stream) {
  host_ += host_call_;
  if (!after_.empty()) task(node, stream, {});
  after_.push_back(last_of(last_on_, stream));
  stream = kFirstEngine + (graph_.value(graph_.results(node)[0].ref.value).device().is_cpu() ? 0 : 1);
  wait_for_inputs(node, stream);
  const uint32_t made = task(node, stream, {.seconds = time_.of(node).seconds, .is_copy = true});
  makes(node, made, stream);
  nodes_.emplace_back(node, made);
}

// The first piece of what was gathered is the rank's own. Where nothing was, pieces are made for who sends them.
uint32_t StreamTasks::compute_in_pieces(NodeId node, uint32_t pieces, uint32_t stream, double seconds) {
  std::vector<uint32_t> gathered;
  graph_.for_each_input(node, [&](ValueId value) {
    const auto found = pieces_.find(graph_.value(value).storage);
    if (found != pieces_.end() && found->second.size() + 1 == pieces) {
      gathered = found->second;
    } else {
      wait_for_input(value, stream);
    }
  });
  std::vector<uint32_t> made;
  for (uint32_t piece = 0; piece < pieces; ++piece) {
    if (piece > 0) host_ += host_call_;
    if (piece > 0 && !gathered.empty()) after_.push_back(gathered[piece - 1]);
    made.push_back(task(node, stream, {.seconds = seconds / pieces + (piece > 0 ? kBeginsAndEnds : 0)}));
  }
  const uint32_t last = made.back();
  if (gathered.empty()) pieces_[graph_.value(graph_.results(node)[0].ref.value).storage] = std::move(made);
  return last;
}

// A stream does in order what it is given: other streams alone are waited for.
void StreamTasks::wait_for_inputs(NodeId node, uint32_t stream) {
  graph_.for_each_input(node, [&](ValueId value) { wait_for_input(value, stream); });
}

void StreamTasks::wait_for_input(ValueId value, uint32_t stream) {
  written_.for_each(value, [&](const Made& made) {
    if (made.stream != stream) after_.push_back(made.task);
  });
}

void StreamTasks::makes(NodeId node, uint32_t made, uint32_t stream) {
  const auto note = [&](ValueId value) { written_.note(value, {made, stream}); };
  graph_.for_each_output(node, note);
  const auto arguments = graph_.arguments(node);
  for (const uint16_t position : graph_.facts(node).written) {
    if (position < arguments.size()) graph_.for_each_value(arguments.subspan(position, 1), note);
  }
}

}  // namespace shadowgraph
