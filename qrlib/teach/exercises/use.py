"""Exercises of the chapter Use it. torch tensors."""

import math

import numpy as np
import torch

import qrlib
from qrlib.teach.exercises.compare import array, close, entries, finite, kind, number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.exercises.s02_unblocked import Meter, normal, not_one_by_one
from qrlib.teach.gram_schmidt import with_condition

# use.1


def quantities(Q, R):
    """{name: value} made of A = Q R [4, 4], and of b, G, M and a basis that know no sign of it."""
    b, G, M, last = (normal(4, 4, seed=k, dtype=Q.dtype) for k in range(4))
    seen = Q.T @ G
    return {
        # what makes A x - b shortest
        "solution": torch.linalg.solve(R, Q.T @ b),
        # what maps onto the space of the columns of A
        "projection": Q[:, :2] @ Q[:, :2].T,
        # SOAP's second moment, and its step from a mean M that is kept outside
        "squares": seen**2,
        "step": Q @ (Q.T @ M / seen.abs()),
        # its step from a mean that was kept inside, in the last basis
        "step from inside": Q @ (last.T @ M / seen.abs()),
        "average": (Q + last) / 2,
        "determinant": torch.linalg.det(Q),
        "gram": R.T @ R,
    }


def noticing():
    """The names of the quantities that change when column 0 of Q and row 0 of R change sign."""
    # solution
    # all others have Q twice, or a square
    return "step from inside", "average", "determinant"
    # end


_WHY = {
    "solution": "R^-1 Q^T: a sign in R and the same sign in Q meet, and cancel.",
    "projection": "Q Q^T is a sum of q q^T, and each has the sign twice.",
    "squares": "A square forgets its sign.",
    "step": "Q on the left and Q^T at M have the sign both, what stands between them does not.",
    "step from inside": "What was kept inside has the last sign, Q the new one: once, not twice.",
    "average": "The mean of a column and of its opposite is something else, zero at worst.",
    "determinant": "A mirror more or less: det Q changes its sign with every column that does.",
    "gram": "R^T R is A^T A, whatever Q is.",
}


def _changes(name):
    Q, R = torch.linalg.qr(normal(4, 4, seed=9, dtype=torch.float64))
    before = quantities(Q, R)[name]
    sign = torch.tensor([-1.0, 1, 1, 1], dtype=torch.float64)
    return not close(quantities(Q * sign, sign[:, None] * R)[name], before, 1e-9)


def _notice_as_said(answer):
    if not isinstance(answer, (tuple, list, set, frozenset)):
        raise Wrong(f"The answer must be a tuple of names; got {kind(answer)}.")
    for name in answer:
        if not isinstance(name, str) or name not in _WHY:
            raise Wrong(f"{name!r} is none of the names: {', '.join(_WHY)}.")
    for name, why in _WHY.items():
        if _changes(name) and name not in answer:
            raise Wrong(f'"{name}" is missing: it changes.', why)
        if name in answer and not _changes(name):
            raise Wrong(f'"{name}" does not change.', why)


# use.2

SIGNS = "positive_diag: where R_jj > 0, what column j has been is in it with a positive sign."


def refreshed(S, Q):
    """(new basis, order): the columns of Q sorted, and one step of orthogonal iteration.

    S, Q: [B, n, n], read; S symmetric, Q orthogonal. The largest q^T S q comes first, and order
    [B, n] says which column of Q has become which. A column of the new basis makes no more than a
    right angle with the column that it has been.
    """
    order = (Q * (S @ Q)).sum(-2).argsort(-1, descending=True)
    sorted_ = Q.gather(-1, order[:, None].expand_as(Q))
    return qrlib.orthogonalize(S @ sorted_, positive_diag=True), order


def spectrum(*values, batch=3, seed=0):
    """(S, U) [B, n, n], float64: S with these eigenvalues, its eigenvectors in the columns of U."""
    n = len(values)
    U = qrlib.orthogonalize(normal(batch, n, n, seed=seed, dtype=torch.float64))
    return U * torch.tensor(values, dtype=torch.float64) @ U.mT, U


def _basis(answer, S, Q, about="", **more):
    new, order = several(answer(S, Q, about=about, **more), ("new basis", "order"))
    array("The new basis", new, S)
    if not isinstance(order, torch.Tensor) or order.shape != S.shape[:2]:
        raise Wrong(f"order must be a tensor {list(S.shape[:2])}; got {kind(order)}.")
    return new, order


