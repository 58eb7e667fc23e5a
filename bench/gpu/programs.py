"""Typical training and inference programs, to run on a real GPU and in `sg.Capture("cuda")`.

Each creates its model on the device and returns a function that runs one step. ranks.py adds distributed programs.
"""

import contextlib
import functools

import torch
from torch import nn
from torch.nn import functional

PROGRAMS = {}
BF16 = torch.bfloat16


def program(function=None, *, world=1, rank=0, alone=False):
    """Registers a program. `alone`: runs in a real process group of one rank."""
    if function is None:
        return functools.partial(program, world=world, rank=rank, alone=alone)
    function.world, function.rank, function.alone = world, rank, alone
    PROGRAMS[function.__name__] = function
    return function


def tokens(*sizes, words=32000):
    return torch.randint(words, sizes, device="cuda")


def step_of(model, loss_of, optimizer, *, autocast=None, scaler=None, clip=None):
    def step():
        with torch.autocast("cuda", autocast) if autocast else contextlib.nullcontext():
            loss = loss_of()
        (scaler.scale(loss) if scaler else loss).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()

    return step


def made(config, kind="AutoModelForCausalLM", dtype=BF16, **keywords):
    import transformers

    with torch.device("cuda"):
        return getattr(transformers, kind).from_config(config, dtype=dtype, **keywords).train()


def config_of(kind, **sizes):
    import transformers

    return getattr(transformers, f"{kind}Config")(**sizes)


def language_step(config, batch, length, *, dtype=BF16, optimizer=torch.optim.AdamW, checkpoints=False, kind=None,
                  **how):  # fmt: skip
    model = made(config, kind or "AutoModelForCausalLM", dtype)
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = tokens(batch, length, words=config.vocab_size)
    return step_of(model, lambda: model(input_ids=ids, labels=ids).loss, optimizer(model.parameters()), **how)


@program
def qwen3_600m():
    config = config_of("Qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                       num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True)  # fmt: skip
    return language_step(config, 4, 1024, clip=1.0)


def llama_1b(**keywords):
    return config_of("Llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                     num_key_value_heads=8, vocab_size=128256, rope_theta=500000.0, tie_word_embeddings=True,
                     **keywords)  # fmt: skip


@program
def llama_1b_autocast_checkpoints():
    return language_step(llama_1b(), 2, 4096, dtype=torch.float32, checkpoints=True, autocast=BF16)


@program
def llama_1b_fused_adamw():
    return language_step(llama_1b(), 4, 2048, optimizer=functools.partial(torch.optim.AdamW, fused=True))


@program
def gemma3_1b():
    config = config_of("Gemma3Text", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
                       num_attention_heads=4, num_key_value_heads=1, head_dim=256, vocab_size=262144,
                       sliding_window=512)  # fmt: skip
    return language_step(config, 2, 2048)


@program
def mixtral_small():
    config = config_of("Mixtral", hidden_size=1024, intermediate_size=3584, num_hidden_layers=8, num_attention_heads=16,
                       num_key_value_heads=8, num_local_experts=8, vocab_size=32000)  # fmt: skip
    return language_step(config, 4, 1024)


@program
def deepseek_v3_small():
    config = config_of("DeepseekV3", hidden_size=1024, intermediate_size=4096, moe_intermediate_size=512,
                       num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=16, n_routed_experts=32,
                       num_experts_per_tok=4, n_group=4, topk_group=2, first_k_dense_replace=1,
                       vocab_size=32000)  # fmt: skip
    return language_step(config, 4, 1024)


@program
def mistral_7b_lora():
    import peft

    config = config_of("Mistral", sliding_window=None)
    model = made(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    with torch.device("cuda"):
        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
    ids = tokens(2, 2048)
    return step_of(model, lambda: model(input_ids=ids, labels=ids).loss,
                   torch.optim.AdamW([each for each in model.parameters() if each.requires_grad]))  # fmt: skip


@program
def llama_8b_prefill():
    config = config_of("Llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                       num_key_value_heads=8, vocab_size=128256, rope_theta=500000.0)  # fmt: skip
    model, ids = made(config).eval(), tokens(1, 8192)

    @torch.no_grad()
    def step():
        model(input_ids=ids, logits_to_keep=1)

    return step


@program
def llama_1b_generate():
    model, ids = made(llama_1b()).eval(), tokens(16, 1024)

    @torch.no_grad()
    def step():
        model.generate(ids, max_new_tokens=16, min_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)

    return step


@program
def t5_base():
    config = config_of("T5", d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
    model = made(config, "AutoModelForSeq2SeqLM", torch.float32)
    ids, labels = tokens(16, 512), tokens(16, 128)
    return step_of(model, lambda: model(input_ids=ids, labels=labels).loss, torch.optim.Adafactor(model.parameters()))


@program
def whisper_small_half():
    config = config_of("Whisper", d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
                       decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)  # fmt: skip
    model = made(config, "AutoModelForSpeechSeq2Seq", torch.float32)
    heard, labels = torch.randn(8, 80, 3000, device="cuda"), tokens(8, 128)
    return step_of(model, lambda: model(input_features=heard, labels=labels).loss,
                   torch.optim.AdamW(model.parameters()), autocast=torch.float16,
                   scaler=torch.amp.GradScaler("cuda"))  # fmt: skip


@program
def bert_large():
    config = config_of("Bert", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                       intermediate_size=4096)  # fmt: skip
    return language_step(config, 16, 384, dtype=torch.float32, kind="AutoModelForMaskedLM", autocast=BF16,
                         optimizer=functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9))  # fmt: skip


@program
def gpt_neox_1b():
    config = config_of("GPTNeoX", hidden_size=2048, num_hidden_layers=16, num_attention_heads=8,
                       intermediate_size=8192)  # fmt: skip
    return language_step(config, 4, 2048)


@program
def mamba_370m():
    config = config_of("Mamba", hidden_size=1024, num_hidden_layers=12, vocab_size=50280)
    return language_step(config, 2, 256)


# ---- Held-out programs, on which the time model was not fitted


@program
def olmo2_1b():
    config = config_of("Olmo2", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16,
                       vocab_size=100352)  # fmt: skip
    return language_step(config, 4, 2048, clip=1.0)


@program
def gpt2_medium_of_transformers():
    config = config_of("GPT2", n_embd=1024, n_layer=24, n_head=16)
    return language_step(config, 8, 1024, dtype=torch.float32, autocast=torch.float16,
                         scaler=torch.amp.GradScaler("cuda"))  # fmt: skip


@program
def roberta_base():
    config = config_of("Roberta", vocab_size=50265, max_position_embeddings=514)
    return language_step(config, 32, 256, kind="AutoModelForMaskedLM")


@program
def clip_vit_b32():
    config = config_of("CLIP")
    model = made(config, "AutoModel", torch.float32)
    ids, images = tokens(64, 77, words=49000), torch.randn(64, 3, 224, 224, device="cuda")
    return step_of(model, lambda: model(input_ids=ids, pixel_values=images, return_loss=True).loss,
                   torch.optim.AdamW(model.parameters()), autocast=BF16)  # fmt: skip


@program
def qwen2_moe_small():
    config = config_of("Qwen2Moe", hidden_size=1024, intermediate_size=2816, moe_intermediate_size=704,
                       shared_expert_intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
                       num_key_value_heads=16, num_experts=32, vocab_size=32000)  # fmt: skip
    return language_step(config, 2, 1024)


@program
def regnet_y_032():
    return image_step(of_timm("regnety_032"), 64, channels_last=True, autocast=BF16)


@program
def mobilenet_v3():
    return image_step(of_timm("mobilenetv3_large_100"), 128, optimizer=functools.partial(torch.optim.SGD, lr=0.1))


@program
def transformer_encoder():
    with torch.device("cuda"):
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True, activation="gelu")
        model, x = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), torch.randn(16, 512, 1024)
    return step_of(model, lambda: model(x).square().mean(), torch.optim.AdamW(model.parameters(), fused=True),
                   autocast=BF16)  # fmt: skip


def image_step(model, batch, pixels=224, classes=1000, *, channels_last=False, **how):
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, pixels, pixels, device="cuda")
    if channels_last:
        images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device="cuda")
    optimizer = how.pop("optimizer", torch.optim.AdamW)(model.parameters())
    return step_of(model, lambda: functional.cross_entropy(model(images), labels), optimizer, **how)


