"""sg.serve: hand-computed sizes, models of all kinds, and published measurements of serving engines."""

import json
import sys
import types

import pytest
import torch

import shadowgraph as sg
from shadowgraph import _kv_cache

GIB = 2**30
# A torchvision built for another torch fails when it registers its operators' fake kernels; no model here needs them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
transformers = pytest.importorskip("transformers")


def llama2_7b():
    return transformers.LlamaConfig(max_position_embeddings=4096)


def llama31_8b():
    return transformers.LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                                    num_attention_heads=32, num_key_value_heads=8)  # fmt: skip


def small(**changes):
    return transformers.LlamaConfig(**{"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512,
                                       "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                                       **changes})  # fmt: skip


# Tokens per second of one request, from gpt-fast's README (A100 80 GB, torch.compile): devices, weights, measurement.
GPT_FAST = [
    (llama2_7b, 1, "", 104.9), (llama2_7b, 1, "int8", 155.58), (llama2_7b, 1, "int4:group=32", 196.80),
    (llama2_7b, 2, "", 168.84), (llama2_7b, 4, "", 254.02), (llama2_7b, 8, "", 328.43),
    (llama31_8b, 1, "", 93.89), (llama31_8b, 1, "int8", 137.64),
    (llama31_8b, 2, "", 149.10), (llama31_8b, 4, "", 217.21), (llama31_8b, 8, "", 276.01),
]  # fmt: skip


def test_tokens_a_second_are_those_of_gpt_fast():
    errors = []
    for make, devices, weights, published in GPT_FAST:
        answer = sg.serve(make(), spec="a100", context=200, weights=weights, keep=(), tensor_parallel=devices)
        errors.append(answer.rows[0][2] / published - 1)
    assert max(map(abs, errors)) < 0.25, errors
    assert sum(map(abs, errors)) / len(errors) < 0.11, errors


# vLLM's logs, by issue number: (memory, tokens per pass, GiB of activations, GiB of KV cache).
VLLM = {10517: [(23.58, 20000, 2.07, 3.81), (23.58, 29000, 2.99, 2.89)], 10511: [(79.22, 8192, 1.26, 53.29)]}


def test_memory_is_that_of_vllms_logs():
    for issue, rows in VLLM.items():
        for memory, tokens, activations, cache in rows:
            answer = sg.serve(llama31_8b(), spec="h100", memory=int(memory * GIB), context=tokens,
                              max_batched_tokens=tokens)  # fmt: skip
            # The logs say 14.9888 GiB, which includes a position table of 32 MiB.
            assert answer.weights_bytes / GIB == pytest.approx(14.9575, abs=1e-3), issue
            assert answer.activations_bytes / GIB == pytest.approx(activations, abs=0.4), issue
            assert answer.cache_bytes / GIB == pytest.approx(cache, abs=1.7), issue
    llama2 = sg.serve(llama2_7b(), spec="a100", context=4096, max_batched_tokens=4096)
    assert llama2.pages == pytest.approx(7351, rel=0.02)  # vLLM pull request 2031: number of blocks on an A100 80 GB


def test_what_is_kept_of_a_request_is_the_models_own_cache():
    answer = sg.serve(small(), spec="l4", context=100)
    assert answer.token_bytes == 2 * 2 * 2 * 64 * 2  # layers, keys and values, heads, head width, bytes per bfloat16
    assert answer.request_bytes == 112 * answer.token_bytes
    wide = sg.serve(small(), spec="l4", context=100, dtype=torch.float32)
    assert wide.token_bytes == 2 * answer.token_bytes


def test_windows_states_and_latents():
    sliding = transformers.Gemma3TextConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=6,
                                            num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                                            sliding_window=64)  # fmt: skip
    answer = sg.serve(sliding, spec="l4", context=1024)
    each = 2 * 2 * 64 * 2
    assert answer.token_bytes == each and answer.request_bytes == each * (5 * 64 + 1024)
    latent = transformers.DeepseekV3Config(num_hidden_layers=2, hidden_size=256, intermediate_size=512, vocab_size=512,
                                           moe_intermediate_size=128, n_routed_experts=8, n_group=2, topk_group=1,
                                           num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=4,
                                           first_k_dense_replace=1)  # fmt: skip
    answer = sg.serve(latent, spec="l4", context=64)
    assert answer.token_bytes == 2 * (512 + 64) * 2
    assert any("latent" in line for line in answer.assumptions)
    recurrent = transformers.MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=512)
    answer = sg.serve(recurrent, spec="l4", context=64)
    assert answer.token_bytes == 0 and answer.request_bytes > 0 and answer.longest_request == 2**40
    assert any("recurrent" in line for line in answer.assumptions)


