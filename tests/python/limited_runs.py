"""Runs the tool with bounded time and memory, and describes abnormal exits."""

import os
import pathlib
import queue
import subprocess
import sys
import tempfile

SECONDS = 20  # CPU seconds
WALL = 180
ADDRESSES = 16 << 30
RESIDENT_KB = 800 << 10  # libtorch itself takes some 120 MiB


class Runs:
    """Runs one tool, each time in a new process; `server` is the compiled tests/hostile/fork_server.cpp."""

    def __init__(self, tool, server, folder, jobs=1):
        home = folder / "home"
        home.mkdir()
        environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home), "OMP_NUM_THREADS": "1",
                                    "LD_PRELOAD": str(server)}
        self.folder = folder
        self.servers = queue.SimpleQueue()
        for _ in range(jobs):
            self.servers.put(subprocess.Popen([tool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment))

    def run(self, *arguments, cwd=None):
        """Returns (exit code, stdout, stderr, peak resident KB); signals give a negative code."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            files = [pathlib.Path(name) / stream for stream in ("out", "err")]
            words = [cwd or name, *files, SECONDS, WALL, ADDRESSES, "shadowgraph", *arguments]
            request = b"".join(os.fsencode(str(word)) + b"\0" for word in (len(words), *words))
            server = self.servers.get()
            server.stdin.write(request)
            server.stdin.flush()
            answer = server.stdout.readline()
            self.servers.put(server)
            status, resident = map(int, answer.split())
            texts = [file.read_bytes().decode("utf-8", "replace") for file in files]
        return os.waitstatus_to_exitcode(status), *texts, resident

    def good(self, *arguments):
        code, out, err, _ = self.run(*arguments)
        if code != 0:
            sys.exit(f"the good inputs: {' '.join(map(str, arguments))}: {code}\n{err}")
        return out


def problem_of(code, err, resident):
    lines = [line for line in err.splitlines() if not line.startswith("shadowgraph: capturing")]
    message = "\n".join(lines).removeprefix("shadowgraph: ").strip()
    if code < 0:
        return f"ended by signal {-code}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code != 0 and len(message) < 10:
        return "no message"
    if resident > RESIDENT_KB:
        return f"{resident >> 10} MiB"
    for trace in ("internal error", "Exception raised from", "terminate called", "std::", "json.exception",
                  "out of memory\n"):
        if trace in err:
            return f"the message shows '{trace.strip()}'"
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 for c in err):
        return "control characters in the message"
    return ""
