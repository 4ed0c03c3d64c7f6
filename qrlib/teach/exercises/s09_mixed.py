"""Exercises of the chapter As few products as a matrix allows. NumPy, torch; no kernel."""

import math
from itertools import chain, combinations

import torch

from qrlib.householder import matmul
from qrlib.teach import few
from qrlib.teach.exercises.compare import array, close, finite, kind, number
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.rounded import short

# s09_mixed.1


def by_chance(cut):
    """n times the error of a column in n*eps, for a tuple of places that are cut to 11 bits.

    Places: "V in W", "C in W", "V in VZ", "Z in VZ".
    """
    # solution
    # a mirror doubles what it meets; u = 2^-11, eps = 2^-23
    one = 2 * 0.41 * 2.0**-11 / 2.0**-23
    # half of a mirror's square is its head, which is 1 and not rounded
    squares = [one**2 / 2 if place.startswith("V") else one**2 for place in cut]
    return math.sqrt(sum(squares))
    # end


def _expects(cut):
    def step(answer):
        got, right = number("It", answer(cut)), by_chance(cut)
        # what they say of 0.41
        if abs(got - right) <= 0.02 * right:
            return
        alone = [by_chance((place,)) for place in cut]
        full = 2 * 0.41 * 2.0**12
        slips = (
            (sum(alone), "Errors of both signs, independent: it is their squares that add up."),
            (full * len(cut) ** 0.5, "The head of a mirror is 1: of its square only half is cut."),
            (right / 2, "A mirror doubles what it meets: v tau v^T has the norm 2."),
            (right / 2.0**12, "In units of n*eps, times n: over eps, and n is gone."),
            (right**2, "A root of the sum of squares is the error."),
            (right / 0.41, "A rounding is off by 0.41 u in the mean square, not by u."),
        )
        hint = next((said for value, said in slips if cut and close(got, value, 0.02)), "")
        raise Wrong(f"It gives {got:.6g}; {right:.6g} is right.", hint)

    return step


# s09_mixed.2


def one_product(V, T, C):
    """Q^T C = C - V Z, Z = T^T V^T C, with one product of 11 bits for W and one for V Z.

    V: [B, m, b], T: [B, b, b], C: [B, m, n], float32. T^T W is not cut.
    """
    # solution
    v = short(V, "fp16")
    W = matmul(v.mT, short(C, "fp16"))
    # T stays as it is: it costs next to nothing, and its errors would be as large as all others
    Z = matmul(T.mT, W)
    return C - matmul(v, short(Z, "fp16"))
    # end


