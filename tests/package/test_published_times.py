"""GPU times compared with published runs: some rows of the tables that `make published` runs in full."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/published"))
import comparison
import llm_foundry
import torchtitan

import operators


def pairs(table, wanted):
    rows = [row for row in comparison.read_rows(comparison.HERE / table.TABLE) if table.is_compared(row)]
    return [comparison.answer(table, row) for row in rows if wanted(row)]


def test_training_runs_of_llm_foundry():
    """Eight devices, 2,048 tokens: A100 with 40 and 80 GB and H100, two models each."""
    of = ("8", "2048")
    rows = pairs(llm_foundry, lambda row: (row["gpus"], row["sequence"]) == of and row["model"] in ("3b", "1b"))
    assert {row["gpu"] for row in rows} == {"a100_40gb", "a100_80gb", "h100_80gb"}
    assert comparison.summary(rows)["worst"] < 0.1
    assert comparison.rank_correlation(rows) > 0.95
    assert all(row["fits"] for row in rows)


def test_a_training_run_of_torchtitan():
    (row,) = pairs(torchtitan, lambda row: row["gpus"] == "8" and row["compiled"] == "no")
    assert abs(comparison.error(row)) < 0.12
    assert row["reserved"] == pytest.approx(float(row["reserved_gib"]), rel=0.12)


def test_single_operators():
    """One model on two devices: no constant is fitted to a row."""
    rows = pairs(operators, lambda row: row["model"] == "gpt_6_7B" and row["tp"] == "1")
    assert len(rows) > 60
    by_device = [[row for row in rows if operators.part(row) == device] for device in ("a100", "v100")]
    for of in by_device:
        assert comparison.summary(of)["median"] < 0.12
        products = [row for row in of if "GEMM" in row["op_name"]]
        assert comparison.summary(products)["worst"] < 0.15


def test_rows_may_come_from_elsewhere(tmp_path):
    """--csv accepts the columns of the original logs, and .gz files."""
    table = tmp_path / "rows.csv"
    table.write_text("gpu_set,model,mbs,tp,algo,op_name,fwd_us,output_mb\nl4-x,gpt_1_3B,1,1,0,enc-MLP-GEMM-1,3000,80\n")
    (row,) = comparison.read_rows(table)
    assert operators.predicted(row)["predicted"] > 0
    assert comparison.summary([{"published": 1, "predicted": 1.5}, {"published": 2, "predicted": 1}])["worst"] == 0.5
