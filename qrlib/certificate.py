"""A certificate for (H, tau): two residuals a matrix, computed in float64, in units of m*eps.

    factor          |R - Q^T A| / (m eps |A|)      is Q R the matrix that was given?
    orthogonality   |Q^T Q - I| / (m eps)          is Q a rotation and reflection, and nothing else?

Norms are the largest column sum (L1), eps is the spacing at 1 of A's dtype (2^-23 for float32),
and Q and R = triu(H) are those the compact form stands for. Neither residual says enough alone:
H = A with tau = 0 is perfectly orthogonal. The task's gate asks for factor <= 20, orthogonality
<= 100 and no NaN or Inf. LAPACK's own test divides by half that eps and asks for 30: 15 here, for
both.

A third number stands beside them, and no gate asks for it:

    columnwise      max_j |r_j - Q^T a_j| / (m eps |a_j|)      is each column right, alone?

It is never below the factor residual. Mirrors leave it small; an answer that skips the columns too
small for the norm of A to see has about 1/(m eps) here. Policy "fp32" promises it, "fast" does not.

Nothing of the code under test is used here; even T comes by another formula than `larft`'s.
"""

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import NamedTuple

import numpy as np

from qrlib.checks import check_matrix, check_pair, check_same
from qrlib.compact import flat, namespace, unpack_v


class Gate(NamedTuple):
    """The largest residuals, in units of m*eps, that pass."""

    factor: float
    orthogonality: float


TASK = Gate(20.0, 100.0)
LAPACK = Gate(15.0, 15.0)


