"""The door: checks what comes in, flattens the batch, picks the stage, restores the shape.

Stages and verbs behind it get [B, m, n] of one dtype on one device and check nothing.
"""

from contextlib import contextmanager

import numpy as np

from qrlib.checks import (
    HALF,
    check_matrix,
    check_numbers,
    check_out,
    check_pair,
    check_precision,
    check_same,
    differentiated,
    shape_of,
)
from qrlib.compact import QR, flat, namespace, unpack_r
from qrlib.devices import AXIS
from qrlib.sharding import on_shards
from qrlib.stages import POLICIES, TRITON
from qrlib.stages import stage as _stage

# numbers in a batch of tiny matrices, for a CPU
SMALL = 1 << 16

# of a matrix in a Triton stage, whose tiles may have 16 columns only
COLUMNS = 16 * AXIS


@on_shards
def geqrf(A, *, stage="auto", precision="fp32", out=None):
    """A = Q R in compact form, for every matrix of a batch.

    Args:
        A: [..., m, n], torch tensor or NumPy array, any strides; read. float32 and float64;
            float16 and bfloat16 are factored in float32. A DTensor may be sharded on the batch.
        stage: one of qrlib.STAGES, or "auto", which looks at device, dtype and shape only. On a
            CPU "auto" is LAPACK, called through torch or NumPy; on a GPU it is "s10_blackwell"
            for float32, and "s04_recursive" for float64. A NumPy array takes "auto" or
            "s01_mirror"; stages from "s05_panel" on take float32 on a GPU.
        precision: "fp32", as accurate as LAPACK; "fast", which has the gate of the task to keep and
            uses its slack in stages 9 and 10, for matrices of at least 512 columns that have no
            spikes. Both have float32 in and out.
        out: a pair (H, tau) to write into, of the result's shapes and dtype, sharing no memory
            with A.

    Returns:
        QR(H, tau): [..., m, n], row-major, and [..., min(m, n)], as torch.geqrf. float32 for
            a half-precision A, for rounded they would not be those of an orthogonal Q.

    Raises:
        TypeError: A is no tensor or array, or not of a dtype that the stage takes.
        ValueError: fewer than two dimensions; no numbers ("meta"); unknown stage or precision;
            more than 1,048,560 columns for a Triton stage; a DTensor whose matrices are in parts.
        RuntimeError: the stage's backend is not installed; the stage does not run on A's device;
            A requires a gradient, which only qr and orthogonalize have.
        torch.cuda.OutOfMemoryError: too little memory; the message says how much is needed.

    Cost: 2n^2 (m - n/3) flops a matrix. Accuracy: qrlib.certify. Source: LAPACK xGEQRF.
    """
    check_matrix("A", A, half=True)
    check_numbers("A", A)
    check_precision(precision)
    A = widened(A)
    found = _factored(A, stage, precision)
    return found if out is None else QR(*_written(out, found, A))


@on_shards
def householder_product(H, tau, *, out=None):
    """Q = H_0 H_1 ... H_{k-1}, its first n columns.

    Args:
        H: [..., m, n] with m >= n. tau: [..., k] with k <= n. As geqrf returns them: on a GPU
            no entry of a Householder vector may be larger than 4; theirs are at most 1.
        out: where to write Q, if not None, any strides; it has to share no memory with H and tau.

    Returns:
        Q: [..., m, n] with orthonormal columns; out, if there is one.

    Raises:
        TypeError, ValueError: H and tau that do not belong together, or m < n; out of another
            shape, dtype or device, or in the memory of H or tau. It is never resized.

    Cost: 4mnk - 2(m + n)k^2 + 4k^3/3 flops a matrix. Source: LAPACK xORGQR.
    """
    check_pair(H, tau)
    m, n = H.shape[-2:]
    if m < n:
        raise ValueError(
            f"H must be [..., m, n] with m >= n; got {shape_of(H)}; Q has only m = {m} columns: "
            f"give H[..., :{m}]"
        )
    if out is not None:
        check_out("out", out, H.shape, H=H, tau=tau)
        out[...] = _product(H, tau)
        return out
    return _product(H, tau)


