"""The fitting procedure: pattern search (Hooke-Jeeves) on the logarithms of positive parameters."""
import numpy as np

def pattern_search(loss, start, lower=None, upper=None, step=0.35, least=0.02, rounds=200, fixed=()):
    """start: dict name -> value > 0. Minimizes loss(dict). Steps are in log space; a parameter's step doubles after
    a success and halves after a failure of both directions; after each round a move along the round's whole
    displacement is tried. Stops when all steps are below `least`."""
    names = [n for n in start if n not in fixed]
    x = {n: float(np.log(v)) for n, v in start.items()}
    lo = {n: np.log(lower[n]) if lower and n in lower else -np.inf for n in names}
    hi = {n: np.log(upper[n]) if upper and n in upper else np.inf for n in names}
    val = lambda y: loss({n: float(np.exp(v)) for n, v in y.items()})
    best, evals = val(x), 1
    steps = {n: step for n in names}
    for _ in range(rounds):
        before = dict(x)
        for n in names:
            if steps[n] < least: steps[n] = least / 2
            for sign in (1, -1):
                y = dict(x); y[n] = min(hi[n], max(lo[n], x[n] + sign * steps[n]))
                if y[n] == x[n]: continue
                v = val(y); evals += 1
                if v < best:
                    best, x = v, y; steps[n] = sign * steps[n] * 1.6 if False else steps[n] * 1.6
                    break
            else:
                steps[n] /= 2
        y = {n: x[n] if n in fixed else min(hi.get(n, np.inf), max(lo.get(n, -np.inf), 2 * x[n] - before[n])) for n in x}
        if y != x:
            v = val(y); evals += 1
            if v < best: best, x = v, y
        if all(s < least for s in steps.values()): break
    return {n: float(np.exp(v)) for n, v in x.items()}, best, evals
