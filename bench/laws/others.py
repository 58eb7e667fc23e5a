"""NeuSight float32 operators: linear, bmm (law of products, TF32 off), convolution (as implicit product), vector operators (bytes)."""
import products as pr
from products import *
DEV = dict(v100=(80, 6e6, .9e6, 15.7e6, 0), p100=(56, 4e6, .732e6, 9.5e6, 0), t4=(40, 4e6, .32e6, 8.1e6, 0), a100_pcie40=(108, 40e6, 1.555e6, 19.5e6, 0), a100_pcie80=(108, 40e6, 1.935e6, 19.5e6, 0), l4=(58, 48e6, .3e6, 30.3e6, 0), h100=(132, 50e6, 3.35e6, 66.9e6, 0))
class B(Cases):
    def __init__(self, b, m, n, k, sms):
        super().__init__(m, n, k, sms, 4); b = np.asarray(b, float)
        for a in ("f", "xb", "wb", "yb"): setattr(self, a, getattr(self, a) * b)
        self.yb = self.yb * 2; self.waves = self.waves * b[:, None]; self.ceil = np.maximum(1, np.ceil(self.waves)); self.parts = self.parts * b[:, None]
def go(name, d, g, cases, axes, case):
    h = held(d, case); ok = d[g].notna().values & (d[g] > 0).values; tr, te = d[ok & ~h], d[ok & h]
    if len(tr) < 60: return
    pr.SHEET[g] = DEV[g]; sms = DEV[g][0]; sub = tr.sample(min(1000, len(tr)), random_state=1); c = cases(sub, sms); y = sub[g].values
    best = None
    for q0 in starts(g, 2):
        lo, hi = {k: v / 30 for k, v in q0.items()}, {k: v * 30 for k, v in q0.items()}; hi["soft"] = 1.; hi["over"] = 12.; hi["launch"] = 300.; lo["copies"] = .3
        r = pattern_search(lambda q: objective(law(c, q), y), q0, lo, hi); best = r if best is None or r[1] < best[1] else best
    q = best[0]; ltr, lte = law(cases(tr, sms), q), law(cases(te, sms), q); A = lambda f: [np.asarray(a, float) for a in axes(f)]
    R = Residuals(A(d[ok]), [24] * len(A(te))).fit(A(tr), np.log(tr[g].values / ltr))
    print("%s %s rows %d+%d | law train %.2f %.2f held %.2f %.2f | with table held %.2f %.2f | table %d" % ((name, g, len(tr), len(te)) + errors(ltr, tr[g].values) + errors(lte, te[g].values) + errors(lte * np.exp(R(A(te))), te[g].values) + (R.bytes(),)), flush=True)
if __name__ == "__main__":
    np.seterr(all="ignore")
    d = table("neusight_linear_fp32_us"); e = table("neusight_bmm_fp32_us"); c = table("neusight_conv_fp32_us"); v = table("neusight_vector_fp32_us")
    print(d.OPName.unique(), d.B.unique()[:5], v.OPName.unique())
    # vector: t = launch + max(bytes/rate...) by operator
    opn = list(v.OPName.unique()); h = held(v, ["OPName", "B", "H"])
    for g in v.columns[4:]:
        L = np.full(len(v), np.nan); T = L.copy(); ok = v[g].notna().values & (v[g] > 0).values; size = 0
        for o in opn:
            s = ok & (v.OPName == o).values; tr = s & ~h
            if tr.sum() < 20: continue
            by = (v.B * v.H * 4.).values; rows = v.B.values.astype(float); w = v.H.values.astype(float); y = v[g].values; l2, dr = DEV[g][1], DEV[g][2]
            f = lambda m, q: q["launch"] + ((by[m] * (1 / (1 + (by[m] / q["l2"]) ** 4) / q["hot"] + (1 - 1 / (1 + (by[m] / q["l2"]) ** 4)) / q["dram"])) ** q["over"] + (rows[m] * np.maximum(q["row"], w[m] * q["el"])) ** q["over"]) ** (1 / q["over"]) + w[m] * q["long"]
            q0 = dict(launch=5., l2=l2, hot=dr, dram=dr * .4, over=3., row=.002, el=1 / dr, long=1e-5); tt = np.where(tr)[0]; tt = tt[:: max(1, len(tt) // 1000)]
            q = pattern_search(lambda q: objective(f(tt, q), y[tt]), q0, {k: a / 100 for k, a in q0.items()}, {k: (12. if k == 'over' else a * 100) for k, a in q0.items()})[0]
            m = np.where(s)[0]; L[m] = f(m, q); trm = np.where(tr)[0]; R = Residuals([rows[m], w[m]], [30, 30]).fit([rows[trm], w[trm]], np.log(y[trm] / L[trm])); T[m] = L[m] * np.exp(R([rows[m], w[m]])); size += R.bytes()
        k = ~np.isnan(L); print("vector", g, "rows %d+%d law train %.1f/%.1f held %.1f/%.1f table held %.1f/%.1f bytes %d |" % (((k & ~h).sum(), (k & h).sum()) + errors(L[k & ~h], y[k & ~h]) + errors(L[k & h], y[k & h]) + errors(T[k & h], y[k & h]) + (size,)), " ".join("%s %.1f" % (o, errors(T[z], y[z])[0]) for o in opn for z in [k & h & (v.OPName == o).values] if z.sum() > 3), flush=True)
    for g in DEV:
        if g in d: go("linear", d, g, lambda f, s: B(np.ones(len(f)), f.B * f.M, f.N, f.K, s), lambda f: [f.B * f.M, f.N, f.K], ["B", "M", "N", "K"])
        if g in e: go("bmm", e, g, lambda f, s: B(f.B, f.M, f.N, f.K, s), lambda f: [f.B, f.M, f.N, f.K], ["B", "M", "N", "K"])
        if g in c:
            out = lambda f: (f.Input_Size + 2 * f.Padding - f.Kernel_Szie) // f.Stride + 1
            go("conv", c, g, lambda f, s: B(np.ones(len(f)), f.B * np.maximum(1, out(f)) ** 2, f.Output_Channel, f.Input_Channel * f.Kernel_Szie ** 2, s), lambda f: [f.B * np.maximum(1, out(f)) ** 2, f.Output_Channel, f.Input_Channel, f.Kernel_Szie, f.Stride], list(c.columns[1:9]))
