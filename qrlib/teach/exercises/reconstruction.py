"""Exercises of chapter 11, All columns at once. Batches [B, m, b] of torch tensors."""

import numpy as np
import torch

from qrlib import matrices, reconstruction
from qrlib.compact import unpack_v
from qrlib.reconstruction import geqrf
from qrlib.teach.exercises.compare import array, entries, finite, kind, number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong, bits
from qrlib.teach.exercises.s02_unblocked import Meter, normal, not_one_by_one
from qrlib.teach.figures.reconstruction import EPS, loss
from qrlib.teach.gram_schmidt import with_condition

ALL_AT_ONCE = "A[:, j, j] is the diagonal entry of all matrices at once."

# 11.1


def candidates():
    """{name: P [64, 8]}, float32. Which of these panels go to Householder?"""
    rng = np.random.default_rng(3)
    names = "lengths", "near", "nearer", "twice", "last zero", "first zero", "triangular"
    P = {name: rng.standard_normal((64, 8), dtype=np.float32) for name in names}
    # from 1 down to 1e-28
    P["lengths"] *= np.float32(10.0) ** -np.arange(0, 32, 4, dtype=np.float32)
    # two columns, an angle of a fifth between them, and of a ten-thousandth
    P["near"][:, 5] = P["near"][:, 2] + P["near"][:, 5] / 5
    P["nearer"][:, 5] = P["nearer"][:, 2] + P["nearer"][:, 5] / 10000
    P["twice"][:, 5] = -2 * P["twice"][:, 2]
    P["last zero"][:, 7] = 0
    P["first zero"][:, 0] = 0
    P["triangular"] = np.triu(P["triangular"])
    return P


def falling():
    """The names of the panels of `candidates` that are not reconstructed but go to Householder."""
    # solution
    # the Gram matrix squares 1e-4 away, or has nothing left; a first row of R that it never saw;
    # and columns that need no mirror, while elimination always makes one
    return "nearer", "twice", "first zero", "triangular"
    # end


_WHY = {
    "lengths": "Cholesky does not see lengths: R of P D is R D, for any powers of two D.",
    "near": "A fifth squared is a twenty-fifth: float32 has seven digits, and loses one or two.",
    "nearer": "A ten-thousandth squared is 1e-8, and float32 rounds at 6e-8.",
    "twice": "R has a zero on its diagonal, and R^-1 has none to give.",
    "last zero": "Nothing comes after it: R and T have a zero row and column there, and tau is 0.",
    "first zero": "It needs no mirror: row 0 of P stays row 0 of R. A Gram matrix knows no rows.",
    "triangular": "All tau must be 0 there. Elimination would give 2: v = e_j, a change of sign.",
}


def _fallen(name):
    P = torch.from_numpy(candidates()[name])[None]
    fell = []
    reconstruction.panel(P.clone(), P.new_zeros(1, 8), fell=fell)
    return bool(fell[0][0])


def _names(answer):
    if not isinstance(answer, (tuple, list, set, frozenset)):
        raise Wrong(f"The answer must be a tuple of names; got {kind(answer)}.")
    known = ", ".join(_WHY)
    for name in answer:
        if not isinstance(name, str) or name not in _WHY:
            raise Wrong(f"{name!r} is none of the names: {known}.")
    return set(answer)


def _falls_as_said(answer):
    said = _names(answer)
    for name, why in _WHY.items():
        if _fallen(name) and name not in said:
            raise Wrong(f'"{name}" is missing: it goes to Householder.', why)
        if name in said and not _fallen(name):
            raise Wrong(f'"{name}" does not go to Householder.', why)


# 11.2


def signed_lu(Q):
    """(L, U, S) with Q - S = L U: no pivoting, and S against the diagonal, when its turn comes.

    Q: [B, b, b], read: the first rows of matrices with orthonormal columns.
    Returns L: [B, b, b], unit lower. U: [B, b, b], upper. S: [B, b], 1 or -1.
    """
    A, S = Q.clone(), torch.ones_like(Q[:, 0])
    for j in range(Q.shape[1]):
        S[:, j] = -torch.copysign(S[:, j], A[:, j, j])
        A[:, j, j] -= S[:, j]
        A[:, j + 1 :, j] /= A[:, j, j, None]
        A[:, j + 1 :, j + 1 :] -= A[:, j + 1 :, j : j + 1] * A[:, j : j + 1, j + 1 :]
    return unpack_v(A), A.triu(), S


