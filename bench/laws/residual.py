"""The residual table: log(measured / law) on a grid of knots, smoothed; one byte a cell."""
import numpy as np

class Residuals:
    """axes: list of sorted arrays of knots (log2 of the sizes). Smoothing: a kernel per axis, applied one axis after
    another to the sums and to the counts of residuals: weight 1 at the same knot, leak * exp(-|distance| / length)
    at another. value = sums / (counts + ridge)."""
    def __init__(self, columns, most=80):
        self.axes = []
        for c in columns:
            u = np.unique(np.log2(np.asarray(c, float)))
            mo = most[len(self.axes)] if isinstance(most, list) else most
            if len(u) > mo: u = u[np.unique(np.linspace(0, len(u) - 1, mo).round().astype(int))]
            self.axes.append(u)
    def index(self, columns):
        out = []
        for u, c in zip(self.axes, columns):
            v = np.log2(np.asarray(c, float)); j = np.clip(np.searchsorted(u, v), 1, max(1, len(u) - 1)) if len(u) > 1 else np.zeros(len(v), int)
            if len(u) > 1: j = np.where(v - u[j - 1] < u[j] - v, j - 1, j)
            out.append(j)
        return tuple(out)
    def grids(self, columns, r, clip=1.0):
        shape = [len(u) for u in self.axes]; s = np.zeros(shape); n = np.zeros(shape)
        i = self.index(columns); np.add.at(s, i, np.clip(r, -clip, clip)); np.add.at(n, i, 1)
        return s, n
    def smooth(self, s, n, lengths, leak, ridge):
        for a, u in enumerate(self.axes):
            w = leak[a] * np.exp(-np.abs(u[:, None] - u[None]) / lengths[a]); np.fill_diagonal(w, 1)
            s = np.moveaxis(np.tensordot(w, s, (1, a)), 0, a); n = np.moveaxis(np.tensordot(w, n, (1, a)), 0, a)
        return s / (n + ridge)
    def fit(self, columns, r, seed=0):
        rng = np.random.default_rng(seed); inner = rng.random(len(r)) < .2
        cols = [np.asarray(c) for c in columns]
        s, n = self.grids([c[~inner] for c in cols], r[~inner]); i = self.index([c[inner] for c in cols]); rv = r[inner]
        best = None; k = len(self.axes)
        lengths, leak, ridge = [1.] * k, [.5] * k, .1
        score = lambda L, K, R: float(np.mean(np.minimum(np.abs(self.smooth(s, n, L, K, R)[i] - rv), .5)) + np.median(np.abs(self.smooth(s, n, L, K, R)[i] - rv)))
        best = score(lengths, leak, ridge)
        for _ in range(3):
            moved = False
            for a in range(k):
                for f in (2, .5):
                    t = list(lengths); t[a] *= f; v = score(t, leak, ridge)
                    if v < best - 1e-5: best, lengths, moved = v, t, True
                for f in (1.5, 1/1.5):
                    t = list(leak); t[a] = min(1, t[a] * f); v = score(lengths, t, ridge)
                    if v < best - 1e-5: best, leak, moved = v, t, True
            for f in (3, 1/3):
                v = score(lengths, leak, ridge * f)
                if v < best - 1e-5: best, ridge, moved = v, ridge * f, True
            if not moved: break
        self.lengths, self.leak, self.ridge = lengths, leak, ridge
        s, n = self.grids(cols, r)
        v = self.smooth(s, n, lengths, leak, ridge)
        self.scale = max(1e-6, np.abs(v).max()) / 127
        self.table = np.round(v / self.scale).astype(np.int8)
        return self
    def bytes(self): return self.table.size
    def __call__(self, columns):
        """Linear between knots, constant beyond the ends."""
        lo, fr = [], []
        for u, c in zip(self.axes, columns):
            v = np.clip(np.log2(np.asarray(c, float)), u[0], u[-1])
            if len(u) == 1: lo.append(np.zeros(len(v), int)); fr.append(np.zeros(len(v))); continue
            j = np.clip(np.searchsorted(u, v, side="right") - 1, 0, len(u) - 2); lo.append(j); fr.append((v - u[j]) / (u[j + 1] - u[j]))
        out = 0.
        for corner in range(2 ** len(self.axes)):
            w = 1.; ix = []
            for a in range(len(self.axes)):
                up = corner >> a & 1
                w = w * (fr[a] if up else 1 - fr[a]); ix.append(np.minimum(lo[a] + up, len(self.axes[a]) - 1))
            out = out + w * self.table[tuple(ix)]
        return out * self.scale
