"""Collectives: one law for a group of rows (machine, collective), table of residuals over bytes, processes, campaign."""
from data import *
from solver import pattern_search
from residual import Residuals
import time
def share(op, n):
    op = np.array([str(x) for x in op]); return np.where(np.char.find(op, "reduce_scatter") >= 0, (n - 1) / n, np.where(np.char.find(op, "all_reduce") >= 0, 2 * (n - 1) / n, np.where(np.char.find(op, "send") >= 0, 1., (n - 1) / n)))
def law(B, n, w, q):
    """three protocols: LL (low latency), LL128, Simple: start + hop (n-1) + wire bytes / rate; the fastest, smoothly; ramp: pipeline fill ~ sqrt(bytes)"""
    W = B * w; l = q["base"] + q["hop"] * (n - 1)
    a = l + W / q["ll"]
    b = l + q["more1"] + q["hop1"] * (n - 1) + W / q["ll128"]
    c = l + q["more2"] + q["hop2"] * (n - 1) + W / q["simple"] + q["fill"] * np.sqrt(W / 1e6)
    two = np.where(n == 2, q["pair"], 1.)   # rate of 2 processes relative to more
    s = 8.; m = (a ** -s + b ** -s + (l + (c - l) / two) ** -s) ** (-1 / s)
    return m
def fit(B, n, w, y):
    big = y >= np.quantile(y, .8); peak = float(np.quantile((B * w / y)[big], .95)); lo = float(np.quantile(y, .03))
    best = None
    for f in (1., .4):
        q0 = dict(base=lo * .7, hop=lo * .1, ll=peak * .1, more1=lo * .3, hop1=lo * .05, ll128=peak * .5, more2=lo * f, hop2=lo * .1, simple=peak * 1.1, fill=lo * .2, pair=1.)
        r = pattern_search(lambda q: float(np.mean(np.minimum(np.abs(np.log(law(B, n, w, q) / y)), .7))), q0, {k: (v / 100 if k != "pair" else .3) for k, v in q0.items()}, {k: (v * 100 if k != "pair" else 3.) for k, v in q0.items()})
        if best is None or r[1] < best[1]: best = r
    return best[0]
def run(name, d, group, B, n, y, op, extra, case):
    d = d.copy(); d["_B"], d["_n"], d["_y"] = B(d), d[n].astype(float), d[y]; d["_op"] = d[op] if op in d else op
    h = held(d, case); L = np.zeros(len(d)); T = np.zeros(len(d)); size = 0; params = {}
    codes = [pd.factorize(d[e])[0] for e in extra]; codes = [2. ** (c * 1.) for c in codes]
    for key, ix in d.groupby(group).indices.items():
        s = d.iloc[ix]; tr = ~h[ix]
        Bv, nv, yv, w = s._B.values, s._n.values, s._y.values, share(s._op.values, s._n.values)
        if tr.sum() < 8: continue
        q = fit(Bv[tr], nv[tr], w[tr], yv[tr]); l = law(Bv, nv, w, q); L[ix] = l; params[str(key)] = {a: float("%.3g" % b) for a, b in q.items()}
        cols = [Bv, nv] + [c[ix] for c in codes]
        R = Residuals(cols).fit([c[tr] for c in cols], np.log(yv[tr] / l[tr])); size += R.bytes(); T[ix] = l * np.exp(R(cols))
    ok = L > 0; yv = d._y.values
    def rep(tag, m):
        if m.sum() > 5: print("  %-34s rows %d+%d law train %.1f/%.1f held %.1f/%.1f | table train %.1f/%.1f held %.1f/%.1f" % ((tag, (m & ~h).sum(), (m & h).sum()) + errors(L[m & ~h], yv[m & ~h]) + errors(L[m & h], yv[m & h]) + errors(T[m & ~h], yv[m & ~h]) + errors(T[m & h], yv[m & h])), flush=True)
    print(name, "table bytes in all", size); rep("all", ok)
    for g in d[group[0]].unique(): rep(str(g), ok & (d[group[0]] == g).values)
    if len(group) > 1:
        for g in d[group[1]].unique(): rep(str(g), ok & (d[group[1]] == g).values)
    for a, b in ((0, 1e5), (1e5, 1e6), (1e6, 64e6), (64e6, 1e12)): rep("bytes %g to %g" % (a, b), ok & (d._B >= a).values & (d._B < b).values)
    return params
if __name__ == "__main__":
    import json; P = {}
    n = table("aic_nccl"); n["bytes"] = n.message_size * np.where(n.nccl_dtype == "half", 2, 1)
    P["nccl"] = run("aic_nccl", n, ["gpu", "op_name"], lambda d: d.bytes, "num_gpus", "latency_us", "op_name", ["nccl"], ["gpu", "op_name", "num_gpus", "bytes"])
    c = table("aic_custom_allreduce"); c["bytes"] = c.message_size * 2.
    P["custom"] = run("aic_custom_allreduce", c, ["gpu", "kernel_source"], lambda d: d.bytes, "num_gpus", "latency_us", "all_reduce", ["version"], ["gpu", "kernel_source", "num_gpus", "message_size"])
    v = table("vidur_collectives"); v["g"] = v.collective + "/" + v.devices_per_node.astype(str)
    v = v[v["size"] > 0]; P["vidur"] = run("vidur", v, ["node", "g"], lambda d: d["size"].astype(float), "num_workers", "median_us", "collective", [], ["node", "g", "num_workers", "size"])
    a = table("aceso_collectives"); a["us"] = a.ms * 1e3; a = a[(a.mb > 0) & (a.us > 0) & (a.ms < 1e6)]; a["mbr"] = a.mb.round(3)
    P["aceso"] = run("aceso", a, ["gpu_set", "collective"], lambda d: d.mb * 2. ** 20, "gpus", "us", "collective", ["model"], ["gpu_set", "collective", "gpus", "mbr"])
    json.dump(P, open("collectives.json", "w"), indent=1)
