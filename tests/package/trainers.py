"""Small training programs of trainer libraries, on "cpu" or "cuda": each runs `steps` optimizer steps."""

import functools
import sys
import tempfile
import types
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
warnings.filterwarnings("ignore")
# Installed by scripts/setup.sh --test (tests/python/requirements.txt): if one is missing, the tests fail with its name.
import accelerate  # noqa: E402
import datasets  # noqa: E402
import diffusers  # noqa: E402
import lightning  # noqa: E402
import peft  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
import trl.kernels.chunked_logprob  # noqa: E402
from diffusers.optimization import get_cosine_schedule_with_warmup  # noqa: E402
from diffusers.training_utils import EMAModel  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

datasets.disable_progress_bars()
# PyTorch's CUDA wheel includes Triton, whose kernels do not run on fakes (test_process.py).
trl.kernels.chunked_logprob._TRITON_AVAILABLE = False
# Answers to host reads: norms are finite, early stopping never triggers, masks hide nothing.
READS = ["finite", {"bool": False}, "mask full"]


def config():
    return transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                    num_key_value_heads=2, vocab_size=128, pad_token_id=0, eos_token_id=4)  # fmt: skip


def llama():
    return transformers.LlamaForCausalLM(config())


def settings(device, steps):
    return dict(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=2, max_steps=steps, report_to=[],
                save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=device == "cpu")  # fmt: skip


class Tokens(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"input_ids": torch.arange(16) % 100, "labels": torch.arange(16) % 100}


def trainer(device="cuda", steps=2, callbacks=(), **more):
    arguments = transformers.TrainingArguments(**{**settings(device, steps), **more})
    return transformers.Trainer(llama(), arguments, train_dataset=Tokens(), callbacks=list(callbacks))


def words():
    """Returns a tokenizer of five words; nothing is downloaded."""
    names = {"<pad>": 0, "a": 1, "b": 2, "c": 3, "<eos>": 4, "<unk>": 5}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>",
                                                unk_token="<unk>")  # fmt: skip


@functools.cache
def rows_of(kind):
    row = {"sft": {"text": "a b c a b c a b"}, "dpo": {"prompt": "a b", "chosen": "a b c", "rejected": "c c b"}}[kind]
    return datasets.Dataset.from_list([row] * 16)


def sft(device="cuda", steps=2, callbacks=(), adapters=False):
    adapter = peft.LoraConfig(target_modules=["q_proj", "v_proj"]) if adapters else None
    return trl.SFTTrainer(llama(), trl.SFTConfig(**settings(device, steps), max_length=16, bf16=False),
                          train_dataset=rows_of("sft"), processing_class=words(), peft_config=adapter,
                          callbacks=list(callbacks))  # fmt: skip


def dpo(device="cuda", steps=2, callbacks=()):
    arguments = trl.DPOConfig(**settings(device, steps), max_length=16, bf16=False)
    return trl.DPOTrainer(llama(), llama(), arguments, train_dataset=rows_of("dpo"), processing_class=words(),
                          callbacks=list(callbacks))  # fmt: skip


def mlp():
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))


class Rows(Dataset):
    """Creates rows on access, because a stored data set would count in the CPU's peak."""

    def __init__(self, count, *sizes):
        self.count, self.sizes = count, sizes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return (torch.ones(self.sizes),)


def batches(size=16):
    return DataLoader(Rows(64, 64), batch_size=size)


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def fit(device="cuda", steps=2, callbacks=(), **more):
    how = dict(max_steps=steps, accelerator="gpu" if device == "cuda" else "cpu", callbacks=list(callbacks),
               logger=False, enable_checkpointing=False, enable_progress_bar=False,
               enable_model_summary=False)  # fmt: skip
    loop = lightning.Trainer(**{**how, **more})
    loop.fit(Lit(), batches())
    return loop


def accelerated(device="cuda", steps=2):
    loop = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=device == "cpu")
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, data = loop.prepare(model, optimizer, batches())
    for index, (x,) in enumerate(data):
        if index == 2 * steps:
            break
        with loop.accumulate(model):
            loop.backward(model(x).square().mean())
            loop.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return loop


def diffusion(device="cuda", steps=2):
    """diffusers' example of unconditional image generation, without its command line and files."""
    loop = accelerate.Accelerator(cpu=device == "cpu")
    model = diffusers.UNet2DModel(sample_size=8, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
                                  down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                  up_block_types=("AttnUpBlock2D", "UpBlock2D"))  # fmt: skip
    average = EMAModel(model.parameters(), decay=0.99, model_cls=diffusers.UNet2DModel, model_config=model.config)
    noising = diffusers.DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = DataLoader(Rows(16, 3, 8, 8), batch_size=4, shuffle=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=steps)
    model, optimizer, data, schedule = loop.prepare(model, optimizer, data, schedule)
    average.to(loop.device)
    for index, (images,) in enumerate(data):
        if index == steps:
            break
        noise = torch.randn(images.shape, device=images.device)
        times = torch.randint(0, 1000, (images.shape[0],), device=images.device).long()
        noisy = noising.add_noise(images, noise, times)
        with loop.accumulate(model):
            loss = nn.functional.mse_loss(model(noisy, times).sample, noise)
            loop.backward(loss)
            loop.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        average.step(model.parameters())
    return loop
