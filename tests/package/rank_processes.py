"""Runs a script once per rank as local processes and parses the last line that each prints as JSON."""

import json
import os
import re
import subprocess
import sys

TIMEOUT = 600


def run_ranks(script, size, *arguments):
    """Returns the JSON that each rank of `python script RANK SIZE ARGUMENTS...` printed last. All processes have
    ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, str(script), str(rank), str(size), *map(str, arguments)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
             for rank in range(size)]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=TIMEOUT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    # torch prefixes each line with the rank, once per process group that was created.
    prefix = re.compile(r"(.rank[0-9]+.: )+")
    failed = [f"rank {number} of {size}: {output}{prefix.sub('', errors)[-3000:]}"
              for number, (output, errors) in enumerate(outputs) if ranks[number].returncode != 0]  # fmt: skip
    assert not failed, "\n".join(failed)
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]
