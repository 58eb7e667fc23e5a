"""torchtitan programs of the published table: quantities that do not depend on the sharding, and measured rows."""

import importlib
import pathlib
import sys

import pytest

PUBLISHED = pathlib.Path(__file__).resolve().parents[2] / "bench/published"
sys.path.insert(0, str(PUBLISHED))
comparison, llama, torchtitan, programs, pipeline = map(
    importlib.import_module,
    ("comparison", "llama", "torchtitan", "torchtitan_programs", "torchtitan_pipeline"),
)
PLAIN = {"model": "small", "gpus": "8", "shard": "8", "tensor": "1", "context": "1", "pipeline": "1", "schedule": "",
         "micro_batch": "2", "sequence": "1024", "checkpoint": "full", "compiled": "yes", "precision": "bf16",
         "asynchronous_tensor": "no"}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(llama.SIZES, "small", (2048, 8, 16, 8, 6144))


CUT = {"gpus": "64", "tensor": "8"}
PIPELINE = {"gpus": "16", "shard": "2", "tensor": "2", "pipeline": "4", "micro_batch": "8", "sequence": "8192"}


def report(**columns):
    return programs.Row({**PLAIN, **columns}).profile().dict()


def flops(**columns):
    return sum(report(**columns)["flops"].values())


def test_a_compiled_block_multiplies_what_an_eager_one_does():
    assert flops() == flops(compiled="no")


def test_a_compiled_block_keeps_less_and_is_faster():
    eager, compiled = (report(compiled=word, checkpoint="selective") for word in ("no", "yes"))
    assert compiled["communication"]["overlap"]["seconds"] < eager["communication"]["overlap"]["seconds"]
    # The last matrix product of each of 8 blocks, in bf16.
    kept = eager["phase_peaks"]["backward"]["bytes"] - compiled["phase_peaks"]["backward"]["bytes"]
    assert kept == pytest.approx(8 * 2 * 1024 * 2048 * 2, rel=0.2)


def test_ranks_of_tensor_parallel_share_all_products():
    assert 8 * flops(**CUT) == flops()
    assert flops(**CUT, asynchronous_tensor="yes") == flops(**CUT)


def test_float8_multiplies_as_much_and_gathers_half_as_much():
    assert flops(**CUT, precision="fp8") == flops(**CUT)

    def sent(precision):
        groups = report(**CUT, precision=precision)["communication"]["groups"]
        return sum(group["payload_bytes"] for group in groups if group["axis"] == "tp")

    # A block all-gathers the inputs of two pairs of layers, again in backward, and two gradients.
    saved = 8 * 6 * 2 * 1024 * 2048
    assert 0 <= saved - (sent("bf16") - sent("fp8")) < 10_000, "except for exchanging the maxima for scales"


def test_asynchronous_tensor_parallel_hides_collectives():
    plain, pieces = (report(**CUT, sequence="8192", asynchronous_tensor=word)["communication"]
                     for word in ("no", "yes"))  # fmt: skip
    assert pieces["payload_bytes"] == plain["payload_bytes"]
    assert pieces["overlap"]["seconds"] < plain["overlap"]["seconds"]


def test_layers_of_stages_are_torchtitans():
    assert pipeline.layers_of(126, 8) == [15, 16, 16, 16, 16, 16, 16, 15]
    assert pipeline.layers_of(126, 16) == [7, *[8] * 14, 7]
    assert pipeline.layers_of(8, 4) == [2, 2, 2, 2]


def test_an_interleaved_pipeline_is_faster():
    ranks = {name: pipeline.ranks_of(programs.Row({**PLAIN, **PIPELINE}), name) for name in pipeline.SCHEDULES}
    plain, interleaved = (ranks[name].run(spec="h100").seconds for name in ("1F1B", "Interleaved1F1B"))
    # 4 micro-batches on 4 ranks take 7 turns of a whole stage, or 11 of half a stage; FSDP's collectives take no less.
    assert 1.05 * interleaved < plain


def row_of(**columns):
    (row,) = [row for row in comparison.rows_of(torchtitan)
              if all(row[column] == value for column, value in columns.items())]  # fmt: skip
    return row


@pytest.mark.parametrize("columns", [
    {"gpus": "8", "compiled": "no"}, {"gpus": "128", "compiled": "yes", "precision": "fp8"},
    {"model": "70b", "precision": "fp8", "asynchronous_tensor": "no"},
    {"model": "70b", "precision": "fp8", "asynchronous_tensor": "yes"},
])  # fmt: skip
def test_rows_are_within_twelve_and_five_percent(columns):
    answer = comparison.answer(torchtitan, row_of(**columns))
    assert abs(comparison.error(answer)) < 0.12
    assert answer["reserved"] == pytest.approx(float(answer["reserved_gib"]), rel=0.05)


def test_what_the_programs_lack_is_not_compared():
    assert all(torchtitan.is_compared(row) for row in comparison.read_rows(PUBLISHED / torchtitan.TABLE))
    assert not torchtitan.is_compared({**PLAIN, "compiled": "no", "precision": "fp8"})
    assert not torchtitan.is_compared({**PLAIN, **CUT, "compiled": "no"})
    assert not torchtitan.is_compared({**PLAIN, **PIPELINE, "context": "2"})
