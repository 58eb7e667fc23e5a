"""Compares predictions with nanotron's best runs of Llama on 8 to 512 H100s: highest reserved memory of a stage.

    PYTHONPATH=build/python python bench/published/nanotron_memory.py [--csv FILE] [--rows 0..8] [--json FILE]

The rows are those of nanotron.csv. The rank that logged memory is not published; the first stage has the most.
"""

from comparison import compare
from nanotron import captured, is_compared, layers_of, named, part, rows  # noqa: F401

import shadowgraph as sg

TABLE, TITLE, UNIT = "nanotron.csv", "nanotron's Llama on H100, reserved", "GiB"
WORST = "Runs with large micro-batches or tied embeddings used more memory than the program here."
STEPS = 2


def published(row):
    return float(row["mem_GB"])


def predicted(row):
    counts = layers_of(row)
    ahead = len(counts)  # forwards of the first stage before its first backward
    several = min(row["gas"], ahead + 1)
    graph = captured(row, counts[0], True, ahead == 1, several, min(ahead, several), STEPS)
    memory = sg.profile(graph, spec="h100").dict()["device_memory"]
    return {"predicted": memory["reserved_peak_bytes"] / 2**30}


if __name__ == "__main__":
    compare("nanotron_memory")
