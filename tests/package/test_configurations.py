"""Damaged transformers configurations: every message names the field and its value; long sequences are noted."""

import json
import sys
import types

import pytest

import shadowgraph as sg
from shadowgraph import _capture, _tool

# A torchvision built for another torch fails when it registers its operators' fake kernels; no model needs them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
transformers = pytest.importorskip("transformers")

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
         "max_position_embeddings": 32, "rms_norm_eps": 1e-5}  # fmt: skip
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 1, "n_head": 4,
        "vocab_size": 64, "n_positions": 32}  # fmt: skip


def captured(configuration, tokens):
    inputs = {"input_ids": f"i64[1,{tokens}]"}
    return _capture.of_model(configuration, inputs, device="cuda", mode="infer")[0]


def of_request(request, tokens):  # like _tool.capture, whose request names the file
    captured(_tool._program(request["source"]), tokens)


def message_of(path, tokens=8):
    """Returns the tool's message for a capture of the configuration, or "" if it succeeds."""
    try:
        of_request({"source": f"hf:{path}"}, tokens)
    except Exception as error:  # the tool prints it
        return _tool.error_message(error, debug=False)
    return ""


@pytest.mark.parametrize("base", [LLAMA, GPT2], ids=lambda base: base["model_type"])
def test_messages_name_the_field_and_its_value(base, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(base))
    assert message_of(path) == ""
    unnamed = []
    for field in [name for name in base if name not in ("model_type", "architectures")]:
        for value in ("x", [], {}, -1, 0, 10**30, 2**40, float("nan")):
            path.write_text(json.dumps(base | {field: value}))
            said = message_of(path)
            if said and not all(text in said for text in (field, repr(value)[:20], str(path))):
                unnamed.append(f"{field} = {value!r}: {said[:200]}")
    assert not unnamed, "\n".join(unnamed)


def test_what_is_no_configuration(tmp_path):
    path = tmp_path / "config.json"
    for content, says in (("[]", '"model_type"'), ("3", '"model_type"'), ("{}", '"model_type"'), ("{", "valid JSON"),
                          ('{"model_type": 3}', '"model_type"'), ('{"model_type": []}', '"model_type"'),
                          ('{"model_type": "lama"}', "model_type = 'lama' is unknown")):  # fmt: skip
        path.write_text(content)
        said = message_of(path)
        assert says in said and str(path) in said and "raised" not in said, said


def test_sequences_beyond_the_positions():
    """A table of positions cannot be exceeded; rotary embeddings can, and the report says so."""
    llama = transformers.LlamaConfig(**LLAMA)
    assert "40 tokens exceed max_position_embeddings of the configuration, 32" in captured(llama, 40).text()
    assert "max_position_embeddings" not in captured(llama, 32).text()
    with pytest.raises(sg.Error, match="40 tokens exceed .*, 32, which is the size of the table .*wpe"):
        captured(transformers.GPT2Config(**GPT2), 40)
    served = sg.serve(llama, spec="l4", context=64)
    assert "64 tokens exceed max_position_embeddings of the configuration, 32" in str(served)
    assert "max_position" not in str(sg.serve(llama, spec="l4", context=32))
