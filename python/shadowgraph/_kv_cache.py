"""Sizes of a KV cache as functions of the number of tokens, measured on the tensors that a model caches."""

import math
import re
from typing import Any, NamedTuple

import torch

from . import _shadowgraph as _C


class Term(NamedTuple):
    """Cache of a layer per request: CacheLayer in shadowgraph/plan/serving.h."""

    token_bytes: int  # per entry
    window: int = 0  # maximum number of cached tokens; 0: unlimited
    state_bytes: int = 0  # independent of the length
    stride: int = 1  # tokens per entry
    pending: bool = False  # caches only the tokens after the last full stride


class _Cached(NamedTuple):
    shape: tuple[int, ...]
    itemsize: int
    window: int  # sliding window of its layer; 0: none


class _Growth(NamedTuple):
    """Size of a dimension: offset + min(tokens, window) // stride, or tokens % stride."""

    stride: int = 1
    window: int = 0
    pending: bool = False
    offset: int = 0

    def at(self, tokens):
        if self.pending:
            return tokens % self.stride
        return self.offset + (min(tokens, self.window) if self.window else tokens) // self.stride


def terms_of(run, context, longest, latent=0):
    """Returns the terms of the cache, one or more per layer; the first ones are those of attention, in its order.

    run: a function that returns the output of the model for a number of tokens.
    context: tokens per request; longest: maximum number of tokens of the model.
    latent: bytes per token and layer of multi-head latent attention, if the model caches what it computes from them.

    Raises Error for a tensor whose size is not constant, proportional to the tokens, or limited by a window.
    """
    measured: dict[int, dict[tuple, _Cached]] = {}

    def measure(tokens):
        if tokens not in measured:
            measured[tokens] = _cached_tensors(run(tokens))
        return measured[tokens]

    # States do not grow; long runs of recurrent layers are slow, because transformers runs one token after another.
    short = [measure(tokens) for tokens in (2, 4, min(67, longest))]
    shapes = [{path: cached.shape for path, cached in each.items()} for each in short]
    if shapes[0] != shapes[1] or shapes[1] != shapes[2] or any(0 in shape for shape in shapes[2].values()):
        most = max(context, min(1024, longest))
        for tokens in (most * 2 // 3 | 1, most):
            measure(tokens)
        check = most // 2 + 3
    else:
        check = 3
    last = measure(max(measured))
    sizes = {path: _growth(path, measure, measured) for path in last}
    for path, found in measure(check).items():
        dimension, growth = sizes.get(path, (None, None))
        if growth is None or (dimension is not None and found.shape[dimension] != growth.at(check)):
            raise _unknown(path, measured)
    return _terms(last, sizes, max(measured), latent)


def _terms(last, sizes, longest, latent):
    first: dict[object, Term] = {}
    others: dict[tuple, Term] = {}
    for path, cached in last.items():
        layer = next((part for part in path if isinstance(part, int)), path)
        dimension, growth = sizes[path]
        each = cached.itemsize * math.prod(size for i, size in enumerate(cached.shape) if i != dimension)
        main = first.get(layer, Term(0))
        if dimension is None:
            first[layer] = main._replace(state_bytes=main.state_bytes + each)
            continue
        window = growth.window
        # A layer may keep one token less than its window, because the next token is part of it.
        if growth.stride == 1 and cached.window and (cached.window > longest or window + 1 == cached.window):
            window = cached.window
        state = main.state_bytes + max(0, growth.offset) * each
        if growth.stride == 1 and not growth.pending and _is_attention(path):
            first[layer] = Term(main.token_bytes + each, window, state)
        else:
            first[layer] = main._replace(state_bytes=state)
            key = (layer, window, growth.stride, growth.pending)
            before = others.get(key, Term(0, window, 0, growth.stride, growth.pending))
            others[key] = before._replace(token_bytes=before.token_bytes + each)
    most = latent or 1 << 60
    return [*(term._replace(token_bytes=min(term.token_bytes, most)) for term in first.values()), *others.values()]


def _is_attention(path):
    """Returns True for keys and values, by the names of transformers, or in tuples (keys, values)."""
    name = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
    return re.fullmatch(r"(key|value)s?(_cache|_states)?|", name) is not None


def _growth(path, measure, measured):
    """Returns (dimension that grows or None, how it grows)."""
    shapes = {tokens: each[path].shape for tokens, each in measured.items() if path in each}
    ranks = {len(shape) for shape in shapes.values()}
    changing = [i for i in range(min(ranks)) if len({shape[i] for shape in shapes.values()}) > 1]
    if not changing and len(ranks) == 1:
        return None, _Growth()
    if len(changing) != 1 or len(ranks) > 1:
        raise _unknown(path, measured)
    dimension = changing[0]
    while True:
        points = tuple((tokens, each[path].shape[dimension] if path in each else 0)
                       for tokens, each in sorted(measured.items()))  # fmt: skip
        possible = _candidates(points)
        if not possible:
            raise _unknown(path, measured)
        tokens = _distinguishing(possible, points[-1][0])
        if tokens is None or tokens in measured:
            return dimension, possible[0]
        measure(tokens)


def _candidates(points):
    """Returns the functions that have the given values [(tokens, size)], in ascending order of tokens."""
    tokens, size = points[-1]
    possible = [_Growth(offset=size - tokens), _Growth(window=size)]
    if size > 0:
        possible += [_Growth(stride) for stride in range(max(2, tokens // (size + 1) + 1), tokens // size + 1)]
    possible += [_Growth(stride, pending=True) for stride in range(size + 1, tokens - size + 1)
                 if (tokens - size) % stride == 0]  # fmt: skip
    return [each for each in possible if all(each.at(n) == m for n, m in points)]


def _distinguishing(possible, most):
    """Returns the number of tokens, at most `most`, at which most of the functions differ; None if they do not."""
    if len(possible) == 1:
        return None
    lengths = {each.stride * count - less for each in possible for count in (1, most // each.stride) for less in (0, 1)}
    different = {n: len({each.at(n) for each in possible}) for n in sorted(lengths) if 1 < n <= most}
    best = max(different, key=different.__getitem__, default=None)
    return best if best is not None and different[best] > 1 else None


def _unknown(path, measured):
    name = ".".join(map(str, path))
    said = ", ".join(f"{tuple(each[path].shape)} for {tokens}" for tokens, each in sorted(measured.items())
                     if path in each)  # fmt: skip
    return _C.UnsupportedError(
        f"serve() cannot compute the size of the cache for other lengths: {name} has shape {said} tokens. It supports "
        "tensors that are constant, have an entry per token or per n tokens, or end at a sliding window"
    )


def _cached_tensors(output):
    """Returns {path: _Cached} for the tensors that a model output caches for one sequence."""
    names = ("past_key_values", "cache_params", "state")
    cache = next((getattr(output, name) for name in names if getattr(output, name, None) is not None), None)
    if cache is None:
        raise _C.Error("the model output has no past_key_values; serve() requires a model with a KV cache")
    found: dict[tuple, _Cached] = {}
    _collect(cache, (), 0, found, set())
    return found


def _collect(value: Any, path, window, found, seen):
    if isinstance(value, (torch.nn.Module, type)) or id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        same = (value.untyped_storage()._cdata, value.storage_offset(), value.shape)
        if value.dim() > 1 and same not in seen:
            seen.add(same)
            found[path] = _Cached(tuple(value.shape), value.element_size(), window)
    elif isinstance(value, (dict, list, tuple)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            _collect(each, (*path, key), window, found, seen)
    elif hasattr(value, "__dict__") and not hasattr(value, "to_dict") and not callable(value):
        seen.add(id(value))
        window = (getattr(value, "sliding_window", None) or 0) if getattr(value, "is_sliding", False) is True else 0
        for key, each in vars(value).items():
            _collect(each, path if key == "layers" else (*path, key), window, found, seen)
