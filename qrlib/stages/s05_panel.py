"""Stage 5, the panel stays on the chip: read once, factored, V and T leave with it. Triton.

One program has one matrix, and its panel stays in registers from the first mirror to the last. The
rows of a taller panel are shared out; see `tall`. Loop and update are those of stage 3.
"""

import triton
import triton.language as tl

from qrlib import tall, tiles
from qrlib.scaling import next_power_of_2
from qrlib.stages.s03_blocked import right_looking, update

NB = 16
# rows of a register tile of 16 columns: (warps, unrolled), measured on one H200, 2026-11-29, Triton
# 3.6, with 640 matrices up to 512 rows, 60 of 1024 and 8 of 2048. That 256 rows are a loop, for its
# shorter code, was not timed. Taller panels go in slices
TABLE = {
    64: (1, False),
    128: (2, False),
    256: (4, False),
    512: (4, True),
    1024: (8, True),
    2048: (16, True),
}
# more rows go in slices where all slices are on the chip at once: for 8 panels of 2048 rows that
# was faster on one H200, 2026-11-29, Triton 3.6
ALONE = 1024


@triton.jit
def panel_kernel(
    H_ptr, tau_ptr, V_ptr, T_ptr,
    m, nb,
    stride_hb, stride_hm, stride_vb, stride_vm, stride_tb, stride_tm, stride_taub,
    BM: tl.constexpr, BN: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """H <- compact, tau, V and T of a panel of m <= BM rows and nb <= BN columns, in registers."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BM)[:, None]
    c = tl.arange(0, BN)[None, :]
    inside = (i < m) & (c < nb)
    H_ptrs = H_ptr + b * stride_hb + i * stride_hm + c
    P = tl.load(H_ptrs, mask=inside, other=0.0)  # [BM, BN]
    e = tiles.exponent_of(tl.max(tl.abs(P), axis=0, keep_dims=True))
    P, tau, T = tiles.geqr2(P * tiles.power_of_two(-e), nb, BM, BN, UNROLL)
    tl.store(H_ptrs, tl.where(i <= c, P * tiles.power_of_two(e), P), mask=inside)
    V = tiles.unit_lower(P, i, c)
    tl.store(V_ptr + b * stride_vb + i * stride_vm + c, V, mask=inside)
    tl.store(tau_ptr + b * stride_taub + c, tau, mask=c < nb)
    _store_t(T_ptr + b * stride_tb, stride_tm, T, nb, BN)


@triton.jit
def _store_t(T_ptr, stride, T, nb, BN: tl.constexpr):
    r, c = tl.arange(0, BN)[:, None], tl.arange(0, BN)[None, :]
    tl.store(T_ptr + r * stride + c, T, mask=(r < nb) & (c < nb))


def launch(H, tau, V, T):
    """Factor panels H [B, m, nb] in place; write tau [B, nb], V [B, m, nb] and T [B, nb, nb].

    All may be views, with columns next to each other.
    """
    B, m, nb = H.shape
    strides = (*H.stride()[:2], *V.stride()[:2], *T.stride()[:2], tau.stride(0))
    BM = max(min(TABLE), next_power_of_2(m))
    # its offsets are of 32 bits: those of 64 take twice the registers, for as long as it runs
    fits = BM in TABLE and BM * H.stride(1) < 2**31
    rows = None if fits and m <= ALONE else tall.slice_at_once(B, m, H.device)
    if fits and not rows:
        warps, unroll = TABLE[BM]
        panel_kernel[(B,)](
            H, tau, V, T, m, nb, *strides, BM=BM, BN=NB, UNROLL=unroll, num_warps=warps
        )
        return
    tall.launch(H, tau, V, T, NB, rows)


def panel(H, tau):
    """Factor a panel of at most 16 columns and give its block reflector.

    One launch up to 2048 rows. Beyond, see tall.launch.

    Args:
        H: [B, m, b], a view with unit column stride; overwritten. tau: [B, b], overwritten.

    Returns:
        V: [B, m, b], unit lower trapezoidal. T: [B, b, b], upper triangular.
    """
    B, m, b = H.shape
    V, T = H.new_empty(B, m, b), H.new_empty(B, b, b)
    launch(H, tau, V, T)
    return V, T


def geqrf(A, *, nb=NB):
    """A = Q R by panels of nb <= 16 columns, a launch each. A: [B, m, n]. Returns QR(H, tau)."""
    return right_looking(A, nb, panel, update)
