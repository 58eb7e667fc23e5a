"""Proves on small trees that a check finds each mistake, and nothing else: what `--test` of the checks runs."""

import pathlib
import tempfile


def prove(check, bad, good, tree, found, mistakes=lambda number: number > 0):
    """Prints what a check gets wrong, and returns whether there is anything.

    check: its name, for the message. bad, good: {title: (file, text)}. tree(title, file, text): {path: text} of the
    files to write. found(root, file): the findings there. mistakes(number): whether that many refuse a bad case.
    """
    wrong = []
    for expected, cases in ((True, bad), (False, good)):
        for title, (name, text) in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                root = pathlib.Path(folder)
                for path, content in tree(title, name, text).items():
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).write_text(content)
                findings = list(found(root, name))
                as_expected = mistakes(len(findings)) if expected else not findings
                if not as_expected:
                    wrong.append(f"{title}: {name} with {text!r} gives {findings}")
    print("\n".join(wrong) or f"{check}: {len(bad)} bad cases refused, {len(good)} good ones accepted")
    return bool(wrong)
