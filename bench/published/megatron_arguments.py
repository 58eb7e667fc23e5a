"""What a case of Megatron-LM's functional tests asks for, with Megatron's own defaults where it says nothing."""

import dataclasses
import json

import torch

OLDER = "dracooci"
GPUS, GPUS_OF_GB200_NODE = 8, 4
GPT2_WORDS, BERT_WORDS, BERT_CASED_WORDS = 50257, 30522, 28996
# BertWordPiece tokenizers add a word for the beginning and one for the end when there are extra ids.
ENDS = 2


class NotExpressed(Exception):
    """The programs here do not have what the case asks for."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Sizes are those of the whole model; `ranks` of Megatron's order tensor, context, data, pipeline."""

    family: str  # gpt, bert, t5
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int  # heads of keys and values
    head: int  # size of one
    sequence: int
    decoder_sequence: int
    decoder_layers: int
    positions: int
    words: int  # padded
    micro_batch: int
    micro_batches: int
    tensor: int
    pipeline: int
    virtual: int  # stages a rank
    context: int
    data: int
    sequence_parallel: bool
    distributed_optimizer: bool
    local: bool  # plain PyTorch modules in place of TransformerEngine's
    attention: str  # unfused, flash, fused
    last_layers: int  # of the last rank
    experts: int
    expert_parallel: int
    expert_tensor: int  # ranks that an expert is cut over
    old: bool  # the stack of long support
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
        """How many ranks have the same parameters and share the state of a distributed optimizer."""
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
    def positions_learned(self):
        return self.given.get("position-embedding-type", "learned_absolute") == "learned_absolute"

    @property
    def loss_scale(self):
        return self.dtype == torch.float16


def of_row(row):
    """The arguments of a row of megatron.csv. Raises NotExpressed."""
    given = row["given"] if "given" in row else json.loads(row["all_args_json"])
    family = row["case"].split("/")[0].split("-")[0]
    if "num-experts" in given and given.get("disable-bias-linear") != "true":
        raise NotExpressed(f"{row['case']}: experts with biases")
    if row["case"].split("/")[0] in ("gpt", "moe") and "tokenizer-type" in given and "vocab-size" not in given:
        raise NotExpressed(f"{row['case']}: how many words its tokenizer has is not published")
    number = lambda name, default=None: int(given[name]) if name in given else default  # noqa: E731
    flag = lambda name: given.get(name) == "true"  # noqa: E731
    if family not in ("gpt", "moe", "bert", "t5"):
        raise NotExpressed(f"{row['case']}: families other than GPT, BERT and T5")
    for name in ("multi-latent-attention", "use-megatron-fsdp", "pipeline-model-parallel-layout", "perform-rl-step",
                 "mtp-num-layers", "rerun-mode",
                 "moe-layer-freq", "moe-shared-expert-intermediate-size", "overlap-moe-expert-parallel-comm", "optimizer", "use-torch-fsdp2", "fp8-format", "yaml-cfg"):
        if given.get(name) not in (None, "false"):
            raise NotExpressed(f"{row['case']}: {name}")
    tensor, pipeline = number("tensor-model-parallel-size", 1), number("pipeline-model-parallel-size", 1)
    context = number("context-parallel-size", 1)
    gpus = GPUS_OF_GB200_NODE if "gb200" in row["hardware"] and row["case"].endswith("_1node") else GPUS
    if "release" in row["case"]:
        if flag("use-distributed-optimizer"):
            raise NotExpressed(f"{row['case']}: how many GPUs share the optimizer's state is not published")
        gpus = tensor * pipeline * context
    micro = number("micro-batch-size")
    # Fewer GPUs run where the batch has not a micro-batch for each.
    data = min(gpus // (tensor * pipeline * context), number("global-batch-size", gpus * micro) // micro)
    if data == 0:
        raise NotExpressed(f"{row['case']}: more GPUs than {gpus}")
    hidden, heads = number("hidden-size"), number("num-attention-heads")
    layers = number("num-layers") or number("encoder-num-layers")
    each = number("num-layers-per-virtual-pipeline-stage")
    half = torch.bfloat16 if flag("bf16") else torch.float16 if flag("fp16") else torch.float32
    in_float32 = half == torch.bfloat16 and not flag("grad-reduce-in-bf16") or flag("accumulate-allreduce-grads-in-fp32")
    swiglu = flag("swiglu")
    local = given.get("transformer-impl") == "local" or given.get("spec") == "local"
    words = {"gpt": GPT2_WORDS, "moe": GPT2_WORDS, "bert": BERT_WORDS, "t5": BERT_CASED_WORDS}[family]
    if "vocab-extra-ids" in given:
        words += number("vocab-extra-ids") + ENDS
    words = number("vocab-size", words)
    multiple = number("make-vocab-size-divisible-by", 128) * tensor
    return Arguments(
        family="gpt" if family == "moe" else family, layers=layers, hidden=hidden,
        ffn=number("ffn-hidden-size", int(4 * hidden * 2 / 3) // 64 * 64 if swiglu else 4 * hidden), heads=heads,
        groups=number("num-query-groups", heads) if flag("group-query-attention") else heads,
        head=number("kv-channels", hidden // heads),
        sequence=number("seq-length") or number("encoder-seq-length"), decoder_sequence=number("decoder-seq-length", 0),
        decoder_layers=number("decoder-num-layers", 0), positions=number("max-position-embeddings", 0),
        words=-(-words // multiple) * multiple, micro_batch=micro,
        micro_batches=number("global-batch-size", micro * data) // (micro * data), tensor=tensor, pipeline=pipeline,
        virtual=number("num-virtual-stages-per-pipeline-rank", layers // pipeline // each if each else 1), context=context, data=data,
        sequence_parallel=flag("sequence-parallel") and tensor > 1,
        distributed_optimizer=flag("use-distributed-optimizer"),
        local=local, attention=_attention(given, local, row["hardware"]), old=row["hardware"].startswith("lts"),
        older=OLDER in row["hardware"],
        last_layers=_last_layers(given, layers, pipeline), experts=number("num-experts", 0),
        expert_parallel=number("expert-model-parallel-size", 1),
        expert_tensor=number("expert-tensor-parallel-size", tensor), dtype=half,
        gradients=torch.float32 if in_float32 or half == torch.float32 else half, given=given)  # fmt: skip


def _attention(given, local, hardware):
    """TransformerEngine takes cuDNN's kernel on Hopper and later, and flash attention before.

    On Blackwell cuDNN's is not deterministic.
    """
    backend = given.get("attention-backend", "auto")
    if local or backend in ("unfused", "local"):
        return "unfused"
    if backend != "auto":
        return backend
    if OLDER in hardware and given.get("deterministic-mode") == "true":  # its flash attention is not
        return "unfused"
    blackwell = "b200" in hardware and given.get("deterministic-mode") == "true"
    return "fused" if ("h100" in hardware or "b200" in hardware) and not blackwell else "flash"


def _last_layers(given, layers, pipeline):
    """How many layers the last rank has: as many as the others, unless it is said."""
    first, last = (int(given.get(f"decoder-{which}-pipeline-num-layers", 0)) for which in ("first", "last"))
    if last:
        return last
    if first:
        return (layers - first) // (pipeline - 1)
    more = [name for name in ("embedding", "loss") if given.get(f"account-for-{name}-in-pipeline-split") == "true"]
    return (layers + len(more)) // pipeline - (1 if "loss" in more else 0)