def _basis_by_hand(answer):
    S, eye = torch.diag_embed(torch.tensor([[1.0, 4.0]])), torch.eye(2)[None]
    new, order = _basis(answer, S, eye, "S = diag(1, 4)")
    if order.tolist() != [[1, 0]]:
        why = "q^T S q is 1 for column 0 and 4 for column 1: the largest comes first."
        raise Wrong(f"order is {order.tolist()}; expected [[1, 0]].", why)
    if close(new, S @ eye.flip(-1)):
        raise Wrong("That is S Q, not orthonormal yet.", "Q of S Q = Q R is the new basis.")
    if close(new.abs(), eye.flip(-1)) and bool((new < 0).any()):
        raise Wrong("A column has changed its sign.", SIGNS)
    entries("The new basis", new, eye.flip(-1), why="Column 1 of Q has come first, and stays.")


def _basis_orders(answer):
    S, _ = spectrum(5.0, 3.0, 2.0, 1.0)
    Q = qrlib.orthogonalize(normal(3, 4, 4, seed=4, dtype=torch.float64))
    order = _basis(answer, S, Q, "a basis of normal numbers")[1]
    sizes = torch.diagonal(Q.mT @ S @ Q, 0, -2, -1)
    right = sizes.argsort(-1, descending=True)
    if not torch.equal(order.long(), right):
        own = torch.diagonal(S, 0, -2, -1).argsort(-1, descending=True)
        hint = "By q^T S q, seen from the basis, not by the diagonal of S."
        raise Wrong(
            f"order is {order[0].tolist()} in matrix [0]; q^T S q falls for {right[0].tolist()}.",
            hint if torch.equal(order.long(), own) else "argsort(descending=True), by q^T S q.",
        )


def _basis_goes_on(answer):
    S, U = spectrum(5.0, 3.0, 2.0, 1.0)
    Q = U[..., [2, 0, 3, 1]] * torch.tensor([1.0, -1, -1, 1])
    new, order = _basis(answer, S, Q, "eigenvectors, in another order and with signs of their own")
    was = U * torch.tensor([-1.0, 1, 1, -1])
    along = (new * was).sum(-2)
    if bool((along < -0.5).any()):
        raise Wrong("A column has changed its sign.", SIGNS)
    entries("The new basis", new, was, why="Eigenvectors stay what they are, in the right order.")


def _basis_is_one_step(answer):
    S, U = spectrum(9.0, 4.0, 2.0, 1.0, 0.5)
    Q = qrlib.orthogonalize(normal(3, 5, 5, seed=2, dtype=torch.float64))
    new, order = _basis(answer, S, Q, "a basis of normal numbers")
    finite("The new basis", new)
    gap = float((new.mT @ new - torch.eye(5)).abs().max())
    if not gap < 1e-12:
        raise Wrong(f"The new basis is {gap:.3g} from orthogonal.")
    for slip, why in (
        (U * torch.sign((new * U).sum(-2))[:, None], "That is all of the way: one step is asked."),
        (qrlib.orthogonalize(S @ Q, positive_diag=True).gather(-1, order[:, None].expand_as(Q)),
         "Sort the columns first, and make S times the sorted ones orthonormal."),
        (qrlib.orthogonalize(S @ Q, positive_diag=True),
         "Sort the columns first, and make S times the sorted ones orthonormal."),
    ):  # fmt: skip
        if close(new.abs(), slip.abs(), 1e-6):
            raise Wrong("The new basis is another one.", why)
    entries("The new basis", new, refreshed(S, Q)[0], why="Q of S times the sorted columns.")


def _basis_cost(answer):
    counts = []
    for B in (2, 6):
        S, _ = spectrum(*range(8, 0, -1), batch=B)
        meter = Meter()
        Q = torch.eye(8, dtype=torch.float64).repeat(B, 1, 1)
        _basis(answer, S, Q, f"a batch of {B}", inside=meter)
        counts.append(len(meter.wrote))
    not_one_by_one(*counts, "gather takes other columns from each matrix, all at once.")


# use.3


def haar(G):
    """Random orthogonal matrices: Q of G = Q R with a positive diagonal of R.

    G: [B, n, n] of independent normal numbers, read. Returns [B, n, n].
    """
    Q, R = qrlib.qr(G)
    signs = torch.copysign(torch.ones_like(G[..., 0]), torch.diagonal(R, 0, -2, -1))
    return Q * signs[..., None, :]


def _sampled(answer, G, about=""):
    Q = array("The result", answer(G, about=about), G)
    finite("The result", Q)
    return Q


