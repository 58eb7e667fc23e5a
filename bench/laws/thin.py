"""Products' tables with fewer knots of m, from the saved parameters."""
from products import *
P = json.load(open("products_all.json"))
for name, size in (("bf16", 2), ("fp8", 1)):
    d = table("aic_gemm_%s_us" % name); h = held(d, ["m", "n", "k"])
    for g in SHEET:
        if name + "/" + g not in P or g not in ("h100", "b200", "l40s"): continue
        ok = d[g].notna().values; tr, te = d[ok & ~h], d[ok & h]; q = P[name + "/" + g]; a, b = predict(tr, g, size, q), predict(te, g, size, q); line = []
        for most in ([80, 22, 22], [40, 22, 22], [37, 16, 16]):
            R = Residuals([d.m, d.n, d.k], most).fit([tr.m, tr.n, tr.k], np.log(tr[g].values / a)); line.append("%d bytes %.2f %.2f" % ((R.bytes(),) + errors(b * np.exp(R([te.m, te.n, te.k])), te[g].values)))
        print(name, g, "held:", "; ".join(line), flush=True)
