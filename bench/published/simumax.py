"""Compares predictions with SimuMax's runs of Llama in Megatron-LM on eight B200s: peak allocation of the last rank.

    PYTHONPATH=build/python python bench/published/simumax.py [--csv FILE] [--rows 0..8] [--json FILE]

The rows in simumax.csv are from MooreThreads/SimuMax, docs/b200: Megatron-LM with TransformerEngine, one sequence per
micro-batch, distributed optimizer, cross entropy of TransformerEngine.
"""

import re

import megatron
from comparison import HERE, compare, read_rows

TABLE, TITLE, UNIT = "simumax.csv", "SimuMax's runs of Megatron-LM on B200, most allocated", "bytes"
WORST = "The buffers of context parallel exchanges are only partly modeled."
# Width, inner width, heads, key/value heads.
SIZES = {"llama3-70b": (8192, 28672, 64, 8), "llama3-405b": (16384, 53248, 128, 16)}
GPUS, WORDS = 8, 128256


def _of_case(case, name, usual):
    found = re.search(rf"_{name}(\d+)", case)
    return int(found[1]) if found else usual


def rows(path=HERE / TABLE):
    return [{**row, "hardware": "b200", "given": given_of(row)} for row in read_rows(path)]


def given_of(row):
    """Returns the Megatron-LM arguments of a case."""
    if row["model"] not in SIZES:
        return {"multi-latent-attention": "true"}
    hidden, inner, heads, groups = SIZES[row["model"]]
    degree = lambda name: _of_case(row["case"], name, 1)  # noqa: E731
    tensor, pipeline, context = degree("tp"), degree("pp"), degree("cp")
    data = GPUS // (tensor * pipeline * context)
    length = _of_case(row["case"], "seq", 4096)
    numbers = {"num-layers": row["layers"], "hidden-size": hidden, "ffn-hidden-size": inner,
               "num-attention-heads": heads, "num-query-groups": groups, "seq-length": length,
               "max-position-embeddings": length, "micro-batch-size": 1,
               "global-batch-size": int(row["micro_batches"]) * data, "tensor-model-parallel-size": tensor,
               "pipeline-model-parallel-size": pipeline, "context-parallel-size": context, "vocab-size": WORDS,
               "attention-dropout": 0.0, "hidden-dropout": 0.0}  # fmt: skip
    flags = ("group-query-attention", "disable-bias-linear", "swiglu", "untie-embeddings-and-output-weights", "bf16",
             "use-distributed-optimizer", "sequence-parallel", "no-create-attention-mask-in-dataloader",
             "accumulate-allreduce-grads-in-fp32", "cross-entropy-loss-fusion")  # fmt: skip
    return {**{name: str(value) for name, value in numbers.items()}, **dict.fromkeys(flags, "true"),
            "position-embedding-type": "rope", "normalization": "RMSNorm", "transformer-impl": "transformer_engine",
            "cp-comm-type": "a2a", "cross-entropy-fusion-impl": "te"}  # fmt: skip


def published(row):
    return int(float(row["last_allocated_mib"]) * 2**20)


def predicted(row):
    return megatron.predicted({**row, "case": "gpt/" + row["case"]})


def why_not(row):
    return megatron.why_not({**row, "case": "gpt/" + row["case"]})


def is_compared(row):
    return why_not(row) is None


def part(row):
    return row["model"]


def named(row):
    return row["case"]


if __name__ == "__main__":
    compare("simumax")