def _haar_by_hand(answer):
    G = torch.tensor([[[0.0, 2], [3, 0]], [[-3.0, 1], [0, -2]]], dtype=torch.float64)
    Q = _sampled(answer, G, "rows swapped; and upper triangular")
    right = torch.tensor([[[0.0, 1], [1, 0]], [[-1.0, 0], [0, -1]]], dtype=torch.float64)
    entries("The result", Q, right, why="R = Q^T G has to be 3, 2 and 3, 2 on its diagonal.")


def _haar_certificate(answer):
    for n in (1, 2, 5, 16):
        G = normal(4, n, n, seed=n, dtype=torch.float64)
        Q = _sampled(answer, G, f"4 matrices of {n} x {n} normal numbers")
        gap = float((Q.mT @ Q - torch.eye(n)).abs().max())
        if not gap < 1e-12 * n:
            raise Wrong(f"The columns are {gap:.3g} from orthonormal.")
        R = Q.mT @ G
        if float(R.tril(-1).abs().max()) > 1e-10:
            raise Wrong(
                "Q^T G is not upper triangular: Q is orthogonal, but not that of G.",
                "A sign belongs to a column of Q: Q D times D R is still G.",
            )
        bad = int((torch.diagonal(R, 0, -2, -1) < 0).sum())
        if bad:
            raise Wrong(
                f"{bad} of {4 * n} diagonal entries of R are negative.",
                "Those columns of Q have to change their sign.",
            )


# use.4


def ridge(A, b, mu):
    """The x that makes |A x - b|^2 + mu^2 |x|^2 smallest, without A^T A.

    A: [B, m, n], any m. b: [B, m, p]. mu: a number > 0. All are read. Returns [B, n, p].
    """
    n = A.shape[-1]
    below = mu * torch.eye(n, dtype=A.dtype).expand(len(A), n, n)
    tall = torch.cat([A, below], 1)
    return qrlib.lstsq(tall, torch.cat([b, b.new_zeros(len(b), n, b.shape[-1])], 1)).solution


def _ridged(answer, A, b, mu, about="", **more):
    shape = (len(A), A.shape[2], b.shape[2])
    x = array("x", answer(A, b, mu, about=about, **more), A, shape)
    finite("x", x)
    return x


def _right(A, b, mu):
    U, s, Vh = torch.linalg.svd(A.double(), full_matrices=False)
    return Vh.mT @ ((s / (s**2 + mu**2))[..., None] * (U.mT @ b.double()))


def _ridge_by_hand(answer):
    A = torch.tensor([[[3.0], [4.0]]], dtype=torch.float64)
    b = torch.tensor([[[5.0], [0.0]]], dtype=torch.float64)
    for mu in (5.0, 0.5):
        x = _ridged(answer, A, b, mu)
        slips = {
            25.0: "That is for mu = 0.",
            25 + mu: "mu is squared in the sum: the rows below A are mu I, not sqrt(mu) I.",
            25 + mu**4: "The rows below A are mu I: their squares have mu^2.",
        }
        for whole, why in slips.items():
            if close(x, 15 / whole * torch.ones_like(x), 1e-9):
                raise Wrong(f"x is {float(x):.6g}; expected {15 / (25 + mu**2):.6g}.", why)
        entries("x", x, _right(A, b, mu), why="A^T b is 15, A^T A is 25: 15 / (25 + mu^2).")


def _ridge_shapes(answer):
    for m, n, p in ((1, 1, 1), (8, 3, 2), (5, 5, 1), (3, 7, 2)):
        for dtype in (torch.float32, torch.float64):
            A, b = normal(3, m, n, dtype=dtype), normal(3, m, p, seed=1, dtype=dtype)
            x = _ridged(answer, A, b, 0.3, f"3 systems {m} x {n}, {p} right-hand sides")
            entries("x", x, _right(A, b, 0.3), tol=1e-3)


def _ridge_digits(answer):
    A = torch.from_numpy(with_condition(60, 6, 2e3))[None]
    b = A @ torch.ones(1, 6, 1)
    x, right = _ridged(answer, A, b, 1e-4, "condition 2000, float32"), _right(A, b, 1e-4)
    error = float((x - right).norm() / right.norm())
    if error > 1e-2:
        raise Wrong(
            f"x is {error:.2g} wrong, relative to its length; 1e-2 is allowed.",
            "A^T A has the square of the condition. Stack A on mu I, and take the QR of that.",
        )


