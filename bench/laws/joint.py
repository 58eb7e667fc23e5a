"""A GPU left out: one set of ratios fitted jointly on the other five (300 rows each), then multiplied by the left-out card's data sheet."""
from products import *
GEN = dict(a100=.85, l40s=.85, h100=1., h200=1., b200=1., rtxpro6000=.85)
for name, size in (("bf16", 2), ("fp8", 1)):
    d = table("aic_gemm_%s_us" % name); h = held(d, ["m", "n", "k"]); have = [g for g in SHEET if g in d]
    def units(g):
        sms, l2, dram, p16, p8 = SHEET[g]; peak = p16 if size == 2 else p8
        return dict(rate=peak / sms, feed=p16 / sms, l2=l2, hot=dram, dram=dram, power=peak, cast_element=1 / dram, store=1e3 * sms / p16)
    S = {g: d[d[g].notna().values & ~h].sample(300, random_state=3) for g in have}; C = {g: Cases(S[g].m, S[g].n, S[g].k, SHEET[g][0], size) for g in have}
    for g in have:
        tr = [x for x in have if x != g]; q0 = next(iter(starts("h100", size))); u = units("h100"); q0 = {k: v / u.get(k, 1) for k, v in q0.items()}
        f = lambda q: float(np.mean([objective(law(C[x], {k: v * units(x).get(k, 1) for k, v in q.items()}), S[x][x].values) for x in tr]))
        q, l, ev = pattern_search(f, q0, {k: v / 30 for k, v in q0.items()}, {k: (1. if k == "soft" else 12. if k == "over" else v * 30) for k, v in q0.items()}, least=.04)
        te = d[d[g].notna().values & h].sample(1500, random_state=4); p = predict(te, g, size, {k: v * units(g).get(k, 1) for k, v in q.items()})
        print(name, "left out", g, "loss on others %.4f" % l, "held %.1f %.1f" % errors(p, te[g].values), "bias %.3f" % np.median(np.log(te[g].values / p)), {a: float("%.3g" % b) for a, b in q.items()}, flush=True)