def orthonormal(m, b, *, batch=3, seed=0, dtype=torch.float64):
    """[batch, m, b] with orthonormal columns."""
    return torch.linalg.qr(normal(batch, m, b, seed=seed, dtype=torch.float64))[0].to(dtype)


def _lu(answer, Q, about="", **more):
    L, U, S = several(answer(Q, about=about, **more), ("L", "U", "S"))
    return array("L", L, Q), array("U", U, Q), array("S", S, Q, Q.shape[:2])


def _lu_by_hand(answer):
    Q = torch.tensor([[[0.4, -0.8], [0.2, -0.4]]], dtype=torch.float64)
    L, U, S = _lu(answer, Q, "the square of the text")
    _signs(S)
    _pivots(U)
    right = reconstruction.signed_lu(Q)
    entries("S", S, right[2], why="Against the diagonal: 0.4 gives -1. Then eliminate, and look.")
    entries("L", L, right[0], why="0.2 through the pivot, and the pivot is 0.4 + 1.")
    entries("U", U, right[1], why="The first row of U is that of Q - S; below, what is left.")


def _signs(S):
    wrong = S[~(S.abs() == 1)]
    if len(wrong):
        raise Wrong(
            f"An entry of S is {float(wrong[0]):g}; it must be 1 or -1.",
            "Zero has a sign too: copysign, not sign.",
        )


def _pivots(U):
    small = U.diagonal(0, -2, -1).abs().min()
    if not small >= 1 - 1e-5:
        raise Wrong(
            f"A pivot is {float(small):.3g} in magnitude; with the right S all are at least 1.",
            "S[j] is minus the sign of the diagonal as it is when its turn comes: q - S never "
            "cancels.",
        )


def _lu_certificate(answer):
    for m, b in ((1, 1), (2, 2), (9, 3), (40, 8), (33, 33), (64, 16)):
        for dtype in (torch.float32, torch.float64):
            Q = orthonormal(m, b, dtype=dtype)[:, :b].contiguous()
            _is_lu(answer, Q, f"the first {b} of {m} rows")


def _is_lu(answer, Q, about):
    L, U, S = _lu(answer, Q, about)
    _signs(S)
    for name, X in (("L", L), ("U", U), ("S", S)):
        finite(name, X)
    if not bool((L.diagonal(0, -2, -1) == 1).all()) or bool(L.triu(1).any()):
        raise Wrong("L must have ones on its diagonal and zeros above it.", "L is the top of V.")
    if bool(U.tril(-1).any()):
        raise Wrong("U must have zeros below its diagonal.")
    _pivots(U)
    gap = (L.double() @ U.double() - Q.double() + torch.diag_embed(S).double()).abs().max()
    unit = Q.shape[1] * torch.finfo(Q.dtype).eps
    if not gap <= 20 * unit:
        hint = "Q - S = L U: subtract S from the diagonal, each entry before it becomes a pivot."
        raise Wrong(f"L U misses Q - S by {float(gap):.3g}.", hint)
    if not bool((torch.sign(U.diagonal(0, -2, -1)) == -S).all()):
        raise Wrong("A pivot and its S have the same sign.", "q - S with S = -sign(q).")


def _lu_awkward(answer):
    eye = torch.eye(4, dtype=torch.float64)
    for Q, about in (
        (eye[[1, 2, 3, 0]][None], "a permutation: zeros on the diagonal"),
        (torch.stack([eye, -eye]), "I and -I"),
        (torch.zeros(1, 3, 3, dtype=torch.float64), "zeros: Q has its ones further down"),
    ):
        _is_lu(answer, Q, about)
    Q = orthonormal(12, 5)[:, :5].contiguous()
    clean = _lu(answer, Q)
    Q[1, 2, 2] = torch.nan
    for name, one, other in zip("LUS", clean, _lu(answer, Q, "NaN in matrix [1] only")):
        if bits(one[::2]) != bits(other[::2]):
            raise Wrong(f"A NaN in one matrix has changed {name} of its neighbours.")


