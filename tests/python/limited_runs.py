"""Runs of the tool with bounded time and memory, and what is wrong with how one ended."""

import os
import resource
import subprocess
import sys
import tempfile
import threading

SECONDS = 20  # of the processor
WALL = 180
ADDRESSES = 16 << 30
RESIDENT_KB = 800 << 10  # libtorch itself takes some 250 MiB


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))


class Runs:
    """Runs of one tool, each in a folder of its own."""

    def __init__(self, tool, folder):
        self.tool = tool
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()

    def run(self, *arguments, cwd=None):
        """(exit code, stdout, stderr, largest resident KB); a signal is a negative code."""
        environment = os.environ | {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen([self.tool, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=err, cwd=cwd, env=environment, preexec_fn=limit)
            timer = threading.Timer(WALL, process.kill)
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "replace"))
        return process.returncode, *texts, usage.ru_maxrss

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