@on_shards
def ormqr(H, tau, C, *, left=True, transpose=False, out=None):
    """Q C, Q^T C, C Q or C Q^T, without forming Q.

    Args:
        H: [..., m, n]. tau: [..., k]. As for householder_product.
        C: [..., m, p] when left, else [..., p, m]; the batch of H; read.
        left: Q stands on the left of C.
        transpose: Q^T in place of Q.
        out: where to write the result, as for householder_product.

    Returns:
        a tensor of C's shape; out, if there is one.

    Raises:
        TypeError, ValueError: H, tau and C that do not belong together; out as for
            householder_product.

    Cost: 4mpk - 2pk^2 flops a matrix. Source: LAPACK xORMQR.
    """
    check_pair(H, tau)
    check_matrix("C", C)
    check_same("H", H, "C", C)
    m = H.shape[-2]
    side, want = (-2, "[..., m, p]") if left else (-1, "[..., p, m]")
    if C.shape[:-2] != H.shape[:-2] or C.shape[side] != m:
        raise ValueError(
            f"C must be {want} with m = {m} and the batch {tuple(H.shape[:-2])} of H; "
            f"got {shape_of(C)}"
        )
    if out is not None:
        check_out("out", out, C.shape, H=H, tau=tau, C=C)
        out[...] = ormqr(H, tau, C, left=left, transpose=transpose)
        return out
    if not left:
        # C Q = (Q^T C^T)^T
        return ormqr(H, tau, C.swapaxes(-1, -2), transpose=not transpose).swapaxes(-1, -2)
    if isinstance(H, np.ndarray):
        by_mirrors = _stage("s01_mirror").ormqr
        return by_mirrors(flat(H), flat(tau, 1), flat(C), transpose=transpose).reshape(C.shape)
    from qrlib import ops

    return ops.ormqr(H, tau, C, transpose)


@on_shards
def qr(A, mode="reduced", *, positive_diag=False, stage="auto", precision="fp32", out=None):
    """A = Q R with Q and R formed.

    Args:
        A: [..., m, n], as for geqrf; of full rank where a derivative is wanted.
        mode: "reduced": Q [..., m, k], R [..., k, n]; "complete": Q [..., m, m], R [..., m, n];
            "r": R [..., k, n] alone; k = min(m, n).
        positive_diag: flip signs so that the diagonal of R is >= 0, which makes the factorization
            of a full-rank A unique.
        stage, precision: as for geqrf.
        out: (Q, R) to write into, or R for mode "r", as for geqrf; float32 for a half-precision A.

    Returns:
        (Q, R), or R for mode "r"; rounded to A's dtype at the end where that is float16 or
        bfloat16. With derivatives in both directions, of any order; those of mode "complete" are
        for m <= n. torch.compile takes .backward(), not torch.func.

    Raises:
        as geqrf, but A may require a gradient; ValueError for an unknown mode; RuntimeError for a
        gradient in mode "complete" with m > n, where Q is not unique.
    """
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"mode must be 'reduced', 'complete' or 'r'; got {mode!r}")
    check_matrix("A", A, gradient=True, half=True)
    return _formed(A, mode, positive_diag, stage, precision, out)


@on_shards
def orthogonalize(A, *, positive_diag=False, stage="auto", precision="fp32"):
    """Q of the reduced A = Q R: an orthonormal basis of the columns of a full-rank A.

    Args:
        A: [..., m, n] with m >= n. positive_diag, stage, precision: as for qr.

    Returns:
        Q: [..., m, n], of A's dtype, with derivatives as qr.

    Raises:
        as geqrf, and ValueError for m < n.
    """
    check_matrix("A", A, gradient=True, half=True)
    if A.shape[-2] < A.shape[-1]:
        raise ValueError(
            f"A must have at least as many rows as columns; got {shape_of(A)}; "
            "for orthonormal rows orthogonalize its transpose"
        )
    return _formed(A, "q", positive_diag, stage, precision)


def _formed(A, mode, positive_diag, stage, precision, out=None):
    """What qr gives for an A that is a matrix; for mode "q" the Q of mode "reduced" alone."""
    check_numbers("A", A)
    check_precision(precision)
    dtype, A = A.dtype, widened(A)
    m, n = A.shape[-2:]
    if isinstance(A, np.ndarray) or not differentiated(A):
        found = form(A, mode, positive_diag, stage, precision)
    elif mode == "complete" and m > n:
        raise RuntimeError(
            f"A requires a gradient, and the last {m - n} columns of Q [..., {m}, {m}] have none: "
            "they are any basis of what the others leave; use mode 'reduced', or A.detach()"
        )
    else:
        from qrlib.gradient import reduced

        Q, R = reduced(A, positive_diag, stage, precision)
        found = {"q": (Q,), "r": (R,)}.get(mode, (Q, R))
    if out is not None:
        found = _written((out,) if mode == "r" else out, found, A)
    elif A.dtype != dtype:
        found = tuple(rounded(X, dtype) for X in found)
    return found if len(found) > 1 else found[0]


