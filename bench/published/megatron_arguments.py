"""Arguments of a case of Megatron-LM's functional tests, with defaults of Megatron-LM."""

import dataclasses

import torch

OLDER = "dracooci"
GPUS, GPUS_OF_GB200_NODE = 8, 4
GPT2_WORDS, BERT_WORDS, BERT_CASED_WORDS = 50257, 30522, 28996
# BertWordPiece tokenizers add tokens for begin and end if there are extra ids.
ENDS = 2


# Arguments that affect memory and are not supported here.
LACKING = ("multi-latent-attention", "use-megatron-fsdp", "use-torch-fsdp2", "pipeline-model-parallel-layout",
           "perform-rl-step", "mtp-num-layers", "rerun-mode", "moe-layer-freq",
           "overlap-moe-expert-parallel-comm", "optimizer", "fp8-format", "fp4-format", "yaml-cfg", "recompute-modules",
           "moe-expert-capacity-factor", "moe-pad-expert-input-to-capacity", "moe-latent-size", "cuda-graph-impl",
           "enable-cuda-graph", "external-cuda-graph", "cpu-offloading", "fine-grained-activation-offloading",
           "optimizer-cpu-offload", "use-precision-aware-optimizer", "heterogeneous-layers-config-path",
           "hybrid-layer-pattern", "experimental-attention-variant", "fp32-residual-connection", "use-kitchen",
           "qk-l2-norm", "window-size")  # fmt: skip