def cached(config, tokens):
    """Bytes of the tensors that the model's cache holds after that many tokens, each storage once."""

    def tensors(value):
        if isinstance(value, torch.Tensor):
            return [value] if value.dim() > 1 else []
        value = value.values() if isinstance(value, dict) else vars(value).values() if hasattr(value, "layers") or (
            hasattr(value, "get_seq_length") or hasattr(value, "recurrent_states")) else value
        return [tensor for each in value for tensor in tensors(each)] if hasattr(value, "__iter__") and not isinstance(
            value, str) else []

    with sg.fake("cuda"), torch.no_grad(), torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
        cache = model(input_ids=torch.zeros(1, tokens, dtype=torch.int64), use_cache=True).past_key_values
        return sum({id(each): each.nbytes for each in tensors(cache)}.values())


def request_bytes(config, tokens):
    return sg.serve(config, spec="h100", context=tokens, page=1, memory=2**38, dtype=torch.bfloat16).request_bytes


@pytest.mark.parametrize("tokens", [300, 1024, 8191])
def test_compressed_entries_grow_with_the_context(tokens):
    every = transformers.DeepseekV4Config()
    config = transformers.DeepseekV4Config(num_hidden_layers=6, n_routed_experts=8, layer_types=every.layer_types[:6],
                                           vocab_size=512)  # fmt: skip
    answer = request_bytes(config, tokens)
    # By hand: window of shared keys and values, entries, indexer keys; then tokens that wait to be compressed, keys and
    # gates, twice as wide where windows overlap, and the overlap of the last window.
    expected = 0
    for kind in config.layer_types:
        rate, sparse = config.compress_rates[kind], "sparse" in kind
        width = config.head_dim + (config.index_head_dim if sparse else 0)
        expected += 2 * min(tokens, config.sliding_window) * config.head_dim + 2 * (tokens // rate) * width
        expected += 2 * 2 * (tokens % rate) * width * (2 if sparse else 1) + (2 * 2 * rate * width if sparse else 0)
    assert answer == expected
    # The cache holds one token less than the window.
    assert answer == cached(config, tokens) + 6 * 2 * config.head_dim


def test_keys_of_indexers_are_cached_beside_latents():
    for kind in (transformers.DeepseekV32Config, transformers.GlmMoeDsaConfig):
        config = kind(num_hidden_layers=2, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1,
                      mlp_layer_types=None, vocab_size=512)  # fmt: skip
        each = config.kv_lora_rank + config.qk_rope_head_dim + config.index_head_dim
        assert request_bytes(config, 4096) == 2 * 4096 * each * 2


def test_states_outside_layers_are_cached():
    config = transformers.MiniMaxConfig(hidden_size=256, intermediate_size=64, num_hidden_layers=4, head_dim=32,
                                        num_attention_heads=8, num_key_value_heads=2, num_local_experts=2,
                                        vocab_size=128,
                                        layer_types=["linear_attention"] * 3 + ["full_attention"])  # fmt: skip
    assert request_bytes(config, 512) == 512 * 2 * 2 * 32 * 2 + 3 * 8 * 32 * 32 * 2


def sized(size):
    """Terms of a cache with one tensor of `size(tokens)` entries of 8 bytes."""

    def run(tokens):
        return types.SimpleNamespace(past_key_values=[(torch.zeros(1, size(tokens), 2, device="meta"),)])

    return _kv_cache.terms_of(run, 5000, 1 << 30)


@pytest.mark.parametrize("size, term", [
    (lambda n: n, (8, 0, 0, 1, False)),
    (lambda n: n + 3, (8, 0, 24, 1, False)),
    (lambda n: min(n, 700), (8, 700, 0, 1, False)),
    (lambda n: 9, (0, 0, 72, 1, False)),
    (lambda n: n // 7, (8, 0, 0, 7, False)),
    (lambda n: n // 129, (8, 0, 0, 129, False)),
    (lambda n: n % 129, (8, 0, 0, 129, True)),
    (lambda n: n % 64, (8, 0, 0, 64, True)),
])  # fmt: skip
def test_sizes_are_functions_of_the_length(size, term):
    assert max(sized(size)) == term


@pytest.mark.parametrize("size", [
    lambda n: n * n, lambda n: 2 * n, lambda n: n if n < 3000 else 3, lambda n: n**2 % 97,
])  # fmt: skip
def test_sizes_that_are_not_are_refused_by_name(size):
    with pytest.raises(sg.UnsupportedError, match=r"0\.0 has shape .* for 4, .* tokens"):
        sized(size)


def test_tied_embeddings_are_sharded():
    for tied in (False, True):
        whole, half = (sg.serve(small(tie_word_embeddings=tied), spec="h100", context=64, tensor_parallel=devices)
                       for devices in (1, 2))  # fmt: skip
        norms = 2 * 256 * (2 * 2 + 1)  # on both
        rotary = 4 * 32 * 2
        assert half.weights_bytes == pytest.approx((whole.weights_bytes + norms) / 2, abs=rotary)
        assert half.token_bytes == whole.token_bytes / 2


def test_fewer_kv_heads_than_devices_are_replicated():
    two, four = (sg.serve(small(), spec="h100", context=64, tensor_parallel=devices) for devices in (2, 4))
    assert four.token_bytes == two.token_bytes == 2 * 2 * 64 * 2  # one head each: layers, keys and values, width, dtype
    assert any("each head is on 2" in line for line in four.assumptions)
    with pytest.raises(sg.Error, match="4 attention heads and 2 KV heads; use 1, 2, 4"):
        sg.serve(small(), spec="h100", context=64, tensor_parallel=3)


def test_what_tensor_parallel_cannot_shard_is_refused_or_said():
    with pytest.raises(sg.Error, match="no tp_plan for GPTJForCausalLM.*base_model_tp_plan"):
        sg.serve(transformers.GPTJConfig(n_layer=1), spec="h100", context=64, tensor_parallel=2)
    experts = transformers.GptOssConfig(num_hidden_layers=2, hidden_size=64, intermediate_size=64, num_local_experts=4,
                                        vocab_size=512)  # fmt: skip
    with pytest.raises(sg.Error, match="shards only the embeddings"):
        sg.serve(experts, spec="h100", context=64, tensor_parallel=2)
    gathered = transformers.Phi3Config(num_hidden_layers=2, hidden_size=256, intermediate_size=512, vocab_size=512,
                                       num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)  # fmt: skip
    answer = sg.serve(gathered, spec="h100", context=64, tensor_parallel=2)
    assert any("whole KV cache" in line for line in answer.assumptions)
    with pytest.raises(sg.Error, match="an encoder and a decoder"):
        sg.serve(transformers.T5Config(num_layers=1), spec="h100", context=64)


@pytest.mark.parametrize("said, expected", [
    ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "GPTQ, 4 bits, groups of 64"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "AWQ, 4 bits, groups of 128"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "LLM.int8()"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "NF4 with double"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8 in blocks"),
    ({"quant_method": "mxfp4"}, "MXFP4"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}, "input_activations": {"num_bits": 8}}}},
     "int8 with int8 activations"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}}}},
     "int4 without zero points"),
])  # fmt: skip
def test_a_configuration_says_how_its_weights_are_stored(said, expected):
    config = small()
    config.quantization_config = said
    answer = sg.serve(config, spec="l4", context=64)
    assert answer.dict()["weights"].startswith(expected)
    assert answer.weights_bytes < sg.serve(config, spec="l4", context=64, weights="").weights_bytes