def form(A, mode, positive_diag, stage, precision):
    """(Q, R), (R,) for mode "r" or (Q,) for "q", of A [..., m, n], which has been checked."""
    m, n = A.shape[-2:]
    k = min(m, n)
    xp = namespace(A)
    Q = R = None
    if stage == "auto" and mode in ("q", "reduced") and _at_once(A):
        Q, R = (X.contiguous() for X in xp.linalg.qr(A))
        diagonal = xp.diagonal(R, 0, -2, -1)
    else:
        H, tau = _factored(A, stage, precision)
        diagonal = xp.diagonal(H, 0, -2, -1)
        if mode == "complete" and m > k:
            Q = ormqr(H, tau, _columns_of_identity(A, m, m))
        elif mode != "r":
            Q = _product(H[..., :k], tau)
        if mode != "q":
            R = xp.triu(H) if mode == "complete" else unpack_r(H)
    if positive_diag:
        # copysign, for a -0.0 on the diagonal is to become 0.0
        signs = xp.copysign(xp.ones_like(diagonal), diagonal)
        if Q is not None:
            Q[..., :k] *= signs[..., None, :]
        if R is not None:
            R[..., :k, :] *= signs[..., None]
    return {"q": (Q,), "r": (R,)}.get(mode, (Q, R))


def _at_once(A):
    """Whether Q and R of A come by one call of torch.linalg.qr, which makes the same two of LAPACK.

    It spares Python's part, half of the time and more of a tiny matrix, and nothing of a large one.
    """
    if isinstance(A, np.ndarray) or A.device.type != "cpu":
        return False
    from qrlib import ops

    # a size that nobody knows yet is not to be asked about
    return not ops.watched(A) and A.numel() <= SMALL and _in_range(flat(A))


def _written(out, found, A):
    """What was found for A, in the memory of out."""
    if not isinstance(out, tuple | list) or len(out) != len(found):
        raise TypeError(f"out must be a tuple of {len(found)}; got {type(out).__name__}")
    others = {"A": A}
    for i, (X, to) in enumerate(zip(found, out)):
        check_out(f"out[{i}]", to, X.shape, **others)
        others[f"out[{i}]"] = to
    for X, to in zip(found, out):
        to[...] = X
    return tuple(out)


def auto_stage(A):
    """The name of the stage for such an A on a GPU: that which chooses by its shape."""
    return "s04_recursive" if str(A.dtype) == "torch.float64" else "s10_blackwell"


def runs(A, stage):
    """The module of a stage that can take such an A [B, m, n]; an error says why it cannot."""
    module = _stage(stage)
    if isinstance(A, np.ndarray):
        if stage == "s01_mirror":
            return module
        raise TypeError(
            f"stage {stage} takes torch tensors; got a numpy.ndarray; "
            "use torch.from_numpy(A), or stage='s01_mirror'"
        )
    if stage not in TRITON:
        return module
    if str(A.dtype) != "torch.float32":
        raise TypeError(
            f"stage {stage} takes float32; got {A.dtype}; convert it, or use stage='s04_recursive'"
        )
    if A.shape[-1] > COLUMNS:
        raise ValueError(
            f"stage {stage} takes at most {COLUMNS} columns, for a grid has no more tiles of 16; "
            f"got {shape_of(A)}; use stage='s04_recursive'"
        )
    from qrlib import tiles
    from qrlib.jit import interpreted

    if A.device.type != "cuda" and not interpreted(tiles.geqr2):
        raise RuntimeError(
            f"stage {stage} runs on an NVIDIA GPU; got a tensor on {A.device}; use A.cuda() where "
            "there is one, stage='auto', or Triton's interpreter, which is slow: set "
            "TRITON_INTERPRET=1 before qrlib is imported"
        )
    return module


@contextmanager
def refuse(A, stage, module):
    """In here, a GPU that is out of memory says how much the stage needs for such an A."""
    import torch

    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        from qrlib.launches import memory

        needed = memory(module.geqrf, A)
        free, total = torch.cuda.mem_get_info(A.device)
        raise torch.cuda.OutOfMemoryError(
            f"stage {stage} needs {needed / 1e9:.2f} GB beside A for {list(A.shape)}; on "
            f"{A.device} torch and others have left {free / 1e9:.2f} GB of {total / 1e9:.2f} GB; "
            "give it the batch in parts, or free memory that torch holds"
        ) from error


