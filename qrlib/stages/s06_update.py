"""Stage 6, the update in one launch, W = V^T C, Z = T^T W, C -= V Z, and panels in panels. Triton.

A wide panel is factored as narrow ones that update only its own rest, and two wide panels make one
update: what lies to their right is read for every 128 columns and not for every 16. Products go to
tensor cores, their precision named. Where a batch is too small to fill the chip the rows are shared
out, and W is summed on the way.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from qrlib import tiles
from qrlib.compact import QR
from qrlib.scaling import cdiv, next_power_of_2, scaled, unscale
from qrlib.stages import s05_panel
from qrlib.streams import Branch

# columns of a wide and a narrow panel
NB, N0 = 64, 16
# (rows, columns of a tile, warps, stages of the pipeline) of an update by one narrow panel, one
# wide one and two, measured on one H200, 2026-11-29, Triton 3.6, with 640 matrices of 512. Chosen
# by hand; again: change one, and time it by
# python -m qrlib.bench --case 3 --stage s06_update --compare none --replay
TABLE = {1: (64, 64, 4, 3), 4: (64, 64, 4, 3), 8: (64, 64, 4, 2)}
# of the first pass over the rows, V^T C, which needs memory for C too: (rows of a tile, stages), in
# the same way
FIRST = {1: (64, 3), 4: (32, 6), 8: (32, 4)}
# of the small products with T, which may be larger than 1: no float16. In "ieee" a product of
# 64 x 64 tiles is 2,000 multiply-adds a thread, and their registers spill
SMALL = tl.constexpr("tf32x3")
# of fewer matrices the next panels go beside the rest of the update; chosen by hand on one H200,
# 2026-11-30, Triton 3.6, and to be timed by --case 4 5 6 --stage s08_cholesky
AHEAD = 32


@triton.jit
def _load(ptr, i, c, m, n, stride):
    return tl.load(ptr + i * stride + c, mask=(i < m) & (c < n), other=0.0)


@triton.jit
def inner_products(
    V_ptr, C_ptr, c, m, n, nb, lo, stride_vm, stride_cm,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr = None,
):  # fmt: skip
    """V^T C over m rows, for columns c of C; for two panels side by side, if TWO. [NB, BC] each"""
    i, k = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
    # where there are two, only the second may be narrower
    nb1 = NB if TWO else nb
    W, X = tl.zeros([NB, BC], tl.float32), tl.zeros([NB, BC], tl.float32)
    for r0 in tl.range(0, m, BR, num_stages=STAGES):
        c1, c2 = tiles.parts(_load(C_ptr, i, c, m - r0, n, stride_cm), PRECISION)  # [BR, BC]
        v1, v2 = factor_tile(V_ptr, lo, i, k, m - r0, nb1, stride_vm, PRECISION)  # [BR, NB]
        W = tiles.product(tl.trans(v1), tl.trans(v2), c1, c2, W, PRECISION)
        if TWO:
            v1, v2 = factor_tile(V_ptr + NB, lo, i, k, m - r0, nb, stride_vm, PRECISION)
            X = tiles.product(tl.trans(v1), tl.trans(v2), c1, c2, X, PRECISION)
        # the pointers walk, so that offsets stay small where a matrix is larger than 2^31
        V_ptr += BR * stride_vm
        C_ptr += BR * stride_cm
    return tiles.whole(W, PRECISION), tiles.whole(X, PRECISION)


@triton.jit
def factor_tile(ptr, lo, i, k, m, nb, stride, PRECISION: tl.constexpr):
    return tiles.load_factor(ptr + i * stride + k, lo, (i < m) & (k < nb), PRECISION)


@triton.jit
def through_t(T_ptr, G_ptr, W, X, nb, stride_tm, NB: tl.constexpr, TWO: tl.constexpr):
    """T^T W; for two panels T = [[T1, -T1 G^T T2], [0, T2]], with G = V2^T V1, is never formed."""
    k, l = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    T = _load(T_ptr, k, l, NB if TWO else nb, NB if TWO else nb, stride_tm)
    Z = tl.dot(tl.trans(T), W, input_precision=SMALL)
    if TWO:
        X -= tl.dot(tl.load(G_ptr + k * NB + l), Z, input_precision=SMALL)
        T = _load(T_ptr + NB * stride_tm, k, l, nb, nb, stride_tm)
        X = tl.dot(tl.trans(T), X, input_precision=SMALL)
    return Z, X


@triton.jit
def subtract(
    V_ptr, Z, Y, C_ptr, e_ptr, c, m, n, nb, lo, done, stride_vm, stride_cm,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    """C <- C - V Z, and - V2 Y, for m rows. The first `done` rows are R's, and get A's scale."""
    i, k = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
    nb1 = NB if TWO else nb
    # where columns of V are nearly dependent T is large, and so is Z, and a factor is at most 1
    top = tl.max(tl.abs(Z))
    if TWO:
        top = tl.maximum(top, tl.max(tl.abs(Y)))
    e = tl.maximum(tiles.exponent_of(top), 0)
    s = tiles.power_of_two(-e)
    z1, z2 = tiles.parts(Z * s, PRECISION)
    y1, y2 = tiles.parts(Y * s, PRECISION)
    s = tiles.power_of_two(e)
    if e_ptr is not None:
        unscaled = tiles.power_of_two(tl.load(e_ptr + c, mask=c < n, other=0))
    if EARLY:
        early = _load(C_ptr, i, c, m, n, stride_cm)
    for r0 in range(0, m, BR):
        if EARLY:
            # the next ones are on their way while these are in products
            C = early
            early = _load(C_ptr + BR * stride_cm, i, c, m - r0 - BR, n, stride_cm)
        else:
            C = _load(C_ptr, i, c, m - r0, n, stride_cm)
        v1, v2 = factor_tile(V_ptr, lo, i, k, m - r0, nb1, stride_vm, PRECISION)
        D = tiles.product(v1, v2, z1, z2, tl.zeros([BR, BC], tl.float32), PRECISION)
        if TWO:
            v1, v2 = factor_tile(V_ptr + NB, lo, i, k, m - r0, nb, stride_vm, PRECISION)
            D = tiles.product(v1, v2, y1, y2, D, PRECISION)
        C -= tiles.whole(D, PRECISION) * s
        if e_ptr is not None:
            C = tl.where(i < done - r0, C * unscaled, C)
        tl.store(C_ptr + i * stride_cm + c, C, mask=(i < m - r0) & (c < n))
        V_ptr += BR * stride_vm
        C_ptr += BR * stride_cm


@triton.jit
def update_kernel(
    V_ptr, T_ptr, G_ptr, C_ptr, e_ptr, m, n, nb, lo, done,
    stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr, FIRST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """C <- C - V T^T V^T C for BC columns of one matrix: C is read twice and written once."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    V_ptr += b * stride_vb
    C_ptr += b * stride_cb
    if e_ptr is not None:
        e_ptr += b * stride_eb
    W, X = inner_products(
        V_ptr, C_ptr, c, m, n, nb, lo, stride_vm, stride_cm,
        FIRST[0], NB, BC, TWO, PRECISION, FIRST[1],
    )  # fmt: skip
    Z, Y = through_t(T_ptr + b * stride_tb, G_ptr + b * NB * NB, W, X, nb, stride_tm, NB, TWO)
    subtract(
        V_ptr, Z, Y, C_ptr, e_ptr, c, m, n, nb, lo, done, stride_vm, stride_cm,
        BR, NB, BC, TWO, PRECISION, EARLY,
    )  # fmt: skip