class NotExpressed(Exception):
    """Raised for a case that the programs here do not support."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Sizes are those of the full model. `ranks` are in the order tensor, context, data, pipeline."""

    family: str  # gpt, bert, t5
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int  # key/value heads
    head: int  # head dimension
    sequence: int
    decoder_sequence: int
    decoder_layers: int
    positions: int
    words: int  # padded
    micro_batch: int
    micro_batches: int
    tensor: int
    pipeline: int
    virtual: int  # stages per rank
    context: int
    data: int
    sequence_parallel: bool
    distributed_optimizer: bool
    local: bool  # plain PyTorch modules instead of TransformerEngine
    attention: str  # unfused, flash, fused
    last_layers: int  # of the last rank
    experts: int
    expert_parallel: int
    expert_tensor: int  # expert tensor parallel size
    old: bool  # long-term support stack
    older: bool  # golden values of a cluster that ran an older stack
    dtype: torch.dtype
    gradients: torch.dtype  # of the buffer
    given: dict = dataclasses.field(hash=False)  # as published

    def flag(self, name):
        return self.given.get(name, "false") in ("true", True)

    def number(self, name, default):
        return type(default)(self.given.get(name, default))

    @property
    def gpus(self):
        return self.tensor * self.pipeline * self.context * self.data

    def sharers(self, of_experts=False):
        """Number of ranks with the same parameters, which share the state of a distributed optimizer."""
        ranks = self.data * self.context
        if of_experts:
            ranks = ranks * self.tensor // (self.expert_parallel * self.expert_tensor)
        return max(1, ranks // self.number("num-distributed-optimizer-instances", 1))

    @property
    def deterministic(self):
        return self.flag("deterministic-mode")

    @property
    def bias(self):
        return not self.flag("disable-bias-linear")

    @property
    def dropout(self):
        return self.number("hidden-dropout", 0.1), self.number("attention-dropout", 0.1)

    @property
    def gradient_fusion(self):
        return not self.flag("no-gradient-accumulation-fusion")

    @property
    def tied(self):
        return not self.flag("untie-embeddings-and-output-weights")

    @property
    def rotary(self):
        return self.given.get("position-embedding-type") == "rope" or self.flag("use-rotary-position-embeddings")

    @property
    def positions_learned(self):
        return not self.rotary and self.given.get("position-embedding-type") in (None, "learned_absolute")

    @property
    def loss_scale(self):
        return self.dtype == torch.float16


def of_row(row):
    """Returns the arguments of a row: case, hardware, given. Raises NotExpressed."""
    _refuse(row)
    given = _Given(row["given"])
    tensor = given.number("tensor-model-parallel-size", 1)
    pipeline = given.number("pipeline-model-parallel-size", 1)
    context = given.number("context-parallel-size", 1)
    data = _data_parallel(row, given, tensor * pipeline * context)
    micro = given.number("micro-batch-size")
    local = "local" in (given.text("transformer-impl"), given.text("spec"))
    each = given.number("num-layers-per-virtual-pipeline-stage", 0)
    sizes = _sizes(row, given)
    stages = sizes["layers"] // pipeline // each if each else 1
    return Arguments(
        **sizes, words=_words(row, given, tensor), micro_batch=micro,
        micro_batches=given.number("global-batch-size", micro * data) // (micro * data), tensor=tensor,
        pipeline=pipeline, virtual=given.number("num-virtual-stages-per-pipeline-rank", stages), context=context,
        data=data, sequence_parallel=given.flag("sequence-parallel") and tensor > 1,
        distributed_optimizer=given.flag("use-distributed-optimizer"), local=local,
        attention=_attention(given, local, row["hardware"]), old=row["hardware"].startswith("lts"),
        older=OLDER in row["hardware"], last_layers=_last_layers(given, sizes["layers"], pipeline),
        experts=given.number("num-experts", 0), expert_parallel=given.number("expert-model-parallel-size", 1),
        expert_tensor=given.number("expert-tensor-parallel-size", tensor), **_types(given),
        given=row["given"])  # fmt: skip


class _Given:
    def __init__(self, given):
        self._given = given

    def __contains__(self, name):
        return name in self._given

    def text(self, name, default=""):
        return self._given.get(name, default)

    def number(self, name, default=None):
        return int(self._given[name]) if name in self._given else default

    def flag(self, name):
        return self.text(name) == "true"


def _family(row):
    return row["case"].split("/")[0].split("-")[0]


def _refuse(row):
    case, given = row["case"], _Given(row["given"])
    if _family(row) not in ("gpt", "moe", "bert", "t5"):
        raise NotExpressed(f"{case}: families other than GPT, BERT and T5")
    for name in LACKING:
        if given.text(name, "false") != "false":
            raise NotExpressed(f"{case}: {name}")
    if given.text("recompute-granularity") == "full" and given.text("recompute-method") not in ("uniform", "block"):
        raise NotExpressed(f"{case}: recompute-method {given.text('recompute-method')}")
    if "num-experts" in given and not given.flag("disable-bias-linear"):
        raise NotExpressed(f"{case}: experts with biases")
    if _family(row) in ("gpt", "moe") and "tokenizer-type" in given and "vocab-size" not in given:
        raise NotExpressed(f"{case}: the vocabulary size of its tokenizer is not published")
    if "release" in case and given.flag("use-distributed-optimizer"):
        raise NotExpressed(f"{case}: the number of GPUs that share the optimizer state is not published")


def _data_parallel(row, given, ranks):
    """Returns the data parallel size. `ranks`: ranks per model replica."""
    gpus = GPUS_OF_GB200_NODE if "gb200" in row["hardware"] and row["case"].endswith("_1node") else GPUS
    if "release" in row["case"]:
        gpus = ranks  # the number has no effect without a distributed optimizer
    micro = given.number("micro-batch-size")
    # Fewer GPUs are used if the batch has less than one micro-batch per GPU.
    data = min(gpus // ranks, given.number("global-batch-size", gpus * micro) // micro)
    if data == 0:
        raise NotExpressed(f"{row['case']}: more GPUs than {gpus}")
    return data


def _sizes(row, given):
    hidden, heads = given.number("hidden-size"), given.number("num-attention-heads")
    usual = int(4 * hidden * 2 / 3) // 64 * 64 if given.flag("swiglu") else 4 * hidden
    family = _family(row)
    return {
        "family": "gpt" if family == "moe" else family,
        "layers": given.number("num-layers") or given.number("encoder-num-layers"),
        "hidden": hidden,
        "ffn": given.number("ffn-hidden-size", usual),
        "heads": heads,
        "groups": given.number("num-query-groups", heads) if given.flag("group-query-attention") else heads,
        "head": given.number("kv-channels", hidden // heads),
        "sequence": given.number("seq-length") or given.number("encoder-seq-length"),
        "decoder_sequence": given.number("decoder-seq-length", 0),
        "decoder_layers": given.number("decoder-num-layers", 0),
        "positions": given.number("max-position-embeddings", 0),
    }


def _words(row, given, tensor):
    words = {"gpt": GPT2_WORDS, "moe": GPT2_WORDS, "bert": BERT_WORDS, "t5": BERT_CASED_WORDS}[_family(row)]
    if "vocab-extra-ids" in given:
        words += given.number("vocab-extra-ids") + ENDS
    multiple = given.number("make-vocab-size-divisible-by", 128) * tensor
    return -(-given.number("vocab-size", words) // multiple) * multiple


def _types(given):
    dtype = torch.bfloat16 if given.flag("bf16") else torch.float16 if given.flag("fp16") else torch.float32
    summed = dtype == torch.bfloat16 and not given.flag("grad-reduce-in-bf16")
    summed = summed or given.flag("accumulate-allreduce-grads-in-fp32")
    return {"dtype": dtype, "gradients": torch.float32 if summed else dtype}


def _attention(given, local, hardware):
    """TransformerEngine takes cuDNN's kernel on Hopper and later, and flash attention before.

    On Blackwell cuDNN's is not deterministic, and on the oldest stack no kernel is.
    """
    backend, deterministic = given.text("attention-backend", "auto"), given.flag("deterministic-mode")
    if local or backend in ("unfused", "local") or (backend == "auto" and OLDER in hardware and deterministic):
        return "unfused"
    if backend != "auto":
        return backend
    blackwell = "b200" in hardware
    return "fused" if "h100" in hardware or (blackwell and not deterministic) else "flash"


def _last_layers(given, layers, pipeline):
    """Returns the number of layers of the last rank, the same as on other ranks by default."""
    first, last = (given.number(f"decoder-{which}-pipeline-num-layers", 0) for which in ("first", "last"))
    if last:
        return last
    if first:
        return (layers - first) // (pipeline - 1)
    more = [name for name in ("embedding", "loss") if given.flag(f"account-for-{name}-in-pipeline-split")]
    return (layers + len(more)) // pipeline - (1 if "loss" in more else 0)