def of_timm(name, **keywords):
    import timm

    with torch.device("cuda"):
        return timm.create_model(name, **keywords).train()


@program
def convnext_base():
    return image_step(of_timm("convnext_base"), 32, channels_last=True, autocast=BF16)


@program
def swin_base():
    return image_step(of_timm("swin_base_patch4_window7_224"), 32, autocast=BF16)


@program
def efficientnet_b4():
    return image_step(of_timm("efficientnet_b4"), 32, 320, autocast=BF16)


@program
def vit_large():
    return image_step(of_timm("vit_large_patch16_224"), 32, autocast=BF16, clip=1.0)


@program
def resnet152():
    import torchvision

    with torch.device("cuda"):
        model = torchvision.models.resnet152()
    return image_step(model, 64, optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))


@program
def deeplab_v3():
    import torchvision

    with torch.device("cuda"):
        model = torchvision.models.segmentation.deeplabv3_resnet50(num_classes=21, weights_backbone=None)
    images, labels = torch.randn(8, 3, 384, 384, device="cuda"), torch.randint(21, (8, 384, 384), device="cuda")
    return step_of(model, lambda: functional.cross_entropy(model(images)["out"], labels),
                   torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), autocast=BF16)  # fmt: skip


@program
def torch_transformer():
    with torch.device("cuda"):
        model = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        source, target = torch.randn(32, 256, 512), torch.randn(32, 256, 512)
        mask = nn.Transformer.generate_square_subsequent_mask(256)
    return step_of(model, lambda: model(source, target, tgt_mask=mask, tgt_is_causal=True).square().mean(),
                   torch.optim.Adam(model.parameters()))  # fmt: skip


@program
def lstm_large():
    with torch.device("cuda"):
        model, x = nn.LSTM(1024, 1024, 4, batch_first=True, dropout=0.1), torch.randn(64, 256, 1024)
    return step_of(model, lambda: model(x)[0].square().mean(), torch.optim.Adam(model.parameters()), autocast=BF16)
