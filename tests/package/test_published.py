"""Programs of bench/published compared with published measurements: a few rows per table, within the page's error
bounds."""

import importlib
import pathlib
import statistics
import sys

import pytest
import torch

import shadowgraph as sg

PUBLISHED = pathlib.Path(__file__).resolve().parents[2] / "bench/published"
sys.path.insert(0, str(PUBLISHED))
comparison, megatron, sailor, arguments = map(importlib.import_module,
                                              ("comparison", "megatron", "sailor", "megatron_arguments"))  # fmt: skip
sailor_layers, sailor_seconds, stage_clock, simumax, simumax_seconds, nanotron = map(
    importlib.import_module,
    ("sailor_layers", "sailor_seconds", "stage_clock", "simumax", "simumax_seconds", "nanotron"))  # fmt: skip
# Cases of plain PyTorch: pipelines, tensor parallel, a distributed optimizer, GPT, BERT, T5, experts.
LOCAL = (
    "gpt/gpt3_mcore_tp1_pp1_dist_optimizer_overlap_grad_reduce_param_gather",
    "gpt/gpt3_mcore_tp1_pp4_resume_torch_dist",
    "gpt/gpt3_mcore_tp2_pp2_uninstall_te",
    "bert/bert_mcore_tp2_pp2_local_spec",
    "t5/t5_mcore_tp2_pp1_vp1",
    "moe/gpt3_mcore_tp2_pp2_ep2_etp2_te_4experts2parallel",
)
OTHERS = (
    "gpt/gpt3_7b_tp1_pp4_memory_speed",
    "gpt/gpt3_mcore_te_tp1_pp1_resume_torch_dist_uniform_full_recompute",
    "gpt/gpt3_mcore_te_tp1_pp4_vp1",
    "gpt/gpt3_mcore_te_tp2_pp2_cp2",
    "moe/gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4",
)


def errors_of(cases):
    """Returns the relative error of peak allocated bytes for each row of the cases."""
    errors = {}
    for row in megatron.rows():
        if row["case"] in cases:
            errors[row["case"], row["hardware"]] = abs(comparison.error(comparison.answer(megatron, row)))
    assert {case for case, _ in errors} == set(cases)
    return errors


def test_megatrons_own_modules_are_within_two_percent():
    errors = errors_of(LOCAL)
    assert statistics.median(errors.values()) < 0.01
    assert max(errors.values()) < 0.02, errors


def test_transformer_engines_modules_are_within_ten_percent():
    errors = errors_of(OTHERS)
    assert statistics.median(errors.values()) < 0.03
    assert max(errors.values()) < 0.10, errors


def test_a_step_of_a_gpt_is_right_to_30_kilobytes():
    (row,) = [row for row in megatron.rows() if row["case"] == LOCAL[0] and row["hardware"] == "dev_dgx_a100"]
    answer = megatron.predicted(row)
    assert abs(answer["predicted"] - megatron.published(row)) < 30_000, "of 4.7 GB"
    assert abs(answer["after"] - megatron.published_after(row)) < 4_000, "of 615 MB"


def test_nothing_is_unknown_inside_megatrons_kernels():
    for case in (LOCAL[0], OTHERS[-1]):
        row = next(row for row in megatron.rows() if row["case"] == case)
        report = sg.profile(megatron.captured(arguments.of_row(row)), spec="h100")
        assert report.dict()["unknown_scratch"] == []


@pytest.mark.parametrize("given", ["multi-latent-attention", "use-megatron-fsdp", "moe-layer-freq"])
def test_what_the_programs_lack_is_refused(given):
    row = megatron.rows()[0]
    row["given"][given] = "true"
    with pytest.raises(arguments.NotExpressed, match=given):
        megatron.predicted(row)


def test_sailors_pipelines_of_one_stage_are_within_five_percent():
    rows = [row for row in comparison.rows_of(sailor) if row["stages"] == "1"]
    for row in rows:
        assert abs(comparison.error(comparison.answer(sailor, row))) < 0.05, row
    assert len(rows) >= 4


