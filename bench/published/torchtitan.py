"""Compares predictions with torchtitan's Llama 3 on 96 GB H100s: throughput and reserved memory.

    PYTHONPATH=build/python python bench/published/torchtitan.py [--csv FILE] [--json FILE]

The rows in torchtitan.csv are from benchmark pages of pytorch/torchtitan, December 2024 and June 2025. The programs
follow commit 9dec370: FSDP2, tensor parallelism with sequence and loss parallelism, and context parallelism. Pipelines
have one micro-batch per rank. Blocks use activation checkpoints and torch.compile; float8 parameters are all-gathered
in float8.

Effects of torch.compile are modeled manually (compiled_kernels.py): fused kernels, and fewer tensors saved for
backward. Asynchronous tensor parallelism uses one chunk per rank.
"""

from comparison import compare
from torchtitan_pipeline import ranks_of
from torchtitan_programs import Row, device

TABLE, TITLE, UNIT = "torchtitan.csv", "torchtitan, Llama 3", "tokens/s and GPU"
WORST = ("The clocks of this GPU (500 W, HBM2e) are not published. The two longest sequences ran as slowly as without "
         "load balancing of causal context parallelism; their reserved memory is predicted 5 to 6 % too high. "
         "In the 405B pipeline with 1F1B the last rank has 7 GiB less than published, for unknown reasons.")


def predicted(row):
    program = Row(row)
    if row["schedule"]:
        ranks = ranks_of(program, row["schedule"])
        seconds = ranks.run(spec=device(), interconnect="h100").seconds
        reserved = [role.profile.dict()["device_memory"]["reserved_peak_bytes"] for role in ranks.roles]
    else:
        report = program.profile().dict()
        seconds = report["communication"]["overlap"]["seconds"]
        reserved = [report["device_memory"]["reserved_peak_bytes"]]
    return {"predicted": program.tokens_of_gpu(row) / seconds, "reserved": max(reserved) / 2**30,
            "reserved_of_ranks": [each / 2**30 for each in reserved]}  # fmt: skip


def others(answers):
    """Returns the published reserved bytes, or None."""
    return {"reserved GiB": [{"published": float(row["reserved_gib"]), "predicted": row["reserved"]} for row in answers
                             if row["reserved_gib"]]}  # fmt: skip


def published(row):
    return float(row["tokens_per_second_per_gpu"])


def why_not(row):
    if row["compiled"] == "no" and (row["precision"] != "bf16" or row["tensor"] != "1"):
        return "float8 and tensor parallel that are not compiled"
    if row["pipeline"] != "1" and row["context"] != "1":
        return "context parallel inside a pipeline"
    return None


def is_compared(row):
    return why_not(row) is None


def part(row):
    return f"{row['model']}{', long sequences' if int(row['sequence']) > 8192 else ''}"


AXES = {"fsdp": "shard", "tp": "tensor", "cp": "context", "pp": "pipeline"}


def named(row):
    words = [f"{row['model']} on {row['gpus']}",
             *(f"{axis} {row[column]}" for axis, column in AXES.items() if row[column] != "1"),
             row["schedule"], f"{row['sequence']} x {row['micro_batch']}", row["precision"],
             "eager" if row["compiled"] == "no" else "", "asynchronous" if row["asynchronous_tensor"] == "yes" else "",
             f"{row['reserved']:.1f} of {row['reserved_gib']} GiB" if row["reserved_gib"] else ""]  # fmt: skip
    return ", ".join(filter(None, words))


if __name__ == "__main__":
    compare("torchtitan")
