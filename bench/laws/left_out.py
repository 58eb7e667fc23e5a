"""A GPU left out: parameters as ratios to the data sheet; from the other devices' fits; residual tables averaged."""
from products import *
def norm(q, g, size):
    sms, l2, dram, p16, p8 = SHEET[g]; peak = p16 if size == 2 else p8
    u = dict(rate=peak / sms, feed=p16 / sms, l2=l2, hot=dram, dram=dram, power=peak, store=sms/p16*1e6 if False else 1, cast_element=1/dram)
    return {k: v / u.get(k, 1) for k, v in q.items()}, u
P = json.load(open("products_all.json"))
for name, size in (("bf16", 2), ("fp8", 1)):
    d = table("aic_gemm_%s_us" % name); h = held(d, ["m", "n", "k"])
    have = [g for g in SHEET if name + "/" + g in P]; tabs = {}
    for g in have:
        tr = d[d[g].notna().values & ~h].sample(6000, random_state=2)
        tabs[g] = Residuals([d.m, d.n, d.k]).fit([tr.m, tr.n, tr.k], np.log(tr[g].values / predict(tr, g, size, P[name + "/" + g])))
    fam = dict(a100="ampere", l40s="small", rtxpro6000="small", h100="hopper", h200="hopper", b200="blackwell")
    near = dict(a100=["h100", "h200", "l40s"], l40s=["rtxpro6000", "a100"], rtxpro6000=["l40s", "a100"], h100=["h200"], h200=["h100"], b200=["h100", "h200"])
    for g in have:
        te = d[d[g].notna().values & h]; res = []
        for donors in ([x for x in have if x != g], [x for x in near[g] if x in have]):
            qs = [norm(P[name + "/" + x], x, size)[0] for x in donors]; u = norm(P[name + "/" + g], g, size)[1]
            q = {k: float(np.exp(np.median([np.log(a[k]) for a in qs]))) * u.get(k, 1) for k in qs[0]}
            p = predict(te, g, size, q); r = np.mean([tabs[x]([te.m, te.n, te.k]) for x in donors], 0)
            res += ["law %.1f %.1f" % errors(p, te[g].values), "law+mean table %.1f %.1f" % errors(p * np.exp(r), te[g].values)]
        print(name, g, "| all others:", *res[:2], "| nearest", near[g], *res[2:], flush=True)
