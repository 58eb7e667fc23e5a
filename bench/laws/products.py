"""Products y = x W^T (x m by k, W n by k), bf16 and fp8 (with a cast of x by row): law, fit, table, a GPU left out.
usage: products.py fit | out"""
from data import *
from solver import pattern_search
from residual import Residuals
import sys, time, json
# data sheet: multiprocessors, L2 bytes, memory bytes/us, dense bf16 FLOP/us, fp8 FLOP/us
SHEET = dict(a100=(108, 40e6, 2.039e6, 312e6, 0), l40s=(142, 96e6, .864e6, 362e6, 733e6), h100=(132, 50e6, 3.35e6, 989e6, 1979e6),
             h200=(132, 50e6, 4.8e6, 989e6, 1979e6), b200=(148, 126e6, 8e6, 2250e6, 4500e6), rtxpro6000=(188, 128e6, 1.792e6, 504e6, 1007e6))
TILES = [(256,128),(128,256),(192,128),(128,192),(128,128),(256,64),(64,256),(128,64),(64,128),(64,64),(128,32),(32,128),(64,32),(32,64),(16,64),(16,128)]
SPLITS = [1,2,3,4,6,8,12,16,32]
class Cases:
    def __init__(self, m, n, k, sms, size):
        m, n, k = (np.asarray(a, float) for a in (m, n, k))
        self.m, self.k, self.fp8 = m, k, size == 1
        self.f = 2 * m * n * k; self.xb, self.wb, self.yb = m * k * size, n * k * size, m * n * 2
        m, n, k = m[:, None], n[:, None], k[:, None]
        c = [(a, b, p) for a, b in TILES for p in SPLITS]
        bm, bn, p = (np.array([x[i] for x in c], float)[None] for i in range(3))
        self.waves = np.ceil(m / bm) * np.ceil(n / bn) * p / sms; self.ceil = np.maximum(1, np.ceil(self.waves))
        self.kk = np.ceil(k / p / 32) * 32
        self.flops = 2 * bm * bn * self.kk; self.loads = (bm + bn) * self.kk * size; self.area = bm * bn
        self.bad = np.where((p > 1) & (k / p < 128), np.inf, 0.); self.split = (p > 1) * 1.; self.parts = np.where(p > 1, p * m * n * 4, 0.)
def law(c, q):
    each = np.maximum(c.flops / q["rate"], c.loads / q["feed"]) + c.kk / 32 * q["step"] + q["tile"] + c.area * q["store"]
    s = q["soft"]; waves = np.where(c.waves <= 1, 1, (1 - s) * c.ceil + s * c.waves)
    hot = 1 / (1 + ((c.xb + q["copies"] * c.wb + c.yb) / q["l2"]) ** 8)
    move = (c.xb + c.wb + c.yb) * (hot / q["hot"] + (1 - hot) / q["dram"])
    o = q["over"]; rest = move ** o + (c.f / q["power"]) ** o
    t = ((waves * each) ** o + rest[:, None]) ** (1 / o) + c.split * q["join"] + c.parts / q["hot"] + c.bad
    t = q["launch"] + t.min(1)
    if c.fp8: t = t + c.k * q["cast_step"] + c.m * np.maximum(q["cast_row"], c.k * q["cast_element"])
    return t
def starts(g, size):
    sms, l2, dram, p16, p8 = SHEET[g]; peak = p16 if size == 2 else p8
    for soft, over, step in ((.3, 3., .005), (.8, 4., .02), (.05, 2.5, .001)):
        q = dict(launch=2., rate=peak * 1.1 / sms, feed=p16 * .8 / sms / 85, step=step, tile=.5, store=3e-5, soft=soft, l2=l2, copies=6., hot=2 * dram, dram=.88 * dram, over=over, join=2., power=.85 * peak)
        if size == 1: q.update(launch=4., cast_row=.005, cast_element=3 / dram, cast_step=1e-4)
        yield q
def limits(g, size):
    sms, l2, dram, p16, p8 = SHEET[g]; peak = p16 if size == 2 else p8
    return (dict(l2=l2 / 3, hot=dram, dram=.5 * dram, rate=peak * .5 / sms, feed=p16 * .1 / sms / 85, tile=.02, store=1e-6, step=1e-5, over=1.5, soft=.01, copies=1., power=.3 * peak, join=.3, launch=.5, cast_row=1e-5, cast_element=1e-8, cast_step=1e-7),
            dict(l2=2 * l2, hot=6 * dram, dram=1.05 * dram, rate=peak * 1.5 / sms, soft=1., copies=16., over=10., power=1.1 * peak, feed=p16 * 6 / sms / 85, join=10, launch=12.))
def objective(pred, y): return float(np.mean(np.minimum(np.abs(np.log(pred / y)), .5)))
def fit(d, g, size, rows=1500):
    sub = d.sample(min(rows, len(d)), random_state=1); c = Cases(sub.m, sub.n, sub.k, SHEET[g][0], size); y = sub[g].values
    lo, hi = limits(g, size); best = None
    for q0 in starts(g, size):
        r = pattern_search(lambda q: objective(law(c, q), y), q0, lo, hi)
        if best is None or r[1] < best[1]: best = r
    return best[0]
def predict(d, g, size, q): return np.concatenate([law(Cases(x.m, x.n, x.k, SHEET[g][0], size), q) for x in np.array_split(d, max(1, len(d) // 3000))]) if False else np.concatenate([law(Cases(d.m.values[i:i+3000], d.n.values[i:i+3000], d.k.values[i:i+3000], SHEET[g][0], size), q) for i in range(0, len(d), 3000)])
BANDS = [0, 5, 10, 30, 100, 1000, 1e9]
def bands(p, y): return " ".join("<%g:%.1f" % (b, errors(p[s], y[s])[0]) for a, b in zip(BANDS, BANDS[1:]) for s in [(y >= a) & (y < b)] if s.sum() > 20)
if __name__ == "__main__":
    out = {}
    for name, size in (("bf16", 2), ("fp8", 1)):
        d = table("aic_gemm_%s_us" % name); h = held(d, ["m", "n", "k"])
        for g in SHEET:
            if g not in d or (len(sys.argv) > 1 and g not in sys.argv[1:]): continue
            t0 = time.time(); ok = d[g].notna().values; tr, te = d[ok & ~h], d[ok & h]
            q = fit(tr, g, size); t1 = time.time()
            ltr, lte = predict(tr, g, size, q), predict(te, g, size, q)
            R = Residuals([d.m, d.n, d.k]).fit([tr.m, tr.n, tr.k], np.log(tr[g].values / ltr)); ptr = ltr * np.exp(R([tr.m, tr.n, tr.k])); pte = lte * np.exp(R([te.m, te.n, te.k]))
            print("%s %s rows %d+%d | law train %.2f %.2f held %.2f %.2f | with table train %.2f %.2f held %.2f %.2f | %d s" % ((name, g, len(tr), len(te)) + errors(ltr, tr[g].values) + errors(lte, te[g].values) + errors(ptr, tr[g].values) + errors(pte, te[g].values) + (t1 - t0,)))
            print("   held by us:", bands(pte, te[g].values)); print("  ", {a: float("%.4g" % b) for a, b in q.items()}, R.lengths, R.leak, R.ridge, flush=True)
            out[name + "/" + g] = q
    json.dump(out, open("products_%s.json" % ("all" if len(sys.argv) < 2 else sys.argv[1]), "w"), indent=1)
