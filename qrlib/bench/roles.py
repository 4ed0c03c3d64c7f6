"""What each kernel is for, and what it has to do: the table that a profile is read by.

A new kernel is a line in KERNELS. One that has none is named in a profile and stays without a role.
"""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

from qrlib import model
from qrlib.model import Count, gemm, geqr2, larf, larfb, larfg, larft

# "whole": panels and updates in one kernel, or all mirrors of Q; "blocks": V and T of Q's blocks,
# before its updates; "fill": torch writes zeros, or copies
ROLES = ("panel", "blocks", "update", "whole", "scaling", "fill", "other")
# products of pairs are three; as many flops of the second format
PRODUCTS = {
    "ieee": ("fp32", 1),
    "tf32": ("tf32", 1),
    "tf32x3": ("tf32", 3),
    "fp16x3": ("fp16", 3),
    "fp16x2": ("fp16", 2),
    "fp16": ("fp16", 1),
}


class Kernel(NamedTuple):
    """A line of the table.

    role: one of ROLES.
    reads, writes: the tensors that go into a launch and come out of it, by their parameters without
        _ptr, the first of them with the batch in front; each counts once, with the elements of the
        view that it is given.
    flops: the launch's arguments -> {format: Count}, for one matrix of its batch.
    more: the launch's arguments -> elements besides, of a tensor of which it needs a part.
    batch: a tensor with the batch in front, where it needs only parts.
    idle: whether a launch has nothing to do.
    """

    role: str
    reads: str = ""
    writes: str = ""
    flops: Callable = lambda a: {}
    more: Callable = lambda a: 0
    batch: str = ""
    idle: Callable = lambda a: False


def _product(count, precision):
    kind, times = PRODUCTS[precision]
    return {kind: times * count}


def _with(others, products):
    """Operations of both: others are those of the FP32 units."""
    return products | {"fp32": others + products.get("fp32", Count())}


def _panel(a):
    _, m, b = a.H.shape
    return {"fp32": geqr2(m, b) + larft(m, b)}


def _column(a):
    """Mirror j, and column j of T: all launches of a panel together are _panel."""
    _, m, b = a.H.shape
    if a.LAST:
        return {}
    joined = larft(m, a.j + 1).flops - larft(m, a.j).flops if a.j else 0
    return {"fp32": larfg(m - a.j) + larf(m - a.j, b - a.j - 1) + Count(add=joined)}


def _update(a):
    (_, m, n), b = a.C.shape, a.V.shape[-1]
    count = larfb(m, n, min(b, a.NB), dense=True)
    if b > a.NB:
        r = b - a.NB
        count += larfb(m, n, r, dense=True) + gemm(r, n, a.NB) + Count(add=r * n)
    return _product(count, a.PRECISION)


def _share(a):
    (_, m, n), b = a.C.shape, a.V.shape[-1]
    return _product(gemm(b, n, m), a.PRECISION)


def _subtract(a):
    (kind, all_of_it), (share,) = *_update(a).items(), _share(a).values()
    return {kind: all_of_it + -1 * share}


def _flat(role, reads, writes, flops):
    """A line of stage 9, as if every matrix were flat: who is, is decided on the device."""

    def few(a):
        return flops(SimpleNamespace(**vars(a) | {"PRECISION": a.FLAT}))

    return Kernel(role, f"{reads} flat", writes, few, idle=lambda a: a.FLAT is None)


def _gram(a):
    _, m, b = a.V.shape
    return _product(gemm(b, b, m) + (gemm(b, a.NB, m) if a.TWO else Count()), a.PRECISION)


