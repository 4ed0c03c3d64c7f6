"""Mistakes in the exercises of chapter 7: an answer that makes it, and words of the message."""

import math

import numpy as np
import torch
import triton.language as tl

from qrlib import model, tiles
from qrlib.stages import s05_panel
from qrlib.tracer import trace


def tile_of(
    m, warps=lambda numbers: max(1, numbers // 2048), rows=lambda m: 1 << (m - 1).bit_length()
):
    BM = rows(m)
    return BM, warps(16 * BM)


def squared(
    A_ptr,
    s_ptr,
    m,
    n,
    stride_b,
    stride_m,
    BR,
    BN,
    *,
    rows=True,
    columns=True,
    program=True,
    axis=0,
    whole=False,
    early=False,
    power=2,
    dense=False,
    outside=0.0,
):
    """The kernel of 7.2 with one thing changed."""
    b = tl.program_id(0) if program else 0
    r, c = tl.arange(0, BR)[:, None], tl.arange(0, BN)[None, :]
    s = tl.zeros([1 if early else BR, BN], tl.float32)
    for r0 in range(0, BR if whole else m, BR):
        i = r0 + r
        inside = ((i < m) | (not rows)) & ((c < n) | (not columns))
        at = A_ptr + b * (m * n if dense else stride_b) + i * (n if dense else stride_m) + c
        a = tl.load(at, mask=inside, other=outside)
        a = a * a if power == 2 else a
        s += tl.sum(a, axis=0, keep_dims=True) if early else a
    s = (
        tl.sum(s, axis=axis, keep_dims=True)
        if axis == 0
        else tl.trans(tl.sum(s, axis=1, keep_dims=True))
    )
    tl.store(s_ptr + b * n + c, s if power != 0.5 else tl.sqrt(s), mask=c < n)


def squared_twice(A_ptr, s_ptr, m, n, stride_b, stride_m, BR, BN):
    squared(A_ptr, s_ptr, m, n, stride_b, stride_m, BR, BN)
    squared(A_ptr, s_ptr, m, n, stride_b, stride_m, BR, BN)


def squares_stored_beyond(A_ptr, s_ptr, m, n, stride_b, stride_m, BR, BN):
    squared(A_ptr, s_ptr, m, n, stride_b, stride_m, BR, BN)
    b, c = tl.program_id(0), tl.arange(0, BN)[None, :]
    tl.store(s_ptr + b * n + c, tl.zeros([1, BN], tl.float32), mask=c >= n)


def mirrored(
    P,
    j,
    BM,
    BN,
    *,
    tail=True,
    left=False,
    head=1.0,
    bare=False,
    sums=1,
    scaled=True,
    put=True,
    flat=False,
    guard=True,
):
    """The mirror of 7.3 with one thing changed."""
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    column = tl.sum(tl.where(c == j, P, 0.0), axis=1, keep_dims=True)
    x = tl.where((i > j) if tail else (i >= j), column, 0.0)
    g = tl.sum(x * P, axis=0, keep_dims=True)
    row = tl.sum(tl.where(i == j, P, 0.0), axis=0, keep_dims=True)
    if sums == 1:
        g, row = tl.reduce((x * P, tl.where(i == j, P, 0.0)), 0, tiles.add_pairs, keep_dims=True)
    alpha, sigma = tiles.at(row, c == j), tiles.at(g, c == j)
    beta, scale, tau = tiles.larfg(alpha, sigma)
    if not guard:
        norm = tl.sqrt(alpha * alpha + sigma)
        beta = tl.where(alpha < 0, norm, -norm)
        scale, tau = 1 / (alpha - beta), (beta - alpha) / beta
    z = g if bare else row + scale * g
    v = tl.where(i == j, head, (scale if scaled else 1.0) * x)
    if sums == 3:
        z = tl.sum(v * P, axis=0, keep_dims=True)
    w = tl.where((c > j) | (left & (c != j)), z, 0.0) * tau
    stored = tl.where(i > j, v if put else 0.0, tl.where(i == j, beta, column))
    z = tl.sum(z, axis=1) if flat else z
    return tl.where(c == j, stored, P - v * w), tau, z


def panel_tiny(t, top=1.0):
    return np.array([[top, top], [0, t], [0, t]], np.float32)


def gains(m, b, *, load=1, store=1, size=1, parts=("panels", "V and T"), over=False, only=None):
    H = torch.ones(1, m, b)
    with trace(H=H) as t:
        s05_panel.panel(H, H.new_empty(1, b))
    total = t.of(only) if only else t.total
    moved = (load * total.load.bytes + store * total.store.bytes) / size
    third = sum(model.plan("s03_blocked", 1, m, b, nb=b).traffic[part] for part in parts)
    return moved / third if over else third / moved


WRONG = {
    "7.1": {
        "as many rows as the panel": (
            lambda m: tile_of(m, rows=lambda m: m),
            "wants a power of two",
        ),
        "the power below": (
            lambda m: tile_of(m, rows=lambda m: 1 << (m.bit_length() - 1)),
            "must hold all rows",
        ),
        "a warp for a thread": (
            lambda m: tile_of(m, lambda numbers: max(1, numbers // 64)),
            "A warp is 32 threads",
        ),
        "one column": (
            lambda m: tile_of(m, lambda numbers: max(1, numbers / 16 / 2048)),
            "expected 4",
        ),
        "bytes": (
            lambda m: tile_of(m, lambda numbers: max(1, 4 * numbers // 2048)),
            "count numbers, not bytes",
        ),
        "all 255": (
            lambda m: tile_of(m, lambda numbers: max(1, numbers // 4096)),
            "not 255",
        ),
        "half a warp": (
            lambda m: tile_of(m, lambda numbers: numbers / 2048),
            "Half a warp is none",
        ),
        "the rows only": (lambda m: tile_of(m)[0], "2 things, BM, warps"),
    },
    "7.2": {
        "no mask for rows": (lambda *g: squared(*g, rows=False), "out of bounds"),
        "no mask for columns": (lambda *g: squared(*g, columns=False), "load of A_ptr[0, 3, 0]"),
        "ones outside": (lambda *g: squared(*g, outside=1.0), "beyond the matrix must add nothing"),
        "one program's matrix": (lambda *g: squared(*g, program=False), "says which matrix is"),
        "sums over a row": (lambda *g: squared(*g, axis=1), "axis 0 are the rows of a tile"),
        "no squares": (lambda *g: squared(*g, power=1), "without squares"),
        "one slice": (lambda *g: squared(*g, whole=True), "Slice after slice"),
        "contiguous only": (lambda *g: squared(*g, dense=True), "stride_m to the next row"),
        "a sum a slice": (lambda *g: squared(*g, early=True), "for 5 slices; once is enough"),
        "all of it twice": (squared_twice, "It loads 320 elements; the matrix has 160"),
        "a store beyond": (squares_stored_beyond, "out of bounds"),
        "nothing stored": (lambda *g: None, "It stores nothing"),
        "a name unknown": (lambda *g: tl.nothing, "AttributeError"),
    },
    "7.3": {
        "row j in x": (lambda *g: mirrored(*g, tail=False), "is row j in your x?"),
        "g for z": (lambda *g: mirrored(*g, bare=True), "That is g"),
        "left columns too": (
            lambda *g: mirrored(*g, left=True),
            "later mirrors leave it",
        ),
        "no scale": (lambda *g: mirrored(*g, scaled=False), "the tail of v, scale x"),
        "no head": (lambda *g: mirrored(*g, head=0.0), "P - v (tau z)"),
        "v not stored": (lambda *g: mirrored(*g, put=False), "the tail of v, scale x"),
        "two sums": (lambda *g: mirrored(*g, sums=2), "sums over the rows 2 times a mirror"),
        "three sums": (lambda *g: mirrored(*g, sums=3), "times a mirror"),
        "no guard": (lambda *g: mirrored(*g, guard=False), "larfg gives beta = alpha"),
        "a vector": (lambda *g: mirrored(*g, flat=True), "z must be a tile [1, 2]; got [1]"),
        "NumPy": (lambda P, j, BM, BN: (np.zeros((BM, BN)), 0, 0), "P must be a tile; got ndarray"),
    },
    "7.4": {
        "not scaled": ((panel_tiny(1e-22, 1e-3), -50), "who loads the panel would scale that"),
        "ordinary": ((panel_tiny(0.5), -50), "geqr2_without_tiny passes on this P"),
        "a power of two": ((panel_tiny(2.0**-74), -50), "has no digits to lose"),
        "squares that vanish": ((panel_tiny(1e-30), -50), "sigma == 0 is caught"),
        "the square": ((panel_tiny(1e-22), -100), "Which numbers have such squares?"),
        "a large one": ((panel_tiny(1e-22), 50), "what is dropped is small"),
        "float64": ((panel_tiny(1e-22).astype(float), -50), "must be a float32 NumPy array"),
        "NaN": ((panel_tiny(math.nan), -50), "must fail on ordinary numbers"),
        "the panel only": (panel_tiny(1e-22), "2 things, P, e"),
    },
    "7.5": {
        "upside down": (lambda m, b: gains(m, b, over=True), "the other way round"),
        "loads only": (lambda m, b: gains(m, b, store=0), "Stores are bytes too"),
        "stores only": (lambda m, b: gains(m, b, load=0), "Loads are bytes too"),
        "elements": (lambda m, b: gains(m, b, size=4), "a float32 has four bytes"),
        "no V and T": (lambda m, b: gains(m, b, parts=("panels",)), "moves V and T as well"),
        "H only": (lambda m, b: gains(m, b, only="H"), "V, T and tau leave the chip too"),
        "by eye": (lambda m, b: 28, "counted, it is"),
        "infinity": (lambda m, b: math.inf, "it gives inf"),
    },
}