def _lu_cost(answer):
    counts = []
    for B in (2, 6):
        Q = orthonormal(20, 8, batch=B)[:, :8].contiguous()
        meter = Meter()
        _lu(answer, Q, f"a batch of {B}", inside=meter)
        counts.append(len(meter.wrote))
    not_one_by_one(*counts, ALL_AT_ONCE)


# 11.3


def cholesky(G):
    """(R, ok): R^T R = G, and for each matrix whether its Cholesky factor can be trusted to exist.

    G: [B, b, b], read: Gram matrices of columns of any length. Returns R: [B, b, b], upper, finite
    where G is; ok: [B], bool. A column of zeros is a row and a column of zeros in R, and is ok.
    """
    R, ok = torch.zeros_like(G), torch.ones(len(G), dtype=torch.bool)
    least = G.shape[1] * torch.finfo(G.dtype).eps
    for j in range(G.shape[1]):
        row = G[:, j, j:] - (R[:, :j, j : j + 1].mT @ R[:, :j, j:])[:, 0]
        pivot, whole = row[:, 0], G[:, j, j]
        good, zero = pivot > least * whole, whole == 0
        root = torch.where(good, pivot, 1).sqrt()
        R[:, j, j:] = torch.where(good[:, None], row / root[:, None], 0)
        R[:, j, j] = torch.where(zero, 0, root)
        ok &= good | zero
    return R, ok


def _chol(answer, G, about="", **more):
    R, ok = several(answer(G, about=about, **more), ("R", "ok"))
    array("R", R, G)
    if not isinstance(ok, torch.Tensor) or ok.dtype != torch.bool or ok.shape != G.shape[:1]:
        raise Wrong(
            f"ok must be a bool tensor [{len(G)}], one for each matrix; got {kind(ok)}.",
            "A matrix that stops must not stop its neighbours.",
        )
    return R, ok


def gram(P):
    return P.mT @ P


def _chol_by_hand(answer):
    G = torch.tensor([[[25.0, 25], [25, 50]]], dtype=torch.float64)
    R, ok = _chol(answer, G, "G of the text")
    right = reconstruction.cholesky(G)[0]
    hint = "Row 0 of R is row 0 of G through the root of 25. Row 1: 50 - 5 * 5, and its root."
    if torch.allclose(R, right.mT):
        hint = "R is upper triangular here: R^T R = G."
    entries("R", R, right, why=hint)
    if not bool(ok[0]):
        raise Wrong("ok is False for a matrix with the pivots 25 and 25.")


def _chol_certificate(answer):
    for m, b in ((1, 1), (9, 4), (40, 16), (70, 33)):
        for dtype in (torch.float32, torch.float64):
            G = gram(normal(3, m, b, dtype=dtype))
            R, ok = _chol(answer, G, f"Gram matrices of {b} columns of {m} normal numbers")
            finite("R", R)
            if bool(R.tril(-1).any()):
                raise Wrong("R must have zeros below its diagonal.")
            gap = ((R.mT @ R).double() - G.double()).abs().max() / G.double().abs().max()
            if not gap <= 20 * b * torch.finfo(dtype).eps:
                raise Wrong(f"R^T R misses G by {float(gap):.3g} of its largest entry.")
            if not bool(ok.all()):
                raise Wrong("ok is False for columns in quite different directions.")


def _chol_lengths(answer):
    s = 10.0 ** -torch.arange(0, 40, 5, dtype=torch.float64)
    G = gram(normal(2, 30, 8, dtype=torch.float64) * s)
    R, ok = _chol(answer, G, "columns of lengths from 1 down to 1e-35")
    if not bool(ok.all()):
        raise Wrong(
            "ok is False for columns that are short, but in quite different directions.",
            "Compare a pivot with the diagonal entry of G that it was, not with a number.",
        )
    entries("R, each column over its length", R / s, reconstruction.cholesky(G)[0] / s)