@dataclass(frozen=True)
class Certificate:
    """What `certify` found. `.passed` answers; `print` shows it; a notebook draws it.

    factor, orthogonality, columnwise: float64, one number a matrix (shape: the batch), in units of
        m*eps; inf where H or tau has a NaN or Inf. The gates are for the first two.
    finite: bool, one a matrix. gate: what they are held against. shape: (m, n). dtype: its name.
    """

    factor: np.ndarray
    orthogonality: np.ndarray
    columnwise: np.ndarray
    finite: np.ndarray
    shape: tuple
    dtype: str
    gate: Gate = TASK

    @cached_property
    def each(self):
        """bool, one a matrix: finite and within both gates."""
        within = (self.factor <= self.gate.factor) & (self.orthogonality <= self.gate.orthogonality)
        return self.finite & within

    @property
    def passed(self):
        """True when every matrix of the batch passed."""
        return bool(self.each.all())

    @property
    def worst(self):
        """Index of the matrix nearest to its gates, or furthest beyond; None for an empty batch."""
        if self.factor.size == 0:
            return None
        nearness = np.maximum(
            self.factor / self.gate.factor, self.orthogonality / self.gate.orthogonality
        )
        return tuple(int(i) for i in np.unravel_index(np.argmax(nearness), nearness.shape))

    @property
    def lapack_factor(self):
        """The factor residual in LAPACK's unit, m times the unit roundoff; LAPACK asks for 30."""
        return 2 * self.factor

    @property
    def lapack_orthogonality(self):
        """The orthogonality residual in LAPACK's unit; LAPACK asks for 30."""
        return 2 * self.orthogonality

    def rows(self):
        """(what, formula, worst value, where, gate, passed) for each of the two residuals."""
        for name, formula in (
            ("factor", "|R - Q^T A| / |A|"),
            ("orthogonality", "|Q^T Q - I|"),
        ):
            worst, where = _worst(getattr(self, name))
            gate = getattr(self.gate, name)
            yield name, formula, worst, where, gate, worst <= gate

    def _lines(self):
        """rows() in words, and under them the column-wise residual."""
        for name, formula, worst, where, gate, ok in self.rows():
            yield name, formula, f"{worst:.3g}", where, f"{gate:g}", "ok" if ok else "FAIL"
        worst, where = _worst(self.columnwise)
        yield "columnwise", "max_j |r_j - Q^T a_j| / |a_j|", f"{worst:.3g}", where, "none", ""

    def _title(self):
        m, n = self.shape
        count = self.factor.size
        return f"{count} matri{'x' if count == 1 else 'ces'} {m} x {n}, {self.dtype}"

    def _verdict(self):
        failed = int((~self.each).sum())
        if not failed:
            return "passed"
        bad = int((~self.finite).sum())
        nan = f", {bad} with NaN or Inf in H or tau" if bad else ""
        return f"FAILED: {failed} of {self.factor.size}{nan}; worst is matrix {_index(self.worst)}"

    def __str__(self):
        lines = [f"certificate of {self._title()}; unit m*eps"]
        lines.append(f"  {'':15}{'worst':>9}  {'gate':>5}  {'':4}  matrix")
        for name, formula, worst, where, gate, verdict in self._lines():
            lines.append(f"  {name:15}{worst:>9}  {gate:>5}  {verdict:4}  {where:8}{formula}")
        return "\n".join([*lines, f"  {self._verdict()}"])

    def _repr_html_(self):
        body = "".join(
            f"<tr><th scope='row'>{name}</th><td><code>{escape(formula)}</code></td>"
            f"<td>{worst}</td><td>{gate}</td><td>{where}</td><td>{verdict}</td></tr>"
            for name, formula, worst, where, gate, verdict in self._lines()
        )
        head = "".join(
            f"<th scope='col'>{h}</th>"
            for h in ("residual", "formula", "worst, in m*eps", "gate", "matrix", "verdict")
        )
        return (
            f"<table class='qr-certificate'><caption>Certificate of {escape(self._title())}: "
            f"<strong>{escape(self._verdict())}</strong></caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def _worst(values):
    """The largest value and the index of its matrix in words; 0 and nothing for an empty batch."""
    if values.size == 0:
        return 0.0, ""
    at = np.unravel_index(np.argmax(values), values.shape)
    return float(values[at]), _index(at)


def _index(at):
    return f"[{', '.join(str(int(i)) for i in at)}]"


def certify(A, H, tau, *, gate=TASK):
    """The residuals of (H, tau) as a QR factorization of A, for every matrix of the batch.

    Args:
        A: [..., m, n], what was factored. H: [..., m, n]. tau: [..., min(m, n)]. NumPy or torch;
            computed where A is.
        gate: TASK or LAPACK, or any Gate.

    Returns:
        Certificate.

    Raises:
        TypeError, ValueError: A, H and tau that do not belong together.

    Cost: about 8 m n k flops in float64. Accuracy: for float32 exact to many digits; for float64
    the residuals carry rounding of their own size. Source: LAPACK TESTING/LIN xQRT01; chapter
    "Trust, but certify".
    """
    check_matrix("A", A)
    check_pair(H, tau)
    check_same("A", A, "H", H)
    m, n = A.shape[-2:]
    if H.shape != A.shape or tau.shape[-1] != min(m, n):
        raise ValueError(
            "A and H must have one shape [..., m, n], and tau [..., min(m, n)]; "
            f"got {tuple(A.shape)}, {tuple(H.shape)} and {tuple(tau.shape)}"
        )
    if not isinstance(gate, tuple) or len(gate) != 2:
        raise TypeError(
            "gate must be certificate.TASK, certificate.LAPACK or Gate(factor, orthogonality); "
            f"got {gate!r}"
        )
    eps = np.finfo(str(A.dtype).removeprefix("torch.")).eps
    factor, orthogonality, columnwise, finite = residuals(flat(A), flat(H), flat(tau, 1))
    batch = tuple(A.shape[:-2])
    unit = max(m, 1) * eps

    def in_units(x):
        return (_numpy(x) / unit).reshape(batch)

    return Certificate(
        factor=in_units(factor),
        orthogonality=in_units(orthogonality),
        columnwise=in_units(columnwise),
        finite=_numpy(finite).reshape(batch),
        shape=(m, n),
        dtype=str(A.dtype).removeprefix("torch."),
        gate=Gate(*gate),
    )


def residuals(A, H, tau):
    """|R - Q^T A| / |A|, |Q^T Q - I|, max_j |r_j - Q^T a_j| / |a_j| in float64; are all finite?

    Args:
        A, H: [B, m, n]. tau: [B, k].

    Returns:
        factor, orthogonality, columnwise: [B], float64, inf where H or tau is not finite, or where
            A = 0, or a column that is 0, has come to R != 0. finite: [B], bool.
    """
    xp = namespace(A)
    B, m, n = A.shape
    k = tau.shape[-1]
    finite = xp.isfinite(H).reshape(B, m * n).all(-1) & xp.isfinite(tau).all(-1)
    # one bad matrix must not stop the solver for its neighbours
    H = xp.where(finite[:, None, None], _float64(H), 0.0)
    tau = xp.where(finite[:, None], _float64(tau), 0.0)
    A = _float64(A)
    identity = xp.broadcast_to(_eye_like(A, m)[:, :k], (B, m, k))
    wrong = xp.triu(H) - _apply_q(H, tau, A, transpose=True)
    return _found(wrong, A, _apply_q(H, tau, identity, transpose=False), finite)


def of_product(A, Q, R=None):
    """|A - Q R| / |A|, |Q^T Q - I|, max_j |a_j - Q r_j| / |a_j| in float64; are all finite?

    Args:
        A: [B, m, n]. Q: [B, m, k]. R: [B, k, n], upper triangular; None for that of Q^T A, so that
            a Q is asked whether it is the one of A, but for signs.

    Returns:
        as residuals.
    """
    xp = namespace(A)
    A, Q = _float64(A), _float64(Q)
    R = xp.triu(Q.swapaxes(-1, -2) @ A) if R is None else _float64(R)
    finite = xp.isfinite(Q).all((-2, -1)) & xp.isfinite(R).all((-2, -1))
    return _found(A - Q @ R, A, Q, finite)


def _found(wrong, A, Q, finite):
    """What residuals returns, from what is wrong of A, and Q; inf where not finite."""
    wrong, length = _lengths(wrong), _lengths(A)
    factor = _ratio(_largest(wrong), _largest(length))
    columnwise = _largest(_ratio(wrong, length))
    orthogonality = _largest(_lengths(Q.swapaxes(-1, -2) @ Q - _eye_like(A, Q.shape[-1])))
    xp = namespace(A)
    found = (xp.where(finite, x, np.inf) for x in (factor, orthogonality, columnwise))
    return *found, finite


def _apply_q(H, tau, C, *, transpose, nb=64):
    """Q C or Q^T C in blocks I - V T V^T, with T = (I + D striu(V^T V))^-1 D and D = diag(tau).

    T^-1 = D^-1 + striu(V^T V) whatever tau is; times D it needs no special case for tau = 0.
    """
    xp = namespace(C)
    C = xp.array(C) if xp is np else C.clone()
    starts = range(0, tau.shape[-1], nb)
    for j in starts if transpose else reversed(starts):
        d = tau[:, j : j + nb]
        b = d.shape[-1]
        V = unpack_v(H[:, j:, j : j + b], b)
        M = _eye_like(C, b) + d[:, :, None] * xp.triu(V.swapaxes(-1, -2) @ V, 1)
        W = V.swapaxes(-1, -2) @ C[:, j:]
        if transpose:
            Z = d[:, :, None] * xp.linalg.solve(M.swapaxes(-1, -2), W)
        else:
            Z = xp.linalg.solve(M, d[:, :, None] * W)
        C[:, j:] -= V @ Z
    return C


def _lengths(X):
    """The sum of |X| over each column. [B, m, n] -> [B, n]."""
    return namespace(X).abs(X).sum(-2)


def _largest(sums):
    """The largest of [B, n], a matrix at a time; 0 where there are no columns."""
    return namespace(sums).amax(sums, -1) if sums.shape[-1] else sums.sum(-1)


def _ratio(x, size):
    """x / size, and 0 for 0/0: a factorization of nothing is right; x/0 is inf, and is not."""
    # NumPy need not warn of either
    with np.errstate(divide="ignore", invalid="ignore"):
        return namespace(x).where(x == 0, x, x / size)


def _eye_like(X, n):
    return np.eye(n) if isinstance(X, np.ndarray) else X.new_ones(n).diag()


def _float64(X):
    return X.astype(np.float64) if isinstance(X, np.ndarray) else X.double()


def _numpy(X):
    return X if isinstance(X, np.ndarray) else X.cpu().numpy()
