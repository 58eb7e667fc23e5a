"""Programs as users write them: they read values, load files, use checkpoints, generate."""

import copy
import pickle
import sys
import types

import pytest
import torch

import shadowgraph as sg

# A torchvision built for another torch fails when it registers its operators' fake kernels; no model here needs them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))


def guards(graph):
    return [guard for guard in graph.guards if guard.split(" ")[0].rstrip("0123456789") in ("item", "equal", "assumed")]


# ---- Contents computed on demand


def test_what_follows_from_constants_is_known_at_any_size():
    with sg.fake("cuda"):
        assert bool(torch.ones(8, 128, device="cuda").all())
        assert bool(torch.ones(80000, 128000, device="cuda").all())
        mask = torch.ones(8, 128, dtype=torch.bool)
        assert mask.sum(-1).tolist() == [128] * 8
        table = torch.zeros(50, 50)
        table[3:5] = 7
        assert table.sum().item() == 700
        assert (torch.arange(5000.0) * 2).numpy()[4999] == 9998
        counts = torch.full((10**6,), 3.0)
        counts.add_(1)
        counts[5] = 9
        assert (counts.max().item(), counts.min().item()) == (9, 4)


def test_the_budget_is_named_by_the_error():
    refused = pytest.raises(sg.DataDependentError, match="contents_budget.bytes")
    with sg.fake("cpu", contents_budget=(10**6, 1.0)), refused:
        torch.tril(torch.ones(2048, 2048)).sum().item()


def test_known_contents_are_read_as_arrays_and_lists():
    with sg.fake("cpu"):
        known = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        assert known.numpy().tolist() == known.tolist() == [[1, 2], [3, 4]]
        with pytest.raises(sg.DataDependentError, match="numpy"):
            torch.randn(3).numpy()
        with pytest.raises(sg.DataDependentError, match="tolist"):
            torch.randn(3).tolist()


# ---- Host reads


def test_reads_are_answered_by_name_kind_function_and_policy():
    def answer(name, tensor, source):
        return 5 if tensor.dtype == torch.int64 and name == "item2" else None

    with sg.fake("cpu", host_reads=[{"item0": 2.5, "bool": False}, answer, "finite"]):
        assert torch.randn(3).sum().item() == 2.5
        assert not (torch.randn(3) > 0).all()
        assert torch.randint(0, 9, (3,)).sum().item() == 5
        assert torch.randn(3).norm().item() == 1.0
        with pytest.raises(sg.DataDependentError, match='"int"'):
            torch.randint(0, 9, (3,)).sum().item()


def test_sizes_that_data_decides_by_name_kind_and_function():
    asked = []

    def most(name, operator, tensor, most):
        asked.append((name, operator, tuple(tensor.shape), most))
        return None if name.startswith("unique") else most

    with sg.fake("cuda", data_sizes=[{"nonzero1": 2}, most]):
        x = torch.rand(4, 2, device="cuda")
        assert x.nonzero().shape == (8, 2)
        assert x[0].nonzero().shape == (2, 1)
        with pytest.raises(sg.DataDependentError, match="data_sizes.*for all calls"):
            x.unique()
    assert asked == [("nonzero0", "aten::nonzero", (4, 2), 8), ("unique0", "aten::_unique2", (4, 2), 8)]
    with sg.fake("cuda", data_sizes={"nonzero1": 1, "nonzero": 3}):
        x = torch.rand(4, 2, device="cuda")
        assert x.masked_select(x > 0.5).shape == (3,)
        assert x[0].nonzero().shape == (1, 1)
        assert x[1].nonzero().shape == (2, 1)  # at most the number of elements
    for bad in (3, {"nonzero": "many"}):
        with pytest.raises((sg.Error, RuntimeError)), sg.fake("cuda", data_sizes=bad):
            pass


def test_bad_answers_are_refused():
    with pytest.raises(sg.Error, match="finite"), sg.fake("cpu", host_reads="fine"):
        pass
    with pytest.raises(TypeError, match="must be a bool"), sg.fake("cpu", host_reads={"item0": "x"}):
        pass
    with sg.fake("cpu", host_reads={"bool": 3}), pytest.raises(sg.Error, match="true or false"):
        bool(torch.randn(()) > 0)
    with sg.fake("cpu", host_reads=lambda name, tensor, source: 1 / 0), pytest.raises(ZeroDivisionError):
        torch.randn(()).item()