def _reflector(T_by=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    V = torch.randn(2, 40, 8, generator=generator).tril(-1) / 4
    V += torch.eye(40, 8)
    T = torch.randn(2, 8, 8, generator=generator).triu() * T_by
    return V, T, torch.randn(2, 40, 6, generator=generator)


def _cut_as(V, T, C, cut):
    C = C.clone()
    few.update(cut)(V, T, C)
    return C


ALL_CUTS = list(chain.from_iterable(combinations(few.PLACES, k) for k in range(6)))


def _as_one(T_by, about):
    def step(answer):
        V, T, C = _reflector(T_by)
        got = array("Q^T C", answer(V, T, C, about=about), C)
        finite("Q^T C", got, "Z may be larger than 65504: short scales each column first.")
        right = _cut_as(V, T, C, few.ONE)
        if close(got, right, 1e-5):
            return
        done = [cut for cut in ALL_CUTS if close(got, _cut_as(V, T, C, cut), 1e-5)]
        hint = "W = V^T C; Z = T^T W; C - V Z. Each factor of the first and the last is rounded."
        if done:
            missing, extra = set(few.ONE) - set(done[0]), set(done[0]) - set(few.ONE)
            hint = f"Not cut yet: {', '.join(sorted(missing))}."
            if extra:
                hint = "T and W are factors of T^T W, which is to stay accurate."
        elif close(got, _cut_as(V, T, short(C, "fp16"), few.ONE), 1e-5):
            hint = "What C - V Z starts from is C itself; only what is multiplied is short."
        off = float((got - right).abs().max() / right.abs().max())
        raise Wrong(f"It is off by {off:.1e} of the largest entry.", hint)

    return step


# s09_mixed.3


def flat(A, most):
    """Of each matrix of A [B, m, n], float32: sqrt(m) |a|_2 <= most |a|_1 for all columns? [B]

    A column of zeros has no spike; a matrix with NaN is not flat.
    """
    # solution
    # to the same power of two or not, a spike is the same; squares must not leave the range
    top = A.abs().amax(-2, keepdim=True)
    a = A / torch.where(top == 0, 1, top)
    squares, sums = (a * a).sum(-2), a.abs().sum(-2)
    return (A.shape[-2] * squares <= most**2 * sums**2).all(-1)
    # end


def _batch(k=0):
    """Five matrices of 24 x 10: normal, one spike, a zero column, NaN, all zero; times 2^k."""
    generator = torch.Generator().manual_seed(1)
    A = torch.randn(5, 24, 10, generator=generator)
    A[1, 5, 7] = 1000
    A[2, :, 3] = 0
    A *= 2.0**k
    A[3, 2, 9] = math.nan
    A[4] = 0
    return A


NAMES = ("normal", "one large entry", "a column of zeros", "NaN", "all zero")
FLAT = (True, False, True, False, True)


def _says(k, about):
    def step(answer):
        A = _batch(k)
        got = answer(A, 2.0, about=about)
        array("flat", got, torch.zeros(5, dtype=torch.bool))
        for name, mine, right in zip(NAMES, got.tolist(), FLAT):
            if mine != right:
                hints = {
                    "one large entry": "Column by column: one is enough.",
                    "a column of zeros": "0 <= 0 holds; 0 / 0 does not.",
                    "all zero": "0 <= 0 holds; 0 / 0 does not.",
                    "NaN": "Ask for <=, which NaN never is; not for the opposite of >.",
                }
                hint = hints.get(name, "sqrt(m) |a|_2 against most |a|_1, in each column.")
                if k:
                    hint = "Squares of numbers like 2^100 are in no float32: scale first."
                raise Wrong(f"The matrix {name!r}, times 2^{k}: it says {mine}.", hint)

    return step


def _limit(answer):
    A = torch.zeros(2, 16, 1)
    A[0, :4], A[1, :3] = 1, 1
    got = answer(A, 2.0, about="columns of 4 ones and of 3, of 16")
    array("flat", got, torch.zeros(2, dtype=torch.bool))
    if got.tolist() != [True, False]:
        raise Wrong(
            f"Four ones of 16 have a spike of exactly 2, three have more: it says {got.tolist()}.",
            "sqrt(16) * sqrt(4) = 8 and 2 * 4 = 8: equal is flat enough.",
        )


# s09_mixed.4

SIDE = 512


def hidden():
    """A [512, 512], float32: flat as a whole, and one product fails the gate."""
    # solution
    A = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    # not the first: a column that is never updated is never wrong
    A[:, 400] = 0
    A[7, 400] = SIDE
    return A
    # end


def whole(A):
    """sqrt(m n) |A|_F / sum |a|: the spike of a matrix, if all its columns were one."""
    A = A.double()
    return float(A.numel() ** 0.5 * A.norm() / A.abs().sum())


def _matrix(answer):
    if not isinstance(answer, torch.Tensor) or tuple(answer.shape) != (SIDE, SIDE):
        raise Wrong(f"A must be a torch tensor [{SIDE}, {SIDE}]; got {kind(answer)}.")
    array("A", answer, torch.zeros(SIDE, SIDE))
    finite("A", answer, "It must be a matrix of ordinary numbers.")
    return answer.detach()


def _let_through(answer):
    found = whole(_matrix(answer))
    if not found <= 2:
        raise Wrong(
            f"Its spike as a whole is {found:.3g}; it would not be let through.",
            "One column alone is only a small part of a matrix.",
        )


def _ratio(A, cut):
    A = A[None]
    return float(few.errors(A, *few.geqrf(A, cut)).factor)


def _fails(answer):
    A = _matrix(answer)
    found = _ratio(A, few.ONE)
    if not found > 20:
        worst = few.spikes(A[None])[0]
        hint = f"Its largest spike is {float(worst.max()):.3g}, in column {int(worst.argmax())}."
        if worst.max() > 8:
            hint += " Is that column updated at all, and is its sum among the large ones?"
        raise Wrong(f"One product leaves {found:.3g}; the gate is 20.", hint)


def _not_hopeless(answer):
    found = _ratio(_matrix(answer), ())
    if not found <= 1:
        raise Wrong(f"Three products leave {found:.3g}.", "It must be the cut that harms.")


# s09_mixed.5


def share(m, products):
    """The share of T in the arithmetic of an update by two panels of 64, for one column of C.

    m: rows. products: of fp16 for W and for V Z, each. T1, T2 and V2^T V1: a product of 64 x 64
    numbers with a column each, in tf32x3.
    """
    # three terms at half the rate of float16
    small = 3 * 64 * 64 * 3 * 2
    large = products * 2 * 128 * m
    return small / (small + large)


def _shares(m, products):
    def step(answer):
        got, right = number("The share", answer(m, products)), share(m, products)
        if abs(got - right) <= 1e-9:
            return
        small, large = 3 * 64 * 64 * 6, products * 256 * m
        slips = (
            (small / large, "A share of all of it: T is in it, too."),
            (small / (small + large / 2), "Two products over all rows: W, and V Z."),
            (small / 2 / (small / 2 + large), "tf32 has half the rate of fp16."),
            (small / 3 / (small / 3 + large), "tf32x3 is three products."),
            (small / 6 / (small / 6 + large), "tf32x3: three products, at half the rate."),
            (1 - right, "That is the share of W and V Z."),
        )
        hint = next((said for value, said in slips if abs(got - value) <= 1e-9), "")
        raise Wrong(f"For m = {m}, {products} products it gives {got:.4g}; {right:.4g}.", hint)

    return step


EXERCISES = (
    Exercise(
        id="s09_mixed.1",
        kind="predict",
        title="several places (by_chance)",
        task="""
            Cut to 11 bits a number is off by 0.41 u of it in the mean square, u = 2^-11. Write
            by_chance(cut): n times the error of a column, in units of n*eps with eps = 2^-23, if
            the places in the tuple `cut` are cut: "V in W", "C in W", "V in VZ", "Z in VZ". First
            say in your head: how much worse are four places than one?
        """,
        solution=by_chance,
        steps=(
            ("nothing", _expects(())),
            ("C in W", _expects(("C in W",))),
            ("V in VZ", _expects(("V in VZ",))),
            ("two of one kind", _expects(("C in W", "Z in VZ"))),
            ("both V", _expects(("V in W", "V in VZ"))),
            ("all four", _expects(few.ONE)),
        ),
        hints=(
            "One mirror: |v| tau |v| = 2, and it is applied to a column n times, ever shorter.",
            "One place alone: 2 * 0.41 u / eps for C and Z. For V by the root of 2 less.",
            "math.sqrt of a sum over cut: one**2 / 2 for a V, one**2 for the others.",
        ),
    ),
    Exercise(
        id="s09_mixed.2",
        kind="implement",
        title="an update by one product (one_product)",
        task="""
            Write one_product(V, T, C): C - V Z with Z = T^T W and W = V^T C. V and C have 11 bits
            in W, V and Z have 11 bits in V Z, and T^T W stays in float32. C itself, from which V Z
            is taken away, is not rounded. At hand:

                from qrlib.householder import matmul
                from qrlib.teach.rounded import short

            matmul multiplies in float32, and short(x, "fp16") rounds to 11 bits, each column by a
            power of two of its own, so that none is out of range.
        """,
        solution=one_product,
        steps=(
            ("an update", _as_one(1.0, "V [2, 40, 8], C [2, 40, 6]")),
            ("a large T", _as_one(1e6, "the same, T a million times as large")),
        ),
        hints=(
            "V is rounded once, and used twice.",
            "Round C for W, and Z for V Z; neither T nor W.",
            "v = short(V, 'fp16'); W = matmul(v.mT, short(C, 'fp16')); Z = matmul(T.mT, W); ...",
        ),
    ),
    Exercise(
        id="s09_mixed.3",
        kind="implement",
        title="who has no spikes (flat)",
        task="""
            Write flat(A, most) for A [B, m, n], float32: for each matrix, is
            sqrt(m) |a|_2 <= most |a|_1 for all its columns a? The answer is a torch tensor of
            bools, [B]. A column of zeros has no spike. A matrix with NaN is not flat. And flat(A)
            is flat(2^k A), for k from -100 to 100.
        """,
        solution=flat,
        steps=(
            ("five matrices", _says(0, "normal, a spike, a zero column, NaN, zero")),
            ("just at the limit", _limit),
            ("times 2^100", _says(100, "all of it times 2^100")),
            ("times 2^-100", _says(-100, "all of it times 2^-100")),
        ),
        hints=(
            "Without a division: m * (sum of squares) <= most^2 * (sum of sizes)^2.",
            "Divide each column by its largest entry first, and one of zeros by 1.",
            "(m * squares <= most**2 * sums**2).all(-1), with sums over dimension -2.",
        ),
    ),
    Exercise(
        id="s09_mixed.4",
        kind="break it",
        title="flat as a whole (hidden)",
        task="""
            Somebody asks once a matrix instead of once a column: sqrt(m n) |A|_F <= 2 sum |a_ij|.
            Give A [512, 512], float32, a torch tensor of ordinary numbers, that he lets through and
            for which one product leaves a factor residual above the gate, 20; three products must
            leave less than 1. The judge is few.geqrf(A[None], few.ONE).
        """,
        solution=hidden,
        steps=(
            ("it is let through", _let_through),
            ("one product fails", _fails),
            ("three products pass", _not_hopeless),
        ),
        hints=(
            "One bad column of 512 hardly shows in a sum over the whole matrix.",
            "Its spike is as large as can be if it has a single entry. How large must that be?",
            "The gate divides by the largest column sum, about 0.8 * 512. Not in the first column.",
        ),
    ),
    Exercise(
        id="s09_mixed.5",
        kind="measure",
        title="what T takes (share)",
        task="""
            An update by two panels of 64 columns does, for a column of C with m rows: W and V Z
            with both panels, in so many products of fp16 each; and with T1, T2 and V2^T V1 a
            product of 64 x 64 numbers and a column each, in tf32x3: three products, at half the
            rate of fp16.
            Write share(m, products): the share of these three in the time of all, if arithmetic
            were all of it.
        """,
        solution=share,
        steps=(
            ("512 rows, three products", _shares(512, 3)),
            ("512 rows, one product", _shares(512, 1)),
            ("4096 rows, one product", _shares(4096, 1)),
            ("128 rows, one product", _shares(128, 1)),
        ),
        hints=(
            "Count multiply-adds, and weigh them by what one takes in time.",
            "W and V Z: 128 m multiply-adds each, times the products.",
            "3 * 64 * 64 multiply-adds, each worth 6 of fp16.",
        ),
    ),
)