def test_sailors_stages_are_within_five_percent_of_bytes_and_twelve_of_seconds():
    rows = [row for row in comparison.rows_of(sailor) if row["mbs"] == "8" and row["stages"] == "2"]
    assert len(rows) == 3
    for row in rows:
        assert abs(comparison.error(comparison.answer(sailor, row))) < 0.05, row
        assert abs(comparison.error(comparison.answer(sailor_seconds, row))) < 0.12, row


@pytest.mark.parametrize("gpu", ["A100-40", "V100-16", "RTX-3090", "GH-96"])
def test_single_layers_take_what_sailor_measured(gpu):
    rows = [row for row in comparison.rows_of(sailor_layers) if row["gpu"] == gpu and row["micro_batch"] == "4"]
    errors = [abs(comparison.error(comparison.answer(sailor_layers, row))) for row in rows]
    assert len(errors) >= 2
    assert max(errors) < 0.08, errors


def test_two_layers_tell_the_seconds_of_more():
    one, two, four = (sailor_seconds.few("OPT-350", 4, 4, 1, 1, layers, 2) for layers in (1, 2, 4))
    for k in (0, 1):
        assert four[k] == pytest.approx(one[k] + 3 * (two[k] - one[k]), rel=1e-3)


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
@pytest.mark.parametrize("micro_batches", [1, 4, 64])
def test_the_engines_schedule_is_1f1bs(stages, micro_batches):
    forward, backward = [1.0] * stages, [2.0] * stages
    at_once, late = (stage_clock.run(stage_clock.deepspeed(stages, micro_batches, forward, backward, send))
                     for send in (0.0, 0.5))  # fmt: skip
    assert at_once == 3.0 * (micro_batches + stages - 1)
    assert late >= at_once + (stages - 1), "the first micro-batch crosses each boundary twice"


def test_stages_that_wait_for_ever_are_named():
    with pytest.raises(ValueError, match=r"\(0, 1, 'a'\)"):
        stage_clock.run([[("send", 1, "a", 1.0)], [("compute", 1.0)]])


@pytest.mark.parametrize("case", ["llama3_70b_tp2_pp1_dp4_l12_mbc4_cef", "llama3_405b_l4_tp8_pp1_dp1_mbc32_cef"])
def test_megatron_on_b200_holds_and_takes_what_simumax_measured(case):
    (row,) = [row for row in simumax.rows() if row["case"] == case]
    assert abs(comparison.error(comparison.answer(simumax, row))) < 0.005
    assert abs(comparison.error(comparison.answer(simumax_seconds, row))) < 0.08


def test_what_simumax_ran_beyond_these_programs_is_left_out():
    (row, *_) = [row for row in simumax.rows() if row["model"] == "deepseekv2"]
    assert "multi-latent-attention" in simumax.why_not(row)


def test_nanotrons_pipelines_reach_the_published_share():
    rows = [row for row in nanotron.rows() if row["pp"] == 2]
    errors = [abs(comparison.error(comparison.answer(nanotron, row))) for row in rows]
    assert statistics.median(errors) < 0.10
    assert nanotron.layers_of({"model_B": "8.86", "pp": 2}) == [17, 15], "the output counts as two layers"


def test_workspaces_follow_from_the_device_and_can_be_set():
    graph = sg.profile(lambda: torch.nn.Linear(64, 64), "f32[8,64]", mode="train").graph

    def held(spec, **how):
        memory = sg.profile(graph, spec=spec, **how).dict()["device_memory"]
        return memory["assumed"]["cublas_workspace_bytes"]

    assert held("h100") == 2 * 32 * 2**20, "forward and backward have separate handles"
    assert held("a100") == 2 * 8519680
    assert held("a100", cublas_workspace=":4096:8") == held("h100")
    assert held("a100", cublas_workspace=1 << 20) == 2 << 20
    with pytest.raises(sg.Error, match="CUBLAS_WORKSPACE_CONFIG"):
        held("a100", cublas_workspace="4 MiB")