def test_a_grad_scaler_and_clipping_with_finite_numbers():
    with sg.Capture("cuda", host_reads="finite") as session:
        model = torch.nn.Linear(4, 4, device="cuda")
        session.name_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(3, 4, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()
        assert norm.item() == 1.0
        graph = session.finish(loss)
    graph.verify()
    assert [guard.split(", at")[0] for guard in guards(graph)] == ["item0 = 1, assumed finite"]
    assert "test_programs.py" in guards(graph)[0]


def test_lbfgs_and_adafactor():
    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        return loss

    with sg.Capture("cpu", host_reads=[{"bool": False}, "finite"]) as session:
        model = torch.nn.Linear(4, 2)
        session.name_module(model)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        optimizer.step(closure)
        graph = session.finish()
    graph.verify()
    assert sum(node.target.startswith("aten::addmm") for node in graph) == 2  # host reads of the loss give 1.0
    graph = sg.capture_training_step(torch.nn.Linear(64, 64), "f32[4,64]", optimizer=torch.optim.Adafactor,
                                     steady_state=True, options={"host_reads": "finite"})  # fmt: skip
    graph.verify()


def test_masks_may_be_said_to_be_full():
    class Masked(torch.nn.Module):
        def forward(self, x, mask):
            if mask.all():
                return x
            return x.masked_fill(~mask.bool(), 0)

    with pytest.raises(sg.DataDependentError, match="test_programs.py"):
        sg.capture(Masked(), "f32[8,128]", "i64[8,128]")
    graph = sg.capture(Masked(), x="f32[8,128]", mask="i64[8,128]", options={"host_reads": "mask full"})
    assert not graph.find("aten::masked_fill.Scalar")
    assert "assumed full of ones" in guards(graph)


# ---- Modules that compare or count


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_packed_sequences(device):
    def run():
        x = torch.randn(3, 5, 4, requires_grad=True)
        torch.manual_seed(0)
        net = torch.nn.LSTM(4, 6, batch_first=True).to(device)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(device), torch.tensor([5, 3, 2]), batch_first=True)
        output, _ = net(packed)
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
        padded.sum().backward()
        return packed.batch_sizes.tolist(), padded.shape, lengths.tolist(), x.grad.shape

    with sg.fake(device):
        got = run()
    assert got == ([3, 3, 2, 1, 1], (3, 5, 6), [5, 3, 2], (3, 5, 4))
    if device == "cpu":
        assert got == run()


def test_pack_padded_sequence_of_unknown_lengths_is_a_typed_error():
    with sg.fake("cpu"), pytest.raises(sg.DataDependentError, match="lengths"):
        torch.nn.utils.rnn.pack_padded_sequence(torch.randn(3, 5, 4), torch.randint(1, 5, (3,)), batch_first=True)


def test_max_pool1d_in_inference_on_the_cpu():
    with torch.no_grad():
        real = torch.nn.functional.max_pool1d(torch.randn(2, 3, 17), 3, 2, 1, ceil_mode=True)
        graph = sg.capture(lambda x: torch.nn.functional.max_pool1d(x, 3, 2, 1, ceil_mode=True), "f32[2,3,17]")
    assert [node.target for node in graph if node.target.startswith("aten::")] == ["aten::max_pool1d"]
    assert graph.find("aten::max_pool1d")[0].outputs[0].shape == tuple(real.shape)


# ---- Checkpoints


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_regions_and_save_nothing(reentrant):
    class Net(torch.nn.Module):
        def __init__(self, checkpointed):
            super().__init__()
            self.blocks = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
                for _ in range(4)
            )
            self.checkpointed = checkpointed

        def forward(self, x):
            for block in self.blocks:
                if self.checkpointed:
                    x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
                else:
                    x = block(x)
            return x.sum()

    x = torch.randn(256, 64, requires_grad=True)
    plain = sg.capture_training_step(Net(False), x, device="cuda")
    graph = sg.capture_training_step(Net(True), x, device="cuda")
    graph.verify()
    regions = [region for region in graph.regions if region.kind == "checkpoint"]
    assert [region.name for region in regions] == ["Sequential"] * 8
    gelu = graph.find("aten::gelu")
    assert [node.phase for node in gelu] == ["forward"] * 4 + ["backward"] * 4
    assert [node.forward for node in gelu[4:]] == gelu[3::-1]
    checkpointed, before = (sg.Profile(each).dict()["peak"]["bytes"] for each in (graph, plain))
    assert checkpointed < 0.65 * before


# ---- Files and data


def test_torch_load_and_safetensors_give_fakes(tmp_path):
    from safetensors.torch import load_file, save_file

    module = torch.nn.Linear(4, 3)
    torch.save({"state": module.state_dict(), "step": 3}, tmp_path / "a.pt")
    torch.save(module, tmp_path / "module.pt")
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    with sg.fake("cuda"):
        loaded = torch.load(tmp_path / "a.pt")
        assert loaded["step"] == 3 and sg.is_fake(loaded["state"]["weight"])
        assert loaded["state"]["weight"].device.type == "cpu"
        on_cuda = torch.load(tmp_path / "a.pt", map_location="cuda:1")["state"]["bias"]
        assert sg.is_fake(on_cuda) and on_cuda.device == torch.device("cuda:1")
        whole = torch.load(tmp_path / "module.pt", weights_only=False)
        assert sg.is_fake(whole.weight) and isinstance(whole.weight, torch.nn.Parameter)
        with open(tmp_path / "a.pt", "rb") as file:
            assert sg.is_fake(torch.load(file)["state"]["weight"])
        tensors = load_file(tmp_path / "a.safetensors", device="cuda")
        assert sg.is_fake(tensors["weight"]) and tensors["weight"].is_cuda
        net = torch.nn.Linear(4, 3, device="cuda")
        net.load_state_dict(tensors)
    assert not sg.is_fake(torch.load(tmp_path / "a.pt")["state"]["weight"])
    assert not sg.is_fake(load_file(tmp_path / "a.safetensors")["weight"])