def _ridge_cost(answer):
    counts = []
    for B in (2, 6):
        meter = Meter()
        _ridged(answer, normal(B, 9, 4), normal(B, 9, 1), 0.1, f"a batch of {B}", inside=meter)
        counts.append(len(meter.wrote))
    not_one_by_one(*counts, "torch.cat, qrlib.lstsq and qrlib.qr take the batch at once.")


# use.5


def nearly_nothing():
    """S [6, 6], symmetric, NumPy float64, all entries within 0.01 of those of I."""
    # solution
    # something below every diagonal entry, and a mirror is made: to minus the length
    return np.eye(6) + 1e-3
    # end


def _nearly_i(S):
    if not isinstance(S, np.ndarray) or S.shape != (6, 6) or S.dtype != np.float64:
        raise Wrong(f"S must be a float64 array [6, 6]; got {kind(S)}.")
    finite("S", S)
    if not np.array_equal(S, S.T):
        raise Wrong("S is not symmetric: S[i, j] must be S[j, i].")
    far = float(np.abs(S - np.eye(6)).max())
    if far > 0.01:
        raise Wrong(f"An entry is {far:.3g} from that of I; at most 0.01 is allowed.")


def _turns_columns(S):
    along = np.diag(qrlib.orthogonalize(S))
    turned = int((along < 0).sum())
    if turned < 5:
        raise Wrong(
            f"{turned} of 6 columns change their sign; 5 are wanted.",
            "A column with zeros below its diagonal needs no mirror, and keeps its sign.",
        )
    if not bool((np.diag(qrlib.orthogonalize(S, positive_diag=True)) > 0.9).all()):
        raise Wrong("With the signs fixed a column is turned, too: S is not near I.")


# use.6


def needed(S, tol):
    """Steps of orthogonal iteration from Q = I until Q^T S Q is diagonal to tol.

    S: [n, n], symmetric, read. It is diagonal when no other entry is larger than tol times the
    largest one on the diagonal. Returns a whole number, 0 for a diagonal S.
    """
    Q, steps = torch.eye(len(S), dtype=S.dtype), 0
    while True:
        seen = Q.T @ S @ Q
        beside = seen - torch.diag(torch.diagonal(seen))
        if beside.abs().max() <= tol * torch.diagonal(seen).max():
            return steps
        Q, steps = qrlib.orthogonalize(S @ Q, positive_diag=True), steps + 1


def _count(answer, S, tol, about):
    got, right = number("The count", answer(S, tol, about=about)), needed(S, tol)
    if got == right:
        return
    if math.isfinite(got) and abs(got - right) == 1:
        why = "Look first, then step: a diagonal S needs none, and the last step counts."
    else:
        why = "One step is Q of S Q. Look at all entries beside the diagonal of Q^T S Q."
    raise Wrong(f"It gives {got:g}; expected {right}.", why)


def _count_none(answer):
    S = torch.diag(torch.tensor([3.0, 2, 1], dtype=torch.float64))
    _count(answer, S, 1e-6, "diagonal")
    S[0, 2] = S[2, 0] = 0.5
    _count(answer, S, 1e-6, "columns 0 and 2 mixed")


def _count_ratios(answer):
    for ratio in (0.1, 0.5, 0.8):
        S, _ = spectrum(*(ratio**k for k in range(4)), batch=1, seed=7)
        _count(answer, S[0], 1e-4, f"each eigenvalue {ratio} of the one before")


def _count_scale(answer):
    S, _ = spectrum(1.0, 0.5, 0.2, batch=1, seed=7)
    for scale in (1e-100, 1e100):
        _count(answer, scale * S[0], 1e-4, f"S times {scale:g}")