def factor(A, stage, precision):
    """QR of a tensor A [B, m, n] by the stage of that name, in a precision where it has several."""
    if stage == "auto":
        if A.device.type == "cpu":
            return _lapack_torch(A)
        stage = auto_stage(A)
    module = runs(A, stage)
    with refuse(A, stage, module):
        if stage == "s01_mirror":
            return _through_numpy(module, A)
        return module.geqrf(A, policy=precision) if stage in POLICIES else module.geqrf(A)


def widened(A):
    """A, or in float32 what is half as wide."""
    if str(A.dtype).removeprefix("torch.") not in HALF:
        return A
    return A.astype(np.float32) if isinstance(A, np.ndarray) else A.float()


def rounded(X, dtype):
    """X in a dtype of its library."""
    return X.astype(dtype) if isinstance(X, np.ndarray) else X.to(dtype)


def _factored(A, stage, precision):
    """QR of A [..., m, n], which has been checked."""
    if not isinstance(A, np.ndarray):
        from qrlib import ops

        return QR(*ops.geqrf(A, stage, precision))
    H, tau = _lapack_numpy(flat(A)) if stage == "auto" else runs(A, stage).geqrf(flat(A))
    return QR(H.reshape(A.shape), tau.reshape(*A.shape[:-2], min(A.shape[-2:])))


def _product(H, tau):
    """Q of H [..., m, n], m >= n, and tau [..., k], which have been checked."""
    if isinstance(H, np.ndarray):
        return ormqr(H, tau, _columns_of_identity(H, *H.shape[-2:]))
    from qrlib import ops

    return ops.householder_product(H, tau)


def orgqr(H, tau):
    """The first n columns of Q, of tensors H [B, m, n], m >= n, and tau [B, k]."""
    import torch

    if H.device.type == "cpu" and tau.shape[-1]:
        return torch.linalg.householder_product(H, tau).contiguous()
    return _by_blocks(H).orgqr(H, tau)


def apply_q(H, tau, C, transpose):
    """Q C, or Q^T C, of tensors H [B, m, n], tau [B, k] and C [B, m, p]."""
    import torch

    k = tau.shape[-1]
    if H.device.type == "cpu" and k:
        return torch.ormqr(H[..., :k], tau, C, transpose=transpose).contiguous()
    return _by_blocks(H).ormqr(H, tau, C, transpose=transpose)


def _by_blocks(H):
    """The module whose orgqr and ormqr are for such an H."""
    if not H.is_cuda or str(H.dtype) != "torch.float32":
        return _stage("s03_blocked")
    # without Triton it says what is missing
    _stage("s06_update")
    from qrlib import apply

    return apply


def _lapack_numpy(A):
    h, tau = np.linalg.qr(A, mode="raw")
    return QR(np.ascontiguousarray(h.swapaxes(-1, -2)), tau)


def _lapack_torch(A):
    import torch

    from qrlib.householder import headroom, unscale

    if _in_range(A):
        H, tau = torch.geqrf(A)
        return QR(H.contiguous(), tau)
    s = headroom(A)
    # LAPACK alone overflows where a column is near the largest number, though its R would fit
    H, tau = torch.geqrf(s * A)
    return QR(unscale(H.contiguous(), s), tau)


def _in_range(A):
    """Whether `headroom` is surely 1 for all: a small matrix takes a fifth of the time without."""
    import torch

    if not A.numel():
        return False
    limits = torch.finfo(A.dtype)
    low, high = map(float, torch.aminmax(A.abs().amax((1, 2))))
    return low >= 2**25 * limits.tiny and high <= limits.max / (16 * A.shape[1])


def _through_numpy(module, A):
    import torch

    H, tau = module.geqrf(A.cpu().numpy())
    return QR(torch.from_numpy(H).to(A.device), torch.from_numpy(tau).to(A.device))


def _columns_of_identity(A, m, n):
    """[..., m, n] with A's batch, dtype and device, ones on the diagonal."""
    if isinstance(A, np.ndarray):
        identity = np.eye(m, n, dtype=A.dtype)
    else:
        identity = A.new_ones(m).diag()[:, :n]
    return namespace(A).broadcast_to(identity, (*A.shape[:-2], m, n))