@pytest.mark.parametrize("shuffle", [False, True])
def test_data_loaders_give_fakes(shuffle):
    data = torch.utils.data.TensorDataset(torch.randn(10, 3), torch.arange(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=shuffle)
    with sg.fake("cuda"):
        batches = list(loader)
        assert [tuple(x.shape) for x, _ in batches] == [(4, 3), (4, 3), (2, 3)]
        assert all(sg.is_fake(x) and sg.is_fake(y) for x, y in batches)
    assert not any(sg.is_fake(x) for x, _ in loader)


# ---- Other reads of memory


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x.__dlpack__(), lambda x: x.share_memory_(),
        lambda x: pickle.dumps(x), lambda x: pickle.dumps(x.untyped_storage()), lambda x: x.untyped_storage()[0],
        lambda x: x.untyped_storage().tolist(), lambda x: bytes(x.untyped_storage()), lambda x: x.apply_(abs),
        lambda x: x.map_(x, max), lambda x: x.untyped_storage().byteswap(torch.float32), lambda x: float(x[0]),
        lambda x: x.untyped_storage().share_memory_(), lambda x: x.__cuda_array_interface__, lambda x: 1.0 in x,
        lambda x: f"{x[0]:.3f}", lambda x: complex(x[0]),
    ],
)  # fmt: skip
def test_reading_memory_that_is_not_there_says_what_to_do(read, device, tmp_path):
    with sg.fake(device):
        x = torch.randn(3, device=device)
        with pytest.raises(sg.DataDependentError):
            read(x)
        with pytest.raises(sg.DataDependentError):
            torch.save(x, tmp_path / "x.pt")
        assert copy.deepcopy(x).shape == (3,)
        assert "fake" in repr(x)


# ---- Generation


def test_generate_with_a_fixed_number_of_new_tokens():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100,
    )  # fmt: skip
    with sg.Capture("cuda", host_reads={"bool": False}) as session:
        with torch.device("cuda"):
            model = transformers.LlamaForCausalLM(config).eval()
        session.name_module(model)
        tokens = torch.randint(0, 100, (2, 7), device="cuda")
        session.name_input(tokens, "tokens")
        made = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=5, do_sample=False,
                              pad_token_id=0)  # fmt: skip
        assert made.shape == (2, 12)
        graph = session.finish(made)
    graph.verify()
    assert guards(graph) and all("false" in guard for guard in guards(graph))


# ---- Speech recognition with CTC loss: lengths are computed from masks, layers are dropped at random


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_hubert_with_ctc_loss_and_layer_drop(device):
    transformers = pytest.importorskip("transformers")
    config = transformers.HubertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, layerdrop=0.1,
    )  # fmt: skip
    model = transformers.HubertForCTC(config)
    inputs = {"input_values": torch.zeros(2, 800), "labels": torch.ones(2, 4, dtype=torch.long)}
    with pytest.raises(sg.DataDependentError, match="host_reads"):
        sg.capture_training_step(model, inputs, optimizer="adamw", device=device)
    # host_reads answers False: no random number is below the dropout rate, so no layer is dropped, and no frame is
    # masked.
    graph = sg.capture_training_step(model, inputs, optimizer="adamw", device=device, host_reads={"bool": False})
    graph.verify()
    lengths = [node for node in graph.nodes if node.target == "aten::_ctc_loss"]
    frames = int(model._get_feat_extract_output_lengths(800))
    assert len(lengths) == 1 and lengths[0].argument("input_lengths") == [frames, frames]
    assert lengths[0].argument("target_lengths") == [4, 4]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_split_at_places_that_are_worked_out(device):
    def program(x):
        return torch.tensor_split(x, torch.ones(3, dtype=torch.long).cumsum(0) * 2)

    graph = sg.capture(program, torch.randn(10, 2), device=device)
    (output,) = graph.find("sg::output")
    assert [tuple(value.shape) for value in output.inputs] == [(2, 2), (2, 2), (2, 2), (4, 2)]


def test_options_of_the_capture_are_keywords_too():
    model, inputs = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with pytest.raises(TypeError, match="given twice"):
        sg.profile(model, inputs, host_reads="finite", options={"host_reads": "finite"})
    with pytest.raises(TypeError, match="did you mean 'host_reads'"):
        sg.profile(model, inputs, host_read="finite")
    with pytest.raises(TypeError, match="did you mean 'guards'"):
        sg.profile(model, inputs, options={"guard": False})
    with pytest.raises(TypeError, match="did you mean 'guards'"):
        sg.capture(model, inputs, options={"guard": False})
    with pytest.raises(TypeError, match="unknown keyword argument 'x'. Accepted: accumulate, .*host_reads"):
        sg.profile(model, inputs, x=2)
    with pytest.raises(TypeError, match="did you mean 'accumulate'"):
        sg.capture_training_step(model, inputs, accumulated=2)
