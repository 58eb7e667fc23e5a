#include "tests/conformance/workers.h"

#include <sys/wait.h>

#include <cstdint>
#include <cstdio>
#include <poll.h>
#include <unistd.h>

#include "shadowgraph/error.h"

namespace shadowgraph::conformance {
namespace {

constexpr size_t kMostDeaths = 1000;  // avoids a process per sample

// A message from a child: a header, then `length` bytes.
struct Message {
  enum Kind : uint8_t { kBegin, kMark, kEnd } kind;
  char mark;
  uint32_t position;  // index within the child's share
  uint32_t length;
};

void write_all(int file, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t written = write(file, at, bytes);
    if (written <= 0) _exit(3);
    at += written;
    bytes -= static_cast<size_t>(written);
  }
}

struct Child {
  pid_t process = -1;
  int pipe = -1;
  size_t next = 0;  // its first index that has not started
  size_t step = 1;
  std::string received;
  bool working = false;
  char mark = ' ';
};

[[noreturn]] void child_main(int file, const std::vector<size_t>& indices, const Child& share, unsigned seconds,
                             const Work& work) {
  const auto send = [&](Message::Kind kind, char mark, size_t position, const std::string& text) {
    const Message message{kind, mark, static_cast<uint32_t>(position), static_cast<uint32_t>(text.size())};
    write_all(file, &message, sizeof message);
    write_all(file, text.data(), text.size());
  };
  for (size_t position = share.next; position < indices.size(); position += share.step) {
    send(Message::kBegin, ' ', position, "");
    alarm(seconds);
    const std::string text = work(indices[position], [&](char mark) { send(Message::kMark, mark, position, ""); });
    alarm(0);
    send(Message::kEnd, ' ', position, text);
  }
  std::fflush(nullptr);
  _exit(0);
}

void start(Child& child, const std::vector<size_t>& indices, unsigned seconds, const Work& work) {
  int ends[2];
  if (pipe(ends) != 0) throw Error("pipe failed");
  std::fflush(nullptr);
  child.process = fork();
  if (child.process < 0) throw Error("fork failed");
  if (child.process == 0) {
    close(ends[0]);
    child_main(ends[1], indices, child, seconds, work);
  }
  close(ends[1]);
  child.pipe = ends[0];
  child.received.clear();
  child.working = false;
}

// Extracts the complete messages from the received bytes.
void read_messages(Child& child, const std::vector<size_t>& indices, const Done& done) {
  size_t at = 0;
  Message message;
  while (child.received.size() - at >= sizeof message) {
    child.received.copy(reinterpret_cast<char*>(&message), sizeof message, at);
    if (child.received.size() - at - sizeof message < message.length) break;
    const std::string text = child.received.substr(at + sizeof message, message.length);
    at += sizeof message + message.length;
    if (message.kind == Message::kBegin) {
      child.working = true;
      child.mark = ' ';
      child.next = message.position + child.step;
    } else if (message.kind == Message::kMark) {
      child.mark = message.mark;
    } else {
      child.working = false;
      done(indices[message.position], /*died=*/false, child.mark, text);
    }
  }
  child.received.erase(0, at);
}

}  // namespace

void run_in_children(const std::vector<size_t>& indices, int processes, unsigned seconds, const Work& work,
                     const Done& done) {
  std::vector<Child> children(static_cast<size_t>(processes));
  for (size_t i = 0; i < children.size(); ++i) {
    children[i].next = i;
    children[i].step = children.size();
    start(children[i], indices, seconds, work);
  }
  size_t running = children.size();
  size_t deaths = 0;
  while (running != 0) {
    std::vector<pollfd> waiting;
    for (const Child& child : children) waiting.push_back({child.pipe, POLLIN, 0});
    poll(waiting.data(), waiting.size(), -1);
    for (size_t i = 0; i < children.size(); ++i) {
      Child& child = children[i];
      if (child.pipe < 0 || waiting[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t bytes = read(child.pipe, buffer, sizeof buffer);
      if (bytes > 0) {
        child.received.append(buffer, static_cast<size_t>(bytes));
        read_messages(child, indices, done);
        continue;
      }
      close(child.pipe);
      child.pipe = -1;
      int status = 0;
      waitpid(child.process, &status, 0);
      const bool died = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
      if (died && child.working) {
        const std::string how = !WIFSIGNALED(status)          ? "exit status " + std::to_string(WEXITSTATUS(status))
                                : WTERMSIG(status) == SIGALRM ? "more than " + std::to_string(seconds) + " s"
                                                              : "signal " + std::to_string(WTERMSIG(status));
        done(indices[child.next - child.step], /*died=*/true, child.mark, how);
      } else if (died) {
        throw Error("a child process died between samples");
      }
      if (died && ++deaths > kMostDeaths) throw Error("child processes keep dying: gave up");
      if (died && child.next < indices.size()) {
        start(child, indices, seconds, work);
      } else {
        --running;
      }
    }
  }
}

}  // namespace shadowgraph::conformance