@triton.jit
def share_kernel(
    V_ptr, C_ptr, W_ptr, m, n, nb, lo, rows, stride_vb, stride_vm, stride_cb, stride_cm,
    NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """W [B, shares, 1 or 2, NB, n]: each program's share of V^T C, from `rows` rows."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    begin = tl.program_id(2).to(tl.int64) * rows
    W, X = inner_products(
        V_ptr + b * stride_vb + begin * stride_vm, C_ptr + b * stride_cb + begin * stride_cm, c,
        tl.minimum(rows, (m - begin).to(tl.int32)), n, nb, lo, stride_vm, stride_cm,
        FIRST[0], NB, BC, TWO, PRECISION, FIRST[1],
    )  # fmt: skip
    panels = 2 if TWO else 1
    share = (b * tl.num_programs(2) + tl.program_id(2)) * panels
    k = tl.arange(0, NB)[:, None]
    tl.store(W_ptr + (share * NB + k) * n + c, W, mask=c < n)
    if TWO:
        tl.store(W_ptr + ((share + 1) * NB + k) * n + c, X, mask=c < n)


@triton.jit
def sum_shares(W_ptr, b, c, n, shares, which, panels, NB: tl.constexpr, BC: tl.constexpr):
    """W[b, :, which] of W [B, shares, panels, NB, n], summed, for columns c. [NB, BC]"""
    k = tl.arange(0, NB)[:, None]
    W = tl.zeros([NB, BC], tl.float32)
    # so many loads on their way at once as registers are left for
    AT_ONCE: tl.constexpr = 8 if NB * BC <= 1024 else 4
    for first in range(0, shares, AT_ONCE):
        for s in tl.static_range(AT_ONCE):
            share = first + s
            at = (b * shares + share) * panels + which
            inside = (c < n) & (share < shares)
            W += tl.load(W_ptr + (at * NB + k) * n + c, mask=inside, other=0.0)
    return W


@triton.jit
def subtract_kernel(
    V_ptr, T_ptr, G_ptr, W_ptr, C_ptr, e_ptr, m, n, nb, lo, rows, done,
    stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """C <- C - V T^T W for `rows` rows, with W the sum of the shares."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    panels = 2 if TWO else 1
    W = sum_shares(W_ptr, b, c, n, tl.num_programs(2), 0, panels, NB, BC)
    X = W
    if TWO:
        X = sum_shares(W_ptr, b, c, n, tl.num_programs(2), 1, panels, NB, BC)
    Z, Y = through_t(T_ptr + b * stride_tb, G_ptr + b * NB * NB, W, X, nb, stride_tm, NB, TWO)
    begin = tl.program_id(2).to(tl.int64) * rows
    if e_ptr is not None:
        e_ptr += b * stride_eb
    subtract(
        V_ptr + b * stride_vb + begin * stride_vm, Z, Y,
        C_ptr + b * stride_cb + begin * stride_cm, e_ptr, c,
        tl.minimum(rows, (m - begin).to(tl.int32)), n, nb, lo, (done - begin).to(tl.int32),
        stride_vm, stride_cm, BR, NB, BC, TWO, PRECISION,
    )  # fmt: skip


@triton.jit
def gram_kernel(
    V_ptr, F_ptr, W_ptr, m, nb, lo, rows, stride_vb, stride_vm, stride_fb, stride_fm,
    BR: tl.constexpr, NB: tl.constexpr, TWO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """V to its place in F as a factor, and W [B, shares, 1 or 2, NB, NB]: shares of V^T V, and, if
    TWO, of V^T U with the panel U that F begins with."""
    b = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1).to(tl.int64) * rows
    V_ptr += b * stride_vb + begin * stride_vm
    F_ptr += b * stride_fb + begin * stride_fm
    if TWO:
        F_ptr += NB
    m = tl.minimum(rows, (m - begin).to(tl.int32))
    i, k = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
    W, X = tl.zeros([NB, NB], tl.float32), tl.zeros([NB, NB], tl.float32)
    for r0 in range(0, m, BR):
        V = _load(V_ptr, i, k, m - r0, nb, stride_vm)
        tiles.store_factor(F_ptr + i * stride_fm + k, lo, V, (i < m - r0) & (k < nb))
        v1, v2 = tiles.parts(V, PRECISION)
        W = tiles.product(tl.trans(v1), tl.trans(v2), v1, v2, W, PRECISION)
        if TWO:
            u1, u2 = factor_tile(F_ptr - NB, lo, i, k, m - r0, NB, stride_fm, PRECISION)
            X = tiles.product(tl.trans(v1), tl.trans(v2), u1, u2, X, PRECISION)
        V_ptr += BR * stride_vm
        F_ptr += BR * stride_fm
    share = (b * tl.num_programs(1) + tl.program_id(1)) * (2 if TWO else 1)
    r = tl.arange(0, NB)[:, None]
    tl.store(W_ptr + (share * NB + r) * NB + k, tiles.whole(W, PRECISION))
    if TWO:
        tl.store(W_ptr + ((share + 1) * NB + r) * NB + k, tiles.whole(X, PRECISION))


@triton.jit(do_not_specialize=["shares"])
def join_kernel(
    T_ptr, G_ptr, W_ptr, shares, stride_tb, NB: tl.constexpr, N0: tl.constexpr, TWO: tl.constexpr
):  # fmt: skip
    """T of a wide panel from the T of its narrow ones, which stand on its diagonal, and V^T V.

    Two neighbours T1, T2 join to [[T1, -T1 V1^T V2 T2], [0, T2]]. G [B, NB, NB] is V^T U, if TWO.
    """
    b = tl.program_id(0).to(tl.int64)
    r, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    panels = 2 if TWO else 1
    T_ptr += b * stride_tb
    if TWO:
        G = sum_shares(W_ptr, b, c, NB, shares, 1, panels, NB, NB)
        tl.store(G_ptr + (b * NB + r) * NB + c, G)
    # V^T V takes the place of its first share
    G = sum_shares(W_ptr, b, c, NB, shares, 0, panels, NB, NB)
    W_ptr += b * shares * panels * NB * NB
    tl.store(W_ptr + r * NB + c, G)
    # a tile has no parts: they come back from memory, once every thread has stored
    tl.debug_barrier()
    join(T_ptr, W_ptr, NB, N0)
    tl.debug_barrier()
    join(T_ptr, W_ptr, NB, 2 * N0)


@triton.jit
def join(T_ptr, G_ptr, NB: tl.constexpr, h: tl.constexpr):
    k = tl.arange(0, h)
    block = k[:, None] * NB + k[None, :]
    for p in tl.static_range(0, NB, 2 * h):
        right, down = p * NB + p + h, (p + h) * NB + p + h
        T1, T2 = tl.load(T_ptr + p * NB + p + block), tl.load(T_ptr + down + block)
        X = tl.dot(tl.load(G_ptr + right + block), T2, input_precision=SMALL)
        tl.store(T_ptr + right + block, -tl.dot(T1, X, input_precision=SMALL))


def share_out(B, tiles, m, device, least=128, fill=2):
    """How many programs share the rows of a matrix, and rows for each.

    Args:
        tiles: of the columns of a matrix. least: so many rows at least, if there are so many.
        fill: programs for each multiprocessor; with two the chip is full.
    """
    shares = max(1, min(fill * processors(device) // max(1, B * tiles), cdiv(m, least)))
    rows = cdiv(cdiv(m, shares), 64) * 64
    return cdiv(m, rows), rows


def processors(device):
    # the interpreter has one
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _early(device):
    """Whether registers suffice to load a tile of C before its turn: not on sm_100a."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def factors(B, m, precision, like):
    """Memory for V: [B, m, 128], or pairs [B, 2, m, 128]; see tiles.store_factor."""
    if precision == "fp16x3":
        return like.new_empty(B, 2, m, 2 * NB, dtype=torch.float16)
    return like.new_empty(B, m, 2 * NB)


def of_factor(V):
    """(lo, strides) of a factor, for kernels."""
    return V.stride(1) if V.ndim == 4 else 0, (V.stride(0), V.stride(-2))


KERNELS = update_kernel, share_kernel, subtract_kernel


def update(
    V, T, C, precision, *, G=None, e=None, done=0, fill=2, kernels=KERNELS, first=(), **constants
):
    """C <- Q^T C in place, by one panel of up to 64 columns or by two.

    Args:
        V: [B, m, nb] or pairs [B, 2, m, nb]; clean. T: [B, nb, nb], or for two panels
            [B, 128, 64], theirs one above the other. G: [B, 64, 64], V2^T V1, if there are two.
        C: [B, m, n], scaled. e: [B, n], the exponents of its scale.
        done: rows that are R's from now on, and get the scale of A, if e is given.
        fill: of share_out.
        kernels: to take instead of the three, with `first` in front of their arguments.
        constants: more of theirs.
    """
    B, m, n = C.shape
    two = V.shape[-1] > NB
    nb = V.shape[-1] - NB if two else V.shape[-1]
    nk = NB if two or nb > N0 else N0
    row = 8 if two else nk // N0
    (BR, BC, warps, stages), pass_1 = TABLE[row], FIRST[row]
    if n <= BC // 2:
        # registers do not suffice to load ahead for these, too
        BC, stages, pass_1 = max(16, next_power_of_2(n)), 1, (BR, 1)
    columns = cdiv(n, BC)
    shares, rows = share_out(B, columns, m, C.device, fill=fill)
    lo, v = of_factor(V)
    t, c = T.stride()[:2], C.stride()[:2]
    shape = {"NB": nk, "BC": BC, "TWO": two, "PRECISION": precision, "num_warps": warps}
    shape |= {"num_stages": stages, **constants}
    # the kernel does not look at it
    G = T if G is None else G
    last = 0 if e is None else e.stride(0)
    if shares == 1:
        kernels[0][(B, columns)](
            *first, V, T, G, C, e, m, n, nb, lo, done, *v, *t, *c, last,
            BR=BR, FIRST=pass_1, EARLY=_early(C.device), **shape,
        )  # fmt: skip
        return
    W = C.new_empty(B, shares, 1 + two, nk, n)
    grid = (B, columns, shares)
    kernels[1][grid](*first, V, C, W, m, n, nb, lo, rows, *v, *c, FIRST=pass_1, **shape)
    kernels[2][grid](
        *first, V, T, G, W, C, e, m, n, nb, lo, rows, done, *v, *t, *c, last, BR=BR, **shape
    )  # fmt: skip


def beside(update, V, T, C, precision, *, e, **options):
    """An update with a program for each multiprocessor at a time: panels find room beside it."""
    BC = TABLE[8][1]
    step = max(1, processors(C.device) // C.shape[0]) * BC
    for c in range(0, C.shape[-1], step):
        part = C[..., c : c + step], precision
        update(V, T, *part, e=e[:, c : c + step], fill=1, **options)


def panel(H, tau, V, T, G, precision, F, branch=None):
    """Factor a panel of up to 64 columns as narrow ones. H: [B, m, b] and tau are overwritten.

    Args:
        V: [B, m, b], zero where narrow panels have not begun, and T [B, 64, 64]: written, the
            block reflector. F: [B, m, b] or pairs: written, V as a factor for updates.
        G: None, or [B, 64, 64] for V^T U, with U the first 64 columns of F; V comes after them.
        branch: for what nothing that follows has to wait for; here, nothing.
    """
    B, m, nb = H.shape
    for p in range(0, nb, N0):
        q = min(p + N0, nb)
        narrow = V[:, p:, p:q], T[:, p:q, p:q]
        s05_panel.launch(H[:, p:, p:q], tau[:, p:q], *narrow)
        if q < nb:
            update(*narrow, H[:, p:, q:], precision)
    two = G is not None
    shares, rows = share_out(B, 1, m, H.device)
    W = H.new_empty(B, shares, 1 + two, NB, NB)
    lo, f = of_factor(F)
    gram_kernel[(B, shares)](
        V, F, W, m, nb, lo, rows, *V.stride()[:2], *f,
        BR=64, NB=NB, TWO=two, PRECISION=precision, num_warps=4,
    )  # fmt: skip
    # the kernel does not look at it
    G = T if G is None else G
    join_kernel[(B,)](T, G, W, shares, T.stride(0), NB=NB, N0=N0, TWO=two, num_warps=4)


class Memory(NamedTuple):
    """V of a panel, and for one or two steps F, G and T of two panels, as `panel` wants them.

    Panels are kept from the first row on, so that what is above their diagonals stays zero.
    """

    V: torch.Tensor
    sets: tuple

    @classmethod
    def of(cls, H, precision, ahead=False):
        """For the factorization of H: [B, m, n]."""
        B, m, _ = H.shape
        V, sets = H.new_empty(B, m, NB), ()
        V[:, :NB] = 0
        for _ in range(2 if ahead else 1):
            F = factors(B, m, precision, H)
            F[..., :NB, NB:] = 0
            sets += ((F, H.new_empty(B, NB, NB), H.new_zeros(B, 2 * NB, NB)),)
        return cls(V, sets)

    def tensors(self):
        return (self.V, *(X for each in self.sets for X in each))


def no_corner(H, tau):
    """False: a panel that nothing follows is a panel like all others."""
    return False


def factor(
    H, e, tau, precision="fp16x3", panel=panel, routed=update, corner=no_corner, memory=None
):
    """H 2^e = Q R in place, and R in the scale of A; see scaling.scaled.

    Args:
        tau: [B, k], written. panel: called as that above, and routed as `update`.
        corner: (H, tau of a panel that no columns follow) -> whether it has factored them.
        memory: a Memory to use, by one factorization at a time; with two sets for look-ahead.
    """
    for _ in halves(H, e, tau, precision, panel, routed, corner, memory):
        pass


def first_columns(H):
    """How many columns `halves` asks for before it yields."""
    return min(2 * NB, *H.shape[1:])


def halves(H, e, tau, precision, panel, routed, corner, memory):
    """`factor`, which yields once: from then on it needs all of H, and the routes of matrices."""
    m, n = H.shape[1:]
    k = min(m, n)
    V, sets = memory or Memory.of(H, precision)
    # what panels of few matrices leave idle is for the update of what is not a panel next
    ahead = len(sets) > 1
    branch = Branch(ahead)
    for step, j in enumerate(range(0, k, 2 * NB)):
        F, G, T = sets[step % len(sets)]
        p, q = min(j + NB, k), min(j + 2 * NB, k)
        Vj, Fj = V[:, : m - j, : p - j], F[..., : m - j, : q - j]
        first = Fj[..., : p - j]
        if p < n or not corner(H[:, j:, j:], tau[:, j:]):
            panel(H[:, j:, j:p], tau[:, j:p], Vj, T[:, :NB], None, precision, first, branch)
        if p < q:
            inner = routed if j or q == n else update
            inner(Fj[..., :NB], T[:, :NB], H[:, j:, p:q], precision, e=e[:, p:q], done=NB)
            Vp = V[:, : m - p, : q - p]
            both = Fj[..., NB:, :]
            if q < n or not corner(H[:, p:, p:], tau[:, p:]):
                panel(H[:, p:, p:q], tau[:, p:q], Vp, T[:, NB:], G, precision, both, branch)
        branch.join()
        if j == 0:
            yield
            # a graph may end here, and its branches with it
            branch = Branch(ahead)
        r = min(q + 2 * NB, n) if ahead else n
        if r < n:
            with branch.fork():
                beside(routed, Fj, T, H[:, j:, r:], precision, G=G, e=e[:, r:], done=q - j)
        if q < n:
            routed(Fj, T, H[:, j:, q:r], precision, G=G, e=e[:, q:r], done=q - j)
    branch.join()
    unscale(H, e, NB)


def geqrf(A, *, precision="fp16x3"):
    """A = Q R by panels of 64, each of four of 16. A: [B, m, n]. Returns QR(H, tau).

    The loop is that of stage 3, two panels at a time, with its buffers made once.

    Args:
        precision: of the products; see tiles.product.
    """
    H, e = scaled(A)
    tau = H.new_empty(A.shape[0], min(A.shape[1:]))
    factor(H, e, tau, precision)
    return QR(H, tau)