def _chol_stops(answer):
    P = normal(24, 40, 6)
    P[::3, :, 4] = P[::3, :, 1]
    P[1, :, 2:] = P[1, :, :1]
    G = gram(P)
    about = "float32; matrices 0, 3, 6, ... have column 1 again as column 4"
    R, ok = _chol(answer, G, about)
    bad = torch.zeros(24, dtype=torch.bool)
    bad[::3] = bad[1] = True
    if bool(ok[bad].any()):
        k = int(torch.nonzero(ok & bad)[0])
        d = float(G[k, 4, 4])
        raise Wrong(
            f"ok is True for matrix [{k}], which has a column twice.",
            f"Its pivot should be 0; what rounding leaves of {d:.3g} may be a little more. How "
            "much of it can be rounding?",
        )
    if not bool(ok[~bad].all()):
        raise Wrong("A matrix that stops has stopped its neighbours.", "ok has one entry each.")
    finite("R", R, "Where a matrix stops go on with any row that is finite, such as that of I.")
    clean = _chol(answer, G[~bad].contiguous())[0]
    if bits(clean) != bits(R[~bad]):
        raise Wrong("Matrices that stop have changed R of their neighbours.")


def _chol_zeros(answer):
    P = normal(3, 20, 5, dtype=torch.float64)
    P[0, :, 2] = 0
    P[1] = 0
    R, ok = _chol(answer, gram(P), "column 2 of matrix [0] is zero, and all of matrix [1]")
    finite("R", R)
    if not bool(ok.all()):
        raise Wrong(
            "ok is False for a column of zeros.",
            "A zero on the diagonal of G is no accident of rounding: the column is exactly zero.",
        )
    entries("R", R, reconstruction.cholesky(gram(P))[0], why="A zero row and a zero column.")
    G = torch.eye(3).repeat(3, 1, 1)
    G[1, 1, 1] = torch.nan
    if _chol(answer, G, "NaN on the diagonal of matrix [1]")[1].tolist() != [True, False, True]:
        raise Wrong("A NaN is no pivot.", "Every comparison with NaN is False: ask pivot > ...")


def _chol_cost(answer):
    counts = []
    for B in (2, 6):
        meter = Meter()
        _chol(answer, gram(normal(B, 20, 8)), f"a batch of {B}", inside=meter)
        counts.append(len(meter.wrote))
    not_one_by_one(*counts, ALL_AT_ONCE)


# 11.4


def residual(G, T, L, U, S, R):
    """The largest |V X r_j| / |r_j| of each panel, X = U S + T L^T, without V.

    G: [B, b, b], V^T V. T: its triangle. L, U, S: of Q~. R: of the mirrors, the one with signs.
    Returns [B]. A zero column of R counts nothing.
    """
    Y = (U * S[:, None] + T @ L.mT) @ R
    squares, lengths = (Y * (G @ Y)).sum(1), (R * R).sum(1)
    return (squares.clamp(min=0) / torch.where(lengths > 0, lengths, 1)).sqrt().amax(1)


def spoiled(m, b, *, off=0.01, batch=3, seed=0, zero=False):
    """(G, T, L, U, S, R) of columns that are `off` from orthonormal; and [B, b], the residuals."""
    Q = orthonormal(m, b, batch=batch, seed=seed) + off * normal(
        batch, m, b, seed=seed + 1, dtype=torch.float64
    )
    L, U, S = reconstruction.signed_lu(Q[:, :b])
    V = torch.cat([L, Q[:, b:] @ reconstruction.triangular_inverse(U)], 1)
    G = V.mT @ V
    T = reconstruction.triangular_inverse(G.triu(1) + torch.diag_embed(G.diagonal(0, 1, 2) / 2))
    R = S[:, :, None] * normal(batch, b, b, seed=seed + 2, dtype=torch.float64).triu()
    # lengths that differ: a residual is relative to its own column
    R = R * 10.0 ** -torch.arange(b, dtype=torch.float64)
    if zero:
        R[:, :, -1] = 0
    gap = Q * S[:, None] - torch.cat(
        [torch.eye(b, dtype=torch.float64) - L @ T @ L.mT, -V[:, b:] @ T @ L.mT], 1
    )
    each = (gap @ R).norm(dim=1) / R.norm(dim=1).clamp(min=1e-300)
    return (G, T, L, U, S, R), each


