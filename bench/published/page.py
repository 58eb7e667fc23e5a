"""Compares predictions with all published runs and writes a page with plots, errors and the worst rows.

    python bench/published/page.py build/published [--only llm_foundry ...] [--figures]

`--only` runs some tables; the folder must contain results of the others.
`--figures` also updates docs/figures/20-published.json and docs/pictures/published.svg.
"""

import argparse
import concurrent.futures
import datetime
import html
import importlib
import json
import multiprocessing
import os
import pathlib
import sys
import time

from comparison import HERE, answer, error, rank_correlation, read_rows, rows_of, summary

ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import write_figures  # noqa: E402

# Modules of the tables, in the order of the page.
TABLES = ["llm_foundry", "torchtitan", "nanotron", "nanotron_memory", "operators", "collectives", "megatron", "simumax",
          "simumax_seconds", "sailor", "sailor_seconds", "sailor_layers"]  # fmt: skip
WORST = 5  # number of worst rows to list
MANY = 300  # plots with more points are rasterized


def chunk_of(name, rows):
    table = importlib.import_module(name)
    return [answer(table, row) for row in rows]


def run(names):
    """Returns the predictions of each table, computed in one process per core."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context) as pool:
        waiting = {}
        for name in names:
            table = importlib.import_module(name)
            rows = rows_of(table)
            size = max(1, len(rows) // (4 * os.cpu_count()))
            waiting[name] = [pool.submit(chunk_of, name, rows[at : at + size]) for at in range(0, len(rows), size)]
        return {name: [each for part in parts for each in part.result()] for name, parts in waiting.items()}


def parts_of(table, answers):
    """Returns {part: rows} of a table."""
    parts = {}
    for each in answers:
        parts.setdefault(table.part(each), []).append(each)
    return dict(sorted(parts.items()))


def left_out(table):
    """Returns the number of rows that are not compared, or the reason for each case."""
    read = getattr(table, "rows", read_rows)
    rows = [row for row in read(HERE / table.TABLE) if not table.is_compared(row)]
    if not hasattr(table, "why_not"):
        return [f"{len(rows)} rows"] if rows else []
    return sorted({table.why_not(row) for row in rows})


def percent(figure, signed=False):
    return f"{100 * figure:+.1f} %" if signed else f"{100 * figure:.1f} %"


def error_rows(tables):
    """Yields a row per table and part: rows, mean, median, worst, bias, rank correlation, correct fits."""
    for name, answers in tables.items():
        table = importlib.import_module(name)
        parts = parts_of(table, answers)
        if len(parts) > 1:
            parts["all"] = answers
        if hasattr(table, "others"):
            parts |= table.others(answers)
        for part, rows in parts.items():
            of = summary(rows)
            fit = f"{sum(row['fits'] for row in rows)} of {len(rows)}" if "fits" in rows[0] else ""
            order = f"{rank_correlation(rows):.4f}" if len(rows) > 2 else ""
            yield [f"{table.TITLE}: {part}", str(of["rows"]), percent(of["mean"]), percent(of["median"]),
                   percent(of["worst"]), percent(of["bias"], signed=True), order, fit]  # fmt: skip


COLUMNS = ["table", "rows", "mean error", "median", "worst", "bias", "order", "fit, as they did"]


def draw(tables, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "published", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    from matplotlib import pyplot

    columns = min(2, len(tables))
    lines = -(-len(tables) // columns)
    figure, panels = pyplot.subplots(lines, columns, figsize=(5.2 * columns, 4.6 * lines), squeeze=False)
    for panel in panels.flat[len(tables) :]:
        panel.remove()
    for panel, (name, answers) in zip(panels.flat, tables.items(), strict=False):
        table = importlib.import_module(name)
        low = min(min(row["published"], row["predicted"]) for row in answers) / 1.3
        high = max(max(row["published"], row["predicted"]) for row in answers) * 1.3
        panel.plot([low, high], [low, high], color="0.4", linewidth=0.8)
        panel.fill_between([low, high], [low * 0.8, high * 0.8], [low * 1.2, high * 1.2], color="0.92", linewidth=0)
        for part, rows in parts_of(table, answers).items():
            panel.scatter([row["published"] for row in rows], [row["predicted"] for row in rows], s=9, label=part,
                          rasterized=len(rows) > MANY)  # fmt: skip
        panel.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), title=table.TITLE,
                  xlabel=f"published, {table.UNIT}", ylabel=f"predicted, {table.UNIT}")  # fmt: skip
        panel.legend(fontsize=7, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def table_html(columns, rows):
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>\n"


def page(tables, picture, seconds):
    out = ["<!doctype html><meta charset=utf-8><title>Predicted and published</title>",
           "<style>body{font:14px sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}td,th{padding:2px 10px;",
           "text-align:right}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}</style>",
           "<h1>Predicted and published</h1><p>Each point is a published run. No GPU was used; gray is "
           f"within 20 %. {sum(map(len, tables.values()))} rows in {seconds:.0f} s.</p>",
           picture[picture.index("<svg"):], table_html(COLUMNS, error_rows(tables))]  # fmt: skip
    for name, answers in tables.items():
        table = importlib.import_module(name)
        if absent := left_out(table):
            out.append(f"<p>Not compared: {html.escape('; '.join(absent))}.</p>")
        worst = sorted(answers, key=lambda row: -abs(error(row)))[:WORST]
        rows = [[table.named(row), f"{row['published']:.5g}", f"{row['predicted']:.5g}", percent(error(row), True)]
                for row in worst]  # fmt: skip
        about = " ".join(table.__doc__.split("\n\n")[2:])  # without the title and the command
        out.append(f"<h2>{html.escape(table.TITLE)}</h2><p>{html.escape(about)}</p><p>{html.escape(table.WORST)}</p>")
        out.append(table_html(["worst rows", f"published, {table.UNIT}", "predicted", "error"], rows))
    return "\n".join(out)


def figures(tables, seconds):
    """Returns the section of docs/figures.md."""
    modules = [importlib.import_module(name) for name in tables]
    took = [f"All rows took {seconds:.0f} s on {os.cpu_count()} cores."] if seconds else []
    return {"title": "Published runs",
            "about": "Predictions compared with published runs on GPUs, from `bench/published/`. The rows are about "
                     "half of each source. docs/time.md lists the fitted constants and the data they were fitted on.",
            "measured": datetime.date.today().isoformat(), "machine": write_figures.MACHINE,
            "command": "make published FIGURES=1",
            "reading": [f"{table.TITLE}. {table.WORST}" for table in modules] + took,
            "tables": [{"columns": COLUMNS, "rows": list(error_rows(tables))}]}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=TABLES, choices=TABLES)
    parser.add_argument("--figures", action="store_true")
    given = parser.parse_args()
    start = time.perf_counter()
    fresh = run(given.only)
    seconds = time.perf_counter() - start
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, answers in fresh.items():
        (given.folder / f"{name}.json").write_text(json.dumps(answers, indent=1) + "\n")
    tables = {name: json.loads((given.folder / f"{name}.json").read_text()) for name in TABLES
              if name in fresh or (given.folder / f"{name}.json").exists()}  # fmt: skip
    draw(tables, given.folder / "published.svg")
    picture = (given.folder / "published.svg").read_text()
    (given.folder / "index.html").write_text(page(tables, picture, seconds))
    for row in error_rows(tables):
        print(f"{row[0]:44} {row[1]:>5} rows  mean {row[2]:>7}  worst {row[4]:>8}  bias {row[5]:>8}  "
              f"{row[6]}  {row[7]}")  # fmt: skip
    print(f"{given.folder}/index.html, {seconds:.0f} s")
    if given.figures:
        text = (
            json.dumps(figures(tables, seconds if len(fresh) == len(TABLES) else None), indent=2, ensure_ascii=False)
            + "\n"
        )
        (ROOT / "docs/figures/20-published.json").write_text(text)
        (ROOT / "docs/pictures/published.svg").write_text(picture)


if __name__ == "__main__":
    main()
