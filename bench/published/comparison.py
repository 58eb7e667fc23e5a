"""Shared by all tables: reads rows, predicts their values, and computes errors against the published values."""

import argparse
import csv
import gzip
import importlib
import json
import pathlib
import statistics

HERE = pathlib.Path(__file__).parent


def read_rows(path):
    data = pathlib.Path(path).read_bytes()
    text = (gzip.decompress(data) if str(path).endswith(".gz") else data).decode()
    return list(csv.DictReader(text.splitlines()))


def rows_of(table, path=None):
    """Returns the rows that are compared."""
    read = getattr(table, "rows", read_rows)
    return [row for row in read(path or HERE / table.TABLE) if table.is_compared(row)]


def error(pair):
    """Returns the relative error of the prediction: 0.1 is 10 % too high."""
    return pair["predicted"] / pair["published"] - 1


def summary(pairs):
    """Returns mean, median and worst absolute error, and the signed median, of {"published", "predicted"} rows."""
    errors = [error(pair) for pair in pairs]
    sizes = [abs(each) for each in errors]
    return {"rows": len(pairs), "mean": statistics.mean(sizes), "median": statistics.median(sizes), "worst": max(sizes),
            "bias": statistics.median(errors)}  # fmt: skip


def rank_correlation(pairs):
    """Returns Spearman's rank correlation of predicted and published values."""
    return statistics.correlation(*(_ranks([pair[key] for pair in pairs]) for key in ("published", "predicted")))


def _ranks(figures):
    order = {figure: rank for rank, figure in enumerate(sorted(figures))}
    return [order[figure] for figure in figures]


def told(name, pairs):
    of = summary(pairs)
    return (f"{name:40} {of['rows']:5} rows  mean {100 * of['mean']:5.1f} %  median {100 * of['median']:5.1f} %  "
            f"worst {100 * of['worst']:6.1f} %  bias {100 * of['bias']:+6.1f} %")  # fmt: skip


def compare(name):
    """Predicts the rows of the table in module `name`, prints errors, and optionally writes both values of each row.

    A module defines TABLE (the file with its rows), TITLE, UNIT and WORST (explains the worst rows). rows(path)
    reads them, if a row is more than a line; is_compared(row) excludes some; part(row) and named(row) describe a row to
    readers. published(row) returns a number, predicted(row) a dictionary, whose "predicted" is compared with the number
    and whose "fits" tells whether memory suffices. others(answers) returns pairs of other values by name, for the page.
    """
    table = importlib.import_module(name)
    parser = argparse.ArgumentParser(description=table.__doc__.splitlines()[0])
    parser.add_argument("--csv", help="file with rows of the same columns, .csv or .csv.gz")
    parser.add_argument("--rows", default="", help="range of rows, a..b")
    parser.add_argument("--by", help="summarize by this column instead of printing rows")
    parser.add_argument("--json", help="output file for both values of each row")
    given = parser.parse_args()
    rows = rows_of(table, given.csv)
    if given.rows:
        first, last = map(int, given.rows.split(".."))
        rows = rows[first:last]
    answers = [answer(table, row) for row in rows]
    parts = {}
    for each in answers:
        if not given.by:
            print(f"{table.named(each)}  {each['published']:12.5g} {each['predicted']:12.5g} "
                  f"{100 * error(each):+7.1f} %")  # fmt: skip
        part = f"{table.part(each)} {each[given.by]}" if given.by else table.part(each)
        parts.setdefault(part, []).append(each)
    for part in sorted(parts):
        print(told(part, parts[part]))
    print(told("all", answers))
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(answers, indent=1) + "\n")


def answer(table, row):
    return {**row, "published": table.published(row), **table.predicted(row)}