EXERCISES = (
    Exercise(
        id="use.1",
        kind="predict",
        title="who notices a sign?",
        task="""
            A = Q R with a square A, and column 0 of Q and row 0 of R change their sign: it is still
            a QR factorization of A. Which of these quantities notice? Answer with a tuple of their
            names. In float64, so that rounding is no excuse.
        """,
        solution=noticing,
        steps=(("each of them, with both signs", _notice_as_said),),
        hints=(
            "Write Q D for Q and D R for R, with D = diag(-1, 1, 1, 1), and see where D D = I.",
            "Where Q stands together with R or with Q^T, D D = I. A square or |.| forgets D.",
            "Three of eight notice. In one of them Q meets what was seen from another basis.",
        ),
        given=(quantities,),
    ),
    Exercise(
        id="use.2",
        kind="implement",
        title="a basis that goes on (refreshed)",
        task="""
            One refresh of SOAP's bases as its authors do it, for a batch. Sort the columns of Q, so
            that q^T S q falls, and make S times the sorted columns orthonormal. The signs are such
            that no column turns round. Return the new basis, and order [B, n]: column j of it has
            been column order[j] of Q. (The optimizer needs that for its second moment.)
        """,
        solution=refreshed,
        steps=(
            ("worked by hand: diag(1, 4)", _basis_by_hand),
            ("the order", _basis_orders),
            ("eigenvectors stay", _basis_goes_on),
            ("one step from a random basis", _basis_is_one_step),
            ("cost: all matrices at once", _basis_cost),
        ),
        hints=(
            "(Q * (S @ Q)).sum(-2) is q^T S q of every column, [B, n].",
            "Q.gather(-1, order[:, None].expand_as(Q)) has the columns in that order.",
            "Then qrlib.orthogonalize(S @ sorted, positive_diag=True).",
        ),
    ),
    Exercise(
        id="use.3",
        kind="implement",
        title="any orthogonal matrix (haar)",
        task="""
            G holds independent normal numbers. Its Q is uniform over all orthogonal matrices, if
            the diagonal of R is positive. qrlib.qr(G) makes no such promise (and do not ask it for
            one: positive_diag would do the exercise). Write haar(G), with Q of every matrix, its
            signs put right.
        """,
        solution=haar,
        steps=(
            ("worked by hand", _haar_by_hand),
            ("orthonormal, triangular, positive", _haar_certificate),
        ),
        hints=(
            "G = Q R = (Q D)(D R) for D with 1 and -1 on its diagonal.",
            "D has the signs of the diagonal of R.",
            "Q * signs[..., None, :] gives a sign to every column.",
        ),
    ),
    Exercise(
        id="use.4",
        kind="implement",
        title="least squares that hold back (ridge)",
        task="""
            Where A says little about x, one adds mu^2 |x|^2 to the sum of squares. Textbooks then
            solve (A^T A + mu^2 I) x = A^T b, and lose half of the digits. Write ridge(A, b, mu)
            without A^T A, for a batch, by QR. A may be wide.
        """,
        solution=ridge,
        steps=(
            ("worked by hand: 3, 4", _ridge_by_hand),
            ("tall, square and wide", _ridge_shapes),
            ("the digits of float32", _ridge_digits),
            ("cost: all systems at once", _ridge_cost),
        ),
        hints=(
            "mu^2 |x|^2 is |mu I x - 0|^2: a sum of squares like the others.",
            "Put mu I below A, and zeros below b.",
            "qrlib.lstsq of torch.cat([A, mu I], 1); its solution is x.",
        ),
    ),
    Exercise(
        id="use.5",
        kind="break it",
        title="nearly nothing, and all turned round",
        task="""
            The basis is Q = I, and S is nearly I: nothing has to happen. Find a symmetric S [6, 6],
            a NumPy array of float64 with all entries within 0.01 of those of I, for which
            qrlib.orthogonalize(S) turns five of the six columns round. With positive_diag=True
            none is.
        """,
        solution=nearly_nothing,
        steps=(
            ("symmetric and near I", _nearly_i),
            ("five columns turn round", _turns_columns),
        ),
        hints=(
            "Which sign does beta have, when a mirror sends a column with a positive head to it?",
            "For S = I no mirror is made at all. What is the least that makes one?",
            "A small number everywhere.",
        ),
    ),
    Exercise(
        id="use.6",
        kind="measure",
        title="how many steps? (needed)",
        task="""
            From Q = I, one step of orthogonal iteration after the other, Q = Q of S Q. Count the
            steps until no entry of Q^T S Q off the diagonal is larger than tol times the largest
            one on it; 0 if that is so at once. Then try it for eigenvalues of your own: which ratio
            decides, and what does the count have to do with log(tol) over log(ratio)?
        """,
        solution=needed,
        steps=(
            ("a diagonal S", _count_none),
            ("eigenvalues that fall by a ratio", _count_ratios),
            ("tiny and huge", _count_scale),
        ),
        hints=(
            "A loop: look at Q.T @ S @ Q, and if it is not diagonal yet, one step, one more.",
            "qrlib.orthogonalize(S @ Q) is one step. Do not multiply by S twice without it.",
            "Compare the largest entry off the diagonal with tol times the largest on it.",
        ),
    ),
)
