"""Attention (prefill, decode) and experts: laws, fits, tables. usage: attention.py prefill|decode|moe"""
from products import *
def runner(name, d, case, prepare, law, starts, axes, gpus=SHEET, only=None):
    h = held(d, case); P = {}
    for g in gpus:
        if g not in d or (ONLY and g not in ONLY): continue
        t0 = time.time(); ok = d[g].notna().values; tr, te = d[ok & ~h], d[ok & h]
        if len(tr) < 50: continue
        sub = tr.sample(min(1500, len(tr)), random_state=1); c = prepare(sub, g); y = sub[g].values; best = None
        for q0 in starts(g):
            r = pattern_search(lambda q: objective(law(c, q), y), q0, {k: v / 60 for k, v in q0.items()}, {k: (12. if k == 'over' else 1. if k == 'soft' else v * 60) for k, v in q0.items()})
            if best is None or r[1] < best[1]: best = r
        q = best[0]; ltr, lte = law(prepare(tr, g), q), law(prepare(te, g), q)
        A = [np.asarray(a, float) for a in axes(d[ok], g)]; itr, ite = ~h[ok], h[ok]
        R = Residuals(A, MOST[name]).fit([a[itr] for a in A], np.log(tr[g].values / ltr))
        for ax, mst in zip(range(len(A)), MOST[name] if isinstance(MOST[name], list) else []): pass
        ptr, pte = ltr * np.exp(R([a[itr] for a in A])), lte * np.exp(R([a[ite] for a in A]))
        print("%s %s rows %d+%d | law train %.2f %.2f held %.2f %.2f | with table train %.2f %.2f held %.2f %.2f | table %d bytes | %d s" % ((name, g, len(tr), len(te)) + errors(ltr, tr[g].values) + errors(lte, te[g].values) + errors(ptr, tr[g].values) + errors(pte, te[g].values) + (R.bytes(), time.time() - t0)))
        print("   held by us:", bands(pte, te[g].values)); print("  ", {a: float("%.4g" % b) for a, b in q.items()}, [float("%.3g" % x) for x in R.lengths + R.leak + [R.ridge]], flush=True); P[g] = q
    json.dump(P, open(name + "_".join([""] + ONLY) + ".json", "w"), indent=1)
MOST = {"prefill": [24, 28, 5, 4, 6], "decode": [20, 24, 6, 5, 4], "moe": [29, 10, 12, 8, 3, 3]}
# ---- prefill
class Pre:
    def __init__(s, d, g):
        sms = SHEET[g][0]; s.sms = sms; b, n, H, kv, D, w = (d[c].values.astype(float) for c in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size"))
        w = np.where(w > 0, w, 1e9); s.D = D; Q = K = 128.
        nb = np.ceil(n / Q); wb = np.ceil(w / K) + 1; full = np.minimum(nb, wb)      # key blocks of the longest query block
        s.longest = full; s.total = b * H * np.where(nb <= wb, nb * (nb + 1) / 2, wb * (wb + 1) / 2 + (nb - wb) * wb)
        s.ctas = b * H * nb; s.bytes = b * n * D * 2 * (2 * H + 2 * kv); s.qrows = np.minimum(n, Q) / Q
        s.part = np.minimum(1, n / 128)
def prelaw(c, q):
    blk = np.maximum(2 * 2 * 128 * 128 * c.D / q["rate"], 128 * 128 * c.D / q["feed"]) + 128 * 128 / q["exp"]
    blk = blk * (1 - q["small"] / (1 + q["small"]) * (1 - c.part))
    work = c.total * blk + c.ctas * (q["tile"] + c.D * q["tile_d"])
    alone = c.longest * blk * q["chain"] + q["tile"] + c.D * q["tile_d"]
    hot = 1 / (1 + (c.bytes / q["l2"]) ** 4); move = c.bytes * (hot / q["hot"] + (1 - hot) / q["dram"])
    waves = np.maximum(1, c.ctas / c.sms); ce = np.ceil(waves); eff = np.where(waves > 1, 1 + q["tail"] * (ce / waves - 1), 1)
    o = q["over"]; return q["launch"] + ((work / c.sms * eff) ** o + alone ** o + move ** o + (c.total * 65536 * c.D / q["power"]) ** o) ** (1 / o)
def prestarts(g):
    sms, l2, dram, p, _ = SHEET[g]
    for f in (1., .6): yield dict(launch=8., rate=p * f / sms, feed=p * f / sms / 4, exp=128 * 128 / .3, small=.3, tile=1., tile_d=.005, chain=.6, l2=l2, hot=3 * dram, dram=.85 * dram, tail=.3, over=3., power=p)
# ---- decode. FlashAttention-2 of vLLM splits keys only if heads share keys and there is no window; with a window each head is a block
def FA2(g): return g in ("a100", "l40s", "rtxpro6000")
class Dec:
    def __init__(s, d, g):
        s.sms = SHEET[g][0]; b, H, kv, D, w, st = (d[c].values.astype(float) for c in ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "window_size", "step"))
        ctx = st + 1; ctx = np.where(w > 0, np.minimum(ctx, w), ctx); s.ctx, s.D, s.units, s.g, s.q = ctx, D, b * kv, H / kv, b * H * D; s.bytes = b * kv * ctx * D * 4; s.b = b; s.full = st + 1
        fa2 = FA2(g); s.nosplit = fa2 & ((w > 0) | (H == kv)); s.units = np.where(fa2 & (w > 0), b * H, b * kv)