def _residual(m, b, about, **options):
    def step(answer):
        given, each = spoiled(m, b, **options)
        G, T, L, U, S, R = given
        got = array("The residual", answer(*given, about=about), G, G.shape[:1])
        right = each.amax(1)
        finite("The residual", got, "A zero column of R has the length zero: divide by 1 there.")
        X = U * S[:, None] + T @ L.mT
        Y = X @ R
        lengths = R.norm(dim=1)
        over = torch.where(lengths > 0, lengths, 1)
        length = (Y * (G @ Y)).sum(1).sqrt()
        slips = (
            (X.abs().sum(1).amax(1), "That is E, of Q~. What counts is X times R, over R."),
            ((Y.norm(dim=1) / over).amax(1), "|V y|, not |y|: (V y)^T (V y) = y^T G y."),
            (length.amax(1), "Each column over its own length, |r_j|."),
            ((length / over).mean(1), "The worst column counts, not the mean."),
            ((length / over).amax(1) ** 2, "That is its square."),
        )
        for other, hint in slips:
            if torch.allclose(got, other, rtol=1e-6, atol=0) and not torch.allclose(got, right):
                raise Wrong(f"It gives {float(got[0]):.4g}; expected {float(right[0]):.4g}.", hint)
        hint = "X = U S + T L^T: S has the columns of U, L^T stands on the right of T. Then X R."
        entries("The residual", got, right, tol=1e-6, why=hint)

    return step


def _residual_alone(answer):
    given, _ = spoiled(12, 4)
    clean = answer(*given)
    given[1][1, 0, 0] = torch.nan
    got = array("The residual", answer(*given, about="NaN in T of matrix [1]"), given[0], (3,))
    if bits(got[::2]) != bits(clean[::2]):
        raise Wrong("A NaN in one matrix has changed the residual of its neighbours.")
    if not bool(torch.isnan(got[1])):
        raise Wrong("The residual of a matrix with a NaN in it must be NaN, or it may pass.")


# 11.5


def measures(P):
    """(E, residual, ok) of a panel P [m, b], the residual in LAPACK's unit, m eps/2."""
    it = loss(P)
    return it.E, it.known / (len(P) * EPS / 2), it.ok


def too_trusting():
    """P [m, b], m >= 2b, NumPy float32, with E < 1e-4 and a residual of more than 4 units."""
    # solution
    # the residual grows with kappa, its unit with m: few rows, and kappa as large as E allows
    return with_condition(8, 4, 30, seed=8)
    # end


def _a_panel(answer):
    P = answer.numpy() if isinstance(answer, torch.Tensor) else answer
    if not isinstance(P, np.ndarray) or P.ndim != 2 or P.dtype != np.float32 or not P.size:
        raise Wrong(f"P must be a float32 array [m, b]; got {kind(answer)}.")
    finite("P", P)
    m, b = P.shape
    if m < 2 * b:
        raise Wrong(f"P is {m} x {b}; a panel is at least twice as tall as wide.")
    return P


def _e_lets_it_through(answer):
    E, _, ok = measures(_a_panel(answer))
    if not ok:
        raise Wrong(
            "This panel has no Cholesky factor, or needs no mirror: it falls without E.",
            "with_condition(m, b, kappa) has its columns as far apart as you like.",
        )
    if not E < 1e-4:
        raise Wrong(f"E is {E:.3g}: a rule that asks for 1e-4 refuses it.", "A smaller kappa.")


def _residual_does_not(answer):
    P = _a_panel(answer)
    units = measures(P)[1]
    if not units > 4:
        m, b = P.shape
        raise Wrong(
            f"For this panel {m} x {b} the residual is {units:.3g} units; more than 4 are wanted.",
            "The unit is m eps/2. What grows when m gets small, with kappa where it is?",
        )


