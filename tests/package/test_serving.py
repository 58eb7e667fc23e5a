"""sg.serve: hand-computed sizes, models of all kinds, and published measurements of serving engines."""

import json
import sys
import types

import pytest
import torch

import shadowgraph as sg

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