def test_what_is_not_understood_is_refused_by_name():
    config = small()
    config.quantization_config = {"quant_method": "quip"}
    with pytest.raises(sg.Error, match="'quip'.*gptq"):
        sg.serve(config, spec="l4", context=64)
    config.quantization_config = {"quant_method": "compressed-tensors", "config_groups": {}}
    with pytest.raises(sg.Error, match="0 config_groups"):
        sg.serve(config, spec="l4", context=64)
    with pytest.raises(sg.Error, match="unknown weight format 'int3'"):
        sg.serve(small(), spec="l4", context=64, weights="int3")
    with pytest.raises(sg.Error, match="past_key_values"):
        sg.serve(transformers.BertConfig(num_hidden_layers=1), spec="l4", context=64)
    with pytest.raises(sg.Error, match="no use_cache argument"):
        sg.serve(lambda: torch.nn.Linear(2, 2), spec="l4", context=64)
    with pytest.raises(sg.Error, match="unknown device"):
        sg.serve(small(), spec="l5", context=64)
    with pytest.raises(sg.Error, match="cpu is a CPU"):
        sg.serve(small(), spec="cpu", context=64)


def test_experts_that_no_row_goes_to_are_not_read():
    def mixture(experts):
        return transformers.MixtralConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=4, vocab_size=512,
                                          num_attention_heads=8, num_key_value_heads=2, num_local_experts=experts,
                                          num_experts_per_tok=1)  # fmt: skip

    one, many = (sg.serve(mixture(experts), spec="h100", context=4096).rows for experts in (1, 64))
    assert many[0][1] < 1.3 * one[0][1]  # a single request uses one expert
    both = [{row[0]: row[1] for row in rows} for rows in (one, many)]
    assert both[1][16] > 1.5 * both[0][16]  # sixteen requests use fourteen experts


def test_the_tool(tmp_path, capfd, monkeypatch):
    from shadowgraph.__main__ import main

    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **small().to_diff_dict()}))
    command = ["fit", f"hf:{path}", "--mode", "serve", "--spec", "l4", "--context"]
    assert main([*command, "1Ki", "--weights", "awq"]) == 0
    assert capfd.readouterr().out.startswith("fits: ")
    assert main([*command, "1Ki", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["fits"] and answer["requests"] == answer["cache_bytes"] // answer["bytes_per_request"]
    assert main([*command, "900000000"]) == 1
    assert "does not fit" in capfd.readouterr().out
    assert main(["fit", "gpt2", "--mode=serve", "--spec", "l4", "--context", "1Ki"]) == 1
    assert "--mode decode" in capfd.readouterr().err