def declaw(c, q):
    best = None
    for p in (1, 2, 4, 8, 16, 32, 64, 128):
        w = c.units * p / c.sms / q["occ"]; waves = np.where(w <= 1, 1, (1 - q["soft"]) * np.ceil(w) + q["soft"] * w)
        ctx = np.ceil(c.ctx / p / 16) * 16
        each = ctx * c.D * 4 / q["feed"] * (1 + q["group"] * c.g) + q["tile"] + ctx / 64 * q["step"]
        t = waves * each + (q["join"] + p * c.q * q["parts"] if p > 1 else 0)
        t = np.where((p == 1) | ((c.ctx / p >= 32) & ~c.nosplit), t, np.inf); best = t if best is None else np.minimum(best, t)
    hot = 1 / (1 + (c.bytes / q["l2"]) ** 4); move = c.bytes * (hot / q["hot"] + (1 - hot) / q["dram"])
    o = q["over"]; return q["launch"] + (best ** o + move ** o) ** (1 / o) + c.q * q["query"] + c.b * q["row"]
def decstarts(g):
    sms, l2, dram, p, _ = SHEET[g]
    for f in (1., 3.): yield dict(launch=8., occ=1., soft=.5, feed=dram * 2 * f / sms, group=.02, tile=1., step=.02, join=2., parts=1e-6, l2=l2, hot=2.5 * dram, dram=.88 * dram, over=3., query=4 / dram, row=.002)
# ---- experts
class Moe:
    def __init__(s, d, g):
        s.sms = SHEET[g][0]; T, h, f, k, E, tp, ep = (d[c].values.astype(float) for c in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"))
        s.h, s.f, s.T, s.k = h, f / tp, T, k; s.E = np.maximum(1, E / ep); s.pl = d.distribution.map({"balanced": 0., "power_law_1.01": 1.01, "power_law_1.2": 1.2}).values; s.ep = ep
def moelaw(c, q):
    skew = np.where(c.pl > 0, q["skew"], 1.) * np.where(c.pl > 1.1, q["skew2"], 1.)
    pairs = np.minimum(c.T * c.k, np.maximum(1, c.T * c.k / c.ep * np.where(c.ep > 1, np.maximum(1, skew * c.ep ** np.where(c.pl > 0, q["rank"], 0.)), 1)))
    eff = c.E * np.where(c.pl > 0, q["spread"], 1.)
    eff = np.minimum(np.maximum(eff, 1), c.E); active = np.where(c.pl > 0, eff * (1 - (1 - 1 / np.maximum(eff, 1.0001)) ** pairs), np.minimum(c.E, pairs)); active = np.maximum(1, active)
    per = pairs / active; wbytes = active * 3 * c.h * c.f * 2; best = None
    for bm in (16., 32., 64., 128.):
        tm = active * np.maximum(1, np.where(per < 1, 1, np.ceil(per / bm) * .5 + (per / bm + .5) * .5)); t = 0
        for nn, kk in ((2 * c.f, c.h), (c.h, c.f)):
            for bn in (128.,):
                w = tm * np.ceil(nn / bn) / c.sms; waves = np.where(w <= 1, 1, (1 - q["soft"]) * np.ceil(w) + q["soft"] * w)
                t = t + waves * (np.maximum(2 * bm * bn * kk / q["rate"], (bm + bn) * kk * 2 / q["feed"]) + q["tile"] + kk / 32 * q["step"])
        best = t if best is None else np.minimum(best, t)
    move = wbytes / q["dram"]; o = q["over"]
    return q["launch"] + (best ** o + move ** o + (6 * pairs * c.h * c.f / q["power"]) ** o) ** (1 / o) + (pairs * (2 * c.h + 3 * c.f) * 2 + c.T * c.h * 2) / q["stream"] + c.T * q["token"] + c.E * q["expert"]
def moestarts(g):
    sms, l2, dram, p, _ = SHEET[g]
    for f in (1., .5): yield dict(launch=15., rate=p * f / sms, feed=p * f / sms / 70, tile=1., step=.02, soft=.4, dram=.8 * dram, over=3., power=p * .9, stream=dram, token=.002, expert=.01, skew=1.2, skew2=1.05, rank=.1, spread=.6)
if __name__ == "__main__":
    ONLY = [x for x in sys.argv[1:] if x in SHEET]
    np.seterr(all="ignore")
    for what in sys.argv[1:]:
        if what == "prefill":
            d = table("aic_attention_prefill_bf16_us")
            runner(what, d, list(d.columns[:7]), Pre, prelaw, prestarts, lambda x, g: [x.isl, x.batch_size * x.num_heads, x.head_dim, x.window_size.replace({0: 1000000}), x.num_heads / x.num_key_value_heads])
        if what == "decode":
            d = table("aic_attention_decode_bf16_us")
            runner(what, d, list(d.columns[:7]), Dec, declaw, decstarts, lambda x, g: [x.step + 1, np.where((x.window_size > 0) & FA2(g), x.batch_size * x.num_heads, x.batch_size * x.num_key_value_heads), x.num_heads / x.num_key_value_heads, x.head_dim, x.window_size.replace({0: 1000000})])
        if what == "moe":
            d = table("aic_moe_bf16_us")
            runner(what, d, list(d.columns[:8]), Moe, moelaw, moestarts, lambda x, g: [x.num_tokens, x.num_experts / x.moe_ep_size, x.inter_size / x.moe_tp_size, x.hidden_size, x.distribution.map({"balanced": 1, "power_law_1.01": 2, "power_law_1.2": 4}), np.minimum(x.moe_ep_size, 4)])