# 11.6

WIDTHS = (8, 16, 32)


def widest(A, passes):
    """The widest panel of WIDTHS with which no tall panel of any matrix falls; 0 if there is none.

    A: [B, n, n]. passes: 1 or 2. A panel is tall if it has at least twice as many rows as columns.
    """
    n, found = A.shape[1], 0
    for nb in WIDTHS:
        fell = []
        geqrf(A, nb=nb, passes=passes, fell=fell)
        tall = [each for k, each in enumerate(fell) if n - k * nb >= 2 * nb]
        if not torch.stack(tall).any():
            found = nb
    return found


def _widest(family, passes, n=128):
    def step(answer):
        A = torch.from_numpy(matrices.make(family, 2, n, cond=1))
        about = f"2 matrices of family {family}, n = {n}"
        got = number("The width", answer(A, passes, about=about))
        right = widest(A, passes)
        if got == right:
            return
        hint = "fell has one tensor for each panel; look at those with n - k nb >= 2 nb rows only."
        if got not in (0, *WIDTHS):
            hint = f"It is one of {', '.join(map(str, WIDTHS))}, or 0."
        elif got == widest(A, 3 - passes):
            hint = f"That is the width for {3 - passes} pass{'es' if passes == 1 else ''}."
        elif got > right:
            hint = "One matrix is enough: no panel of any of them may fall."
        raise Wrong(f"For {about} and passes = {passes} it gives {got:g}; expected {right}.", hint)

    return step