def _join(a):
    halves = (h for h in (a.N0, 2 * a.N0) if h < a.NB)
    # of the products with T; see s06_update.SMALL
    return _product(sum((a.NB // h * gemm(h, h, h) for h in halves), Count()), "tf32x3")


def _whole(a):
    _, m, n = a.A.shape
    k = min(m, n)
    blocks = [(m - j, min(a.BN, k - j), n - min(j + a.BN, k)) for j in range(0, k, a.BN)]
    panels = sum((geqr2(rows, b) + larft(rows, b) for rows, b, _ in blocks), Count())
    updates = sum((larfb(rows, right, b, dense=True) for rows, b, right in blocks), Count())
    return _with(panels, _product(updates, a.PRECISION))


def _whole_in_lanes(a):
    return {"fp32": geqr2(*a.A.shape[1:])}


def _cross(a):
    return _product(gemm(a.nb, a.NB, a.m), a.PRECISION)


def _square(a):
    # of three bfloat16 parts four products tell all; see tiles.gram_of_any
    if a.THIRDS:
        return {"bf16": 4 * model.square(a.m)}
    return _product(model.square(a.m), "tf32x3")


def _eliminate(a):
    return {"fp32": model.eliminate(a.NB) + model.triangular_inverse(a.NB)}


def _vectors(a):
    products = _product(model.vectors(a.m, a.TWO), a.PRECISION)
    if a.PRECISION == "fp16x3":
        # V^T V takes two of its three; see tiles.gram
        products = {"fp16": products["fp16"] + -1 * model.square(a.m)}
    return _with(model.lengths(a.m), products)


def _judge(a):
    others, products, rough = model.judge()
    return _with(others, {"tf32": 3 * products + rough})


def _upper(a):
    """Of a share of a square, what blocks on its diagonal have and what is right of them."""
    return a.shares * a.NB * (a.NB + a.N0) // 2


def _judged(a):
    """V^T V, V^T U of two panels, R, W and L^T."""
    return _upper(a) + (3 + a.TWO * a.shares) * a.NB**2


def _below(a):
    """Entries of V below its diagonal."""
    return a.m * a.k - a.k * (a.k + 1) // 2


def _mirrors(a):
    _, m, n = a.Q.shape
    if a.C is None:
        return {"fp32": model.householder_product(m, n, a.k)}
    return {"fp32": sum((larf(m - j, n) for j in range(a.k)), Count())}


def _one_block(a):
    """T is never formed: what goes through it is a triangular solve."""
    _, m, n = a.Q.shape
    k = a.k
    products = gemm(k, k, m) + gemm(m, n, k) + Count(add=m * n)
    if a.C is not None:
        products += gemm(k, n, m)
    solve = Count(add=n * k * (k - 1) // 2, mul=n * k * (k + 1) // 2)
    return _with(solve, _product(products, a.PRECISION))


def _blocks(a):
    """(columns, those of the block that it joins, first row of both) of each block, in order."""
    starts = range(0, a.k, a.NB)
    steps = list(starts if a.TRANSPOSE else reversed(starts))
    for s, j in enumerate(steps):
        pair = steps[s - s % 2 :][:2]
        widths = [min(a.NB, a.k - each) for each in (j, pair[0])]
        yield widths[0], widths[1] * (s % 2), min(pair)


def _tiles(a):
    """Products of NB^2 numbers of all blocks: V^T V, and V^T U of those that join another."""
    return sum(1 + (joins > 0) for _, joins, _ in _blocks(a))


def _v(a):
    """V in; V as factors, with zeros above and beside it, and shares of products out."""
    factors = sum(a.NB * (a.m - begin) for _, _, begin in _blocks(a))
    return _below(a) + factors + a.W.shape[2] * a.NB**2 * _tiles(a)


def _v_products(a):
    grams = (gemm(b, b + joins, a.m - begin) for b, joins, begin in _blocks(a))
    return _product(sum(grams, Count()), a.PRECISION)


def _t(a):
    """Shares of products in, and T and V^T U out."""
    return (a.shares + 1) * a.NB**2 * _tiles(a)


def _t_inverses(a):
    return {"fp32": sum((model.triangular_inverse(b) for b, _, _ in _blocks(a)), Count())}


def _corners(a):
    """In and out: the upper triangles of the blocks on the diagonal."""
    blocks = [min(a.NB, a.k - j) for j in range(0, a.k, a.NB)]
    return sum(b * (b + 1) for b in blocks)


KERNELS = {
    "scale_kernel": Kernel("scaling", "A", "H e"),
    "unscale_kernel": Kernel("scaling", "e", more=_corners),
    "panel_kernel": Kernel("panel", "H", "H tau V T", _panel),
    "tops_kernel": Kernel("panel", "H", "tops"),
    "column_kernel": Kernel("panel", "H", "H", _column),
    "together_kernel": Kernel("panel", "H", "H tau V T", _panel),
    "gram_kernel": Kernel("panel", "V", "F W", _gram),
    "join_kernel": Kernel("panel", "T W", "T G", _join),
    "update_kernel": Kernel("update", "V T G C e", "C", _update),
    "share_kernel": Kernel("update", "V C", "W", _share),
    "subtract_kernel": Kernel("update", "V T G W C e", "C", _subtract),
    "routed_update_kernel": _flat("update", "V T G C e", "C", _update),
    "routed_share_kernel": _flat("update", "V C", "W", _share),
    "routed_subtract_kernel": _flat("update", "V T G W C e", "C", _subtract),
    # W has room for more than it gets here, see vectors_kernel
    "square_kernel": Kernel("panel", "P", "", _square, lambda a: -(-a.m // a.rows) * a.NB**2),
    # and the top of the panel
    "eliminate_kernel": Kernel("panel", "", "S e ok", _eliminate, lambda a: _upper(a) + a.NB**2),
    # W^-1, and the top of V
    "vectors_kernel": Kernel("panel", "P e", "F W squares", _vectors, lambda a: 2 * a.NB**2),
    "judge_kernel": Kernel("panel", "squares e ok", "tau T G ok", _judge, _judged),
    # as if all panels stood
    "fallback_kernel": Kernel("panel", "ok"),
    # R
    "finish_kernel": Kernel("panel", "e F ok", "H", more=lambda a: a.NB * (a.NB + 1) // 2),
    "whole_kernel": Kernel("whole", "A", "H tau", _whole),
    "tiny_kernel": Kernel("whole", "A", "H tau", lambda a: {"fp32": geqr2(*a.A.shape[1:])}),
    # of C = None these two make the identity themselves
    "mirrors_kernel": Kernel("whole", "tau C", "Q", _mirrors, _below),
    "one_block_kernel": Kernel("whole", "tau C", "Q", _one_block, _below),
    "cross_kernel": Kernel("panel", "F", "G", _cross),
    "blocks_kernel": Kernel("blocks", flops=_v_products, more=_v, batch="H"),
    "factors_kernel": Kernel("blocks", "tau", "", _t_inverses, _t),
}
# those of stage 10 have the names of others, and their columns in Q lanes
IN_LANES = {
    "panel_kernel": Kernel("panel", "H", "H tau F T", _panel),
    "whole_kernel": Kernel("whole", "A", "H tau", _whole_in_lanes),
}
# the stages' own are above; these are patterns in the names of torch's
TORCH = ((r"FillFunctor|Memset|Memcpy|copy_kernel", "fill"),)


def role(name):
    """The role of a kernel by its name; "other" for one that has none."""
    if name in KERNELS:
        return KERNELS[name].role
    return next((found for pattern, found in TORCH if re.search(pattern, name)), "other")


def cost(name, given):
    """(bytes, {format: flops}) that a launch has to move and to do, or (None, None).

    A tensor that a kernel reads is read once and one that it writes is written once, though the
    kernel may do so more often: beyond that a cache can help.

    Args:
        given: {parameter: value} of the launch, tensors and constants.
    """
    kernel = (IN_LANES if "Q" in given else KERNELS).get(name)
    if kernel is None:
        return None, None
    a = SimpleNamespace(**{key.removesuffix("_ptr"): value for key, value in given.items()})
    if kernel.idle(a):
        return 0, {}
    moved = 0
    for names in (kernel.reads, kernel.writes):
        # one that is given in place of another which the kernel does not look at counts once
        views = {id(X): X for X in (getattr(a, each) for each in names.split()) if X is not None}
        moved += sum(X.numel() * X.element_size() for X in views.values())
    first = getattr(a, kernel.batch or (kernel.reads or kernel.writes).split()[0])
    batch = first.shape[0]
    moved += batch * first.element_size() * kernel.more(a)
    return moved, {kind: batch * count.flops for kind, count in kernel.flops(a).items()}
