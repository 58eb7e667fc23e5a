"""Self-test of the check scripts (`--test`): runs a check on small trees with and without mistakes."""

import pathlib
import tempfile


def prove(check, bad, good, tree, found, mistakes=lambda number: number > 0):
    """Runs the check on all cases. Prints wrong results and returns True if there are any.

    check: name of the check.
    bad, good: {title: (file, text)}.
    tree(title, file, text): returns {path: text} of the files to write.
    found(root, file): returns the findings in the tree.
    mistakes(number): returns True if this number of findings is right for a bad case.
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
                    wrong.append(f"{title}: {name} with {text!r} has findings {findings}")
    print("\n".join(wrong) or f"{check}: {len(bad)} bad cases rejected, {len(good)} good cases accepted")
    return bool(wrong)
