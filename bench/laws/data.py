"""Loading of the published tables; the split by case."""
import gzip, hashlib
import numpy as np, pandas as pd
P = "/work/shared/reference/published/"
GPUS = ["a100", "l40s", "h100", "h200", "b200", "rtxpro6000"]

def table(name): return pd.read_csv(P + name + ".csv.gz", low_memory=False)

def held(frame, columns, salt="47"):
    """True for a fifth of the cases: by the first 4 bytes of sha256 of the case's values, joined by commas."""
    def bucket(row): return int.from_bytes(hashlib.sha256((salt + "," + ",".join(str(x) for x in row)).encode()).digest()[:4], "big") % 5
    return np.array([bucket(row) == 0 for row in frame[columns].itertuples(index=False, name=None)])

def errors(pred, true):
    e = np.abs(pred / true - 1) * 100
    return float(np.median(e)), float(np.mean(e))