EXERCISES = (
    Exercise(
        id="11.1",
        kind="predict",
        title="who falls?",
        task="""
            Seven panels of 64 rows and 8 columns, float32. Which of them does the panel of this
            chapter give to Householder, with one pass? The answer is a tuple of names. Do not run
            it: say for each of them what its Gram matrix knows, and what it does not.
        """,
        solution=falling,
        steps=(("each of the seven", _falls_as_said),),
        hints=(
            "Three things can go wrong: directions, zeros, and columns without a tail.",
            "An angle a between two columns leaves a^2 for the last pivot. Float32 rounds at 6e-8.",
            "Zeros at the end are harmless, in front they are not. And what is triangular has tau "
            "= 0, while a pivot of LU is never less than 1.",
        ),
        given=(candidates,),
    ),
    Exercise(
        id="11.2",
        kind="implement",
        title="the mirrors hidden in Q (signed_lu)",
        task="""
            Write signed_lu(Q) -> (L, U, S) for a torch batch of squares Q [B, b, b], the first
            rows of matrices with orthonormal columns: Q - S = L U by elimination without pivoting,
            S = -1 or 1 against the diagonal entry, when its turn comes. The sign of zero is that
            of its bit.
        """,
        solution=signed_lu,
        steps=(
            ("worked by hand: the square of the text", _lu_by_hand),
            ("certificate: L U = Q - S, pivots of 1 and more", _lu_certificate),
            ("awkward: zeros on the diagonal, NaN", _lu_awkward),
            ("cost: no loop over the batch", _lu_cost),
        ),
        hints=(
            "Elimination in place: L below the diagonal, U on and above it.",
            "At step j: look at the diagonal, choose S, subtract it, divide the column below, "
            "subtract the outer product from what is left.",
            "S[:, j] = -torch.copysign(one, A[:, j, j]), and A[:, j, j] -= S[:, j].",
        ),
    ),
    Exercise(
        id="11.3",
        kind="implement",
        title="a Cholesky that knows when to stop",
        task="""
            Write cholesky(G) -> (R, ok) for a torch batch of Gram matrices [B, b, b]: R upper
            triangular with R^T R = G, and for each matrix a bool that says whether all its pivots
            were more than rounding. Columns may have any length. R is finite where G is, also for
            matrices that stop, and a stop is nobody else's business. No library factorization:
            on a GPU there is none inside a kernel.
        """,
        solution=cholesky,
        steps=(
            ("worked by hand", _chol_by_hand),
            ("certificate: R^T R = G", _chol_certificate),
            ("lengths from 1 down to 1e-35", _chol_lengths),
            ("columns that are there twice", _chol_stops),
            ("columns of zeros, NaN", _chol_zeros),
            ("cost: no loop over the batch", _chol_cost),
        ),
        hints=(
            "Row j of R: row j of G, less what the rows above give, through the root of the pivot.",
            "The pivot began as G[j, j]. What is left of it is rounding if it is b eps of that.",
            "torch.where(good, pivot, 1).sqrt() has no NaN; good | (G[j, j] == 0) goes into ok.",
        ),
    ),
    Exercise(
        id="11.4",
        kind="implement",
        title="a residual without its matrix",
        task="""
            Write residual(G, T, L, U, S, R) -> [B]: how far the stored panel is from the one that
            was given, for its worst column, from matrices b x b alone. G = V^T V, T is its
            triangle, L, U, S belong to Q~, and R is that of the mirrors, S times that of Cholesky.
            V is not given, and neither is P.
        """,
        solution=residual,
        steps=(
            ("two columns", _residual(6, 2, "Q~ a per cent from orthonormal, 6 x 2")),
            ("many columns", _residual(60, 12, "Q~ a per cent from orthonormal, 60 x 12", seed=5)),
            ("nearly orthonormal", _residual(30, 5, "Q~ 1e-6 off", off=1e-6, seed=7)),
            ("a zero column of R", _residual(12, 4, "the last column of R is zero", zero=True)),
            ("NaN shows, and stays at home", _residual_alone),
        ),
        hints=(
            "P - Q [R; 0] = V X R. How long is column j of it?",
            "With y = X r_j: |V y|^2 = y^T (V^T V) y, and V^T V is given.",
            "Y = X @ R; (Y * (G @ Y)).sum(1) has the squares of all columns.",
        ),
    ),
    Exercise(
        id="11.5",
        kind="break it",
        title="the rule that asks about Q~",
        task="""
            A simpler rule keeps every panel with E < 1e-4. Break it: find a float32 panel P
            [m, b], NumPy, with m >= 2b, that this rule keeps, while the residual of what is stored
            is more than 4 units of LAPACK, m eps/2. You may look:

                from qrlib.teach.exercises.reconstruction import measures
                from qrlib.teach.figures.reconstruction import EPS, loss
from qrlib.teach.gram_schmidt import with_condition
                measures(with_condition(64, 8, 10))     # E, residual in units, ok
        """,
        solution=too_trusting,
        steps=(
            ("E lets it through", _e_lets_it_through),
            ("the residual does not", _residual_does_not),
        ),
        hints=(
            "E is about kappa^2 eps and does not ask for m. The residual is about kappa eps.",
            "Its unit is m eps/2: how should m be?",
            "Eight rows or fewer, kappa of 20 to 40, and a few seeds.",
        ),
        given=(measures,),
    ),
    Exercise(
        id="11.6",
        kind="measure",
        title="how wide may a panel be?",
        task="""
            Write widest(A, passes): the widest nb of WIDTHS = (8, 16, 32) for which no tall panel
            of any matrix of A [B, n, n] goes to Householder, or 0. A panel is tall if it has at
            least 2 nb rows. At hand:

                from qrlib.reconstruction import geqrf
                fell = []
                geqrf(A, nb=nb, passes=passes, fell=fell)   # fell: a [B] of bools for each panel
        """,
        solution=widest,
        steps=(
            ("dense", _widest("dense", 1)),
            ("rowscale, one pass", _widest("rowscale", 1)),
            ("rowscale, two passes", _widest("rowscale", 2)),
            ("nearcollinear", _widest("nearcollinear", 1)),
            ("nearcollinear, two passes", _widest("nearcollinear", 2)),
        ),
        hints=(
            "Panel k begins at column k nb and has n - k nb rows.",
            "The last ones are nearly square and always fall; they do not count.",
            "torch.stack(tall).any() is True if one panel of one matrix fell.",
        ),
    ),
)
