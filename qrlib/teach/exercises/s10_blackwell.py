"""Exercises of the chapter The kernel that is asked for. NumPy; no kernel."""

import math

import numpy as np

from qrlib.teach.exercises.compare import array, certified, close, finite, kind, number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong

# s10_blackwell.1


def turns(words):
    """How many turns shared memory takes for the words that the lanes of a warp ask for.

    words: a list of addresses, in words of 4 bytes, one a lane. There are 32 banks; a bank gives
    one word a turn, to all lanes that want it.
    """
    # solution
    banks = {}
    for word in words:
        # a set: lanes that want the same word are served together
        banks.setdefault(word % 32, set()).add(word)
    return max(map(len, banks.values()), default=0)
    # end


def _takes(words, what, hint):
    def step(answer):
        got, right = number("turns", answer(list(words), about=what)), turns(words)
        if got != right:
            raise Wrong(f"For {what} it gives {got:g}; {right} is right.", hint)

    return step


# s10_blackwell.2


def one_mirror(P, j):
    """Mirror j of a matrix whose rows are in registers. Returns (P, tau).

    P: a list of m arrays [n], one a row, float64; lane q has entry q of each. On the left of column
    j, and above row j, all is done; above row j + 1 of column j comes beta, below it v.
    """
    # solution
    x = [row[j] for row in P[j + 1 :]]
    sigma, alpha = sum(entry * entry for entry in x), P[j][j]
    if sigma == 0:
        return list(P), 0.0
    beta = -math.copysign(math.sqrt(alpha * alpha + sigma), alpha)
    scale, tau = 1 / (alpha - beta), 1 - alpha / beta
    q = np.arange(len(P[j]))
    # v^T P by every lane for its own column: no lane waits for another
    z = P[j] + scale * sum(entry * row for entry, row in zip(x, P[j + 1 :]))
    top = np.where(q > j, P[j] - tau * z, np.where(q == j, beta, P[j]))
    below = [
        np.where(q > j, row - entry * scale * tau * z, np.where(q == j, entry * scale, row))
        for entry, row in zip(x, P[j + 1 :])
    ]
    return [*P[:j], top, *below], tau
    # end


def _rows(m, n, seed=0):
    return list(np.random.default_rng(seed).standard_normal((m, n)))


def _pair(found, m, n):
    P, tau = several(found, ("P", "tau"))
    if not isinstance(P, (list, tuple)) or len(P) != m:
        raise Wrong(f"P must be a list of {m} rows; got {kind(P)}.")
    for i, row in enumerate(P):
        array(f"P[{i}]", row, np.zeros(n))
        finite(f"P[{i}]", row, "Is something divided by zero?")
    return list(P), number("tau", tau)


def _mirror_is_right(j):
    def step(answer):
        P = _rows(5, 4)
        for done in range(j):
            P, _ = one_mirror(P, done)
        got, tau = _pair(answer([row.copy() for row in P], j, about=f"5 x 4, j = {j}"), 5, 4)
        right, right_tau = one_mirror(P, j)
        for i, (mine, its) in enumerate(zip(got, right)):
            if not close(mine, its, 1e-9):
                q = int(np.argmax(np.abs(mine - its)))
                hint = "Row j - tau z; the others take v_i tau z, v_i = scale x_i."
                if i < j or q < j:
                    hint = "It is done, and stays: rows above j, and columns left of j."
                elif q == j:
                    hint = "In column j: beta on the diagonal, and scale x_i below it."
                if i >= j and close(np.abs(mine), np.abs(its), 1e-9):
                    hint = "The sign of beta is against that of alpha."
                raise Wrong(f"P[{i}][{q}] is {mine[q]:.6g}; expected {its[q]:.6g}.", hint)
        if not close(tau, right_tau, 1e-9):
            raise Wrong(f"tau is {tau:.6g}; expected {right_tau:.6g}.", "tau = 1 - alpha / beta.")

    return step


def _zero_tail(answer):
    P = [np.array([-2.0, 1.0]), np.array([0.0, 5.0]), np.array([0.0, 7.0])]
    got, tau = _pair(answer([row.copy() for row in P], 0, about="zeros below the diagonal"), 3, 2)
    if tau != 0 or any(not np.array_equal(a, b) for a, b in zip(got, P)):
        raise Wrong(f"Nothing is to be done: tau must be 0 and P as it was; tau is {tau:g}.",
                    "If sigma is zero there is no mirror.")  # fmt: skip


def _all_mirrors(answer):
    A = np.stack(_rows(7, 6, seed=3))
    P, taus = list(A), []
    for j in range(6):
        P, tau = _pair(answer(P, j, about="mirror after mirror, 7 x 6"), 7, 6)
        taus.append(tau)
    certified(A.astype(np.float32), np.stack(P).astype(np.float32), np.array(taus, np.float32))


# s10_blackwell.3


def cycles(counts):
    """Cycles that a quarter of an SM takes at least for so many instructions of a warp.

    counts: {"fp32": a, "half": b, "shuffle": c, "root": d}, numbers of instructions.
    """
    # a quarter of 128, 64, 32 and 16 lanes a cycle, for 32 lanes each
    pipes = {"fp32": 1, "half": 2, "shuffle": 4, "root": 8}
    busy = (count * pipes[what] for what, count in counts.items())
    # and it issues one instruction a cycle, whatever it is
    return max(sum(counts.values()), *busy)


def _loop(counts, what):
    def step(answer):
        got, right = number("cycles", answer(dict(counts), about=what)), cycles(counts)
        if got == right:
            return
        pipes = {"fp32": 1, "half": 2, "shuffle": 4, "root": 8}
        busy = [count * pipes[name] for name, count in counts.items()]
        slips = (
            (sum(busy), "Units work beside each other: the busiest decides."),
            (sum(counts.values()), "A unit of half the rate has half the lanes: 2 cycles each."),
            (max(busy), "All of them together need their turns to be issued, too."),
            (right / 4, "All warps of a quarter; the SM has four of them."),
            (right * 32, "A warp's 32 lanes are one instruction."),
        )
        hint = next((said for value, said in slips if got == value), "")
        raise Wrong(f"For {what} it gives {got:g}; {right:g} is right.", hint)

    return step


# s10_blackwell.4


def sign_lost():
    """A column [m], float32, whose beta has another sign when its head is picked over +0.0."""
    # solution
    # -0.0 + 0.0 is 0.0: only a head of -0.0 can tell what it was added to
    return np.array([-0.0, 1.0], np.float32)
    # end


def beta_of(x, nothing):
    """beta of a column, whose head is picked as a sum of itself and of `nothing` elsewhere."""
    x = np.asarray(x, np.float32)
    alpha = np.float32(nothing)
    for i, entry in enumerate(x):
        alpha = alpha + (entry if i == 0 else np.float32(nothing))
    sigma = float(np.sum(x[1:].astype(np.float64) ** 2))
    if sigma == 0:
        return alpha
    return np.float32(-math.copysign(math.sqrt(float(alpha) ** 2 + sigma), alpha))


def _a_column(answer):
    if not isinstance(answer, np.ndarray) or answer.ndim != 1 or len(answer) < 2:
        raise Wrong(f"It must be a NumPy array [m], m >= 2; got {kind(answer)}.")
    array("the column", answer, np.zeros(len(answer), np.float32))
    finite("the column", answer, "Ordinary numbers will do.")
    return answer


def _differs(answer):
    x = _a_column(answer)
    right, wrong = beta_of(x, -0.0), beta_of(x, 0.0)
    if np.signbit(right) == np.signbit(wrong):
        hint = "What is the sum of -0.0 and 0.0?"
        if x[0] == 0 and np.signbit(x[0]):
            hint = "With zeros below there is no mirror, and beta is alpha."
        raise Wrong(f"Both give a beta of {float(right):g}.", hint)


def _has_a_mirror(answer):
    x = _a_column(answer)
    if not np.any(x[1:]):
        raise Wrong("Below its head it has zeros only: there is no mirror.", "Put a 1 there.")


# s10_blackwell.5


def starts(launches, us):
    """(microseconds a launch, microseconds of all the rest) of the same work in more launches.

    launches, us: lists: in so many launches it took so long.
    """
    # solution
    A = np.stack([np.asarray(launches, float), np.ones(len(launches))], 1)
    each, rest = np.linalg.lstsq(A, np.asarray(us, float), rcond=None)[0]
    return float(each), float(rest)
    # end


def _fit(launches, us, what):
    def step(answer):
        got = several(answer(list(launches), list(us), about=what), ("each", "rest"))
        each, rest = (number(name, value) for name, value in zip(("each", "rest"), got))
        right = starts(launches, us)
        if close(each, right[0], 1e-6) and close(rest, right[1], 1e-6):
            return
        hint = "A straight line: us = each * launches + rest, least squares."
        if close(each, right[1], 1e-6) and close(rest, right[0], 1e-6):
            hint = "The other way round: first what a launch takes."
        elif close(each, sum(us) / sum(launches), 1e-6):
            hint = "There is work besides the starts: a line need not go through zero."
        elif close(each, (us[-1] - us[0]) / (launches[-1] - launches[0]), 1e-6):
            hint = "Two points are a line, but all of them are measurements."
        raise Wrong(f"{what}: it gives {each:.6g} and {rest:.6g}; {right[0]:.6g} and "
                    f"{right[1]:.6g} are right.", hint)  # fmt: skip

    return step


EXERCISES = (
    Exercise(
        id="s10_blackwell.1",
        kind="predict",
        title="turns at the banks (turns)",
        task="""
            Shared memory has 32 banks: word k, of 4 bytes, is in bank k mod 32. In a turn a bank
            gives one word, to all lanes that want it. Write turns(words): how many turns it takes
            until all lanes of a warp have the words they ask for, a list of addresses in words.
            First say in your head: 32 lanes with the words 0, 33, 66, ...?
        """,
        solution=turns,
        steps=(
            ("a row", _takes(range(32), "words 0 to 31", "32 words in 32 banks: one turn.")),
            ("a step of 2", _takes(range(0, 64, 2), "words 0, 2, 4, ...", "The bank is k mod 32.")),
            ("one word", _takes([7] * 32, "32 times word 7", "One word is given to all at once.")),
            ("a step of 32", _takes(range(0, 1024, 32), "words 0, 32, 64, ...",
                                    "All of them are in bank 0.")),
            ("a step of 33", _takes(range(0, 1056, 33), "words 0, 33, 66, ...",
                                    "33 k mod 32 = k mod 32.")),
            ("uneven", _takes([0, 32, 64, 1, 33, 5, 5, 64], "words 0, 32, 64, 1, 33, 5, 5, 64",
                              "The bank with the most different words decides.")),
        ),
        hints=(
            "Put every word into its bank.",
            "Lanes that want the same word do not wait for each other: count different words.",
            "The largest of: len(set of the words w with w % 32 == bank).",
        ),
    ),
    Exercise(
        id="s10_blackwell.2",
        kind="implement",
        title="a mirror in lanes (one_mirror)",
        task="""
            Write one_mirror(P, j) for a list P of m rows, each a NumPy array [n] of float64:
            make mirror j from column j below row j, and apply it to the columns on its right.
            Return the new list and tau. Every lane knows x, the entries of column j below row j.
            For z = v^T P it needs its own column and one pass:

                z = P[j] + scale * (sum of x_i P[i]),  scale = 1 / (alpha - beta)

            Column j gets beta and v = scale x. If x is zero, nothing changes and tau is 0.
        """,
        solution=one_mirror,
        steps=(
            ("the first mirror", _mirror_is_right(0)),
            ("the third mirror", _mirror_is_right(2)),
            ("nothing to do", _zero_tail),
            ("a whole matrix", _all_mirrors),
        ),
        hints=(
            "x = [row[j] for row in P[j + 1:]] is what the shuffles send. Then sigma and larfg.",
            "beta = -copysign(sqrt(alpha^2 + sigma), alpha), tau = 1 - alpha / beta.",
            "np.where(q > j, row - e * scale * tau * z, np.where(q == j, e * scale, row))",
        ),
    ),
    Exercise(
        id="s10_blackwell.3",
        kind="predict",
        title="which unit is busiest (cycles)",
        task="""
            A quarter of an H200's SM issues one instruction of a warp a cycle. It has 32 lanes for
            FP32, 16 for comparing and selecting, 8 for shuffles and 4 for roots; a warp has 32.
            Write cycles(counts): how many cycles a loop takes at least, if counts gives its
            instructions, as in {"fp32": 300, "half": 100, "shuffle": 40, "root": 2}. Units work
            beside each other.
        """,
        solution=cycles,
        steps=(
            ("arithmetic", _loop({"fp32": 300, "half": 0, "shuffle": 0, "root": 0}, "300 FP32")),
            ("masks", _loop({"fp32": 100, "half": 300, "shuffle": 0, "root": 0},
                            "100 FP32 and 300 of half the rate")),
            ("shuffles", _loop({"fp32": 60, "half": 10, "shuffle": 30, "root": 0},
                               "60 FP32, 10 of half the rate, 30 shuffles")),
            ("all of them", _loop({"fp32": 300, "half": 100, "shuffle": 40, "root": 2},
                                  "300 FP32, 100 of half the rate, 40 shuffles, 2 roots")),
            ("roots", _loop({"fp32": 10, "half": 0, "shuffle": 0, "root": 9}, "10 FP32, 9 roots")),
        ),
        hints=(
            "An instruction is 32 lanes wide. How many cycles does a unit with 8 lanes take?",
            "1, 2, 4 and 8 cycles. The busiest unit decides, or the issue of all of them.",
            "max(sum(counts.values()), 1 * fp32, 2 * half, 4 * shuffle, 8 * root)",
        ),
    ),
    Exercise(
        id="s10_blackwell.4",
        kind="break it",
        title="a sign that is lost (sign_lost)",
        task="""
            A kernel has no index for rows, so it picks the head of a column as a sum: of the head
            itself, and of a zero from every other row. Somebody writes 0.0 for that zero, and it
            passes all of his tests. Give a column [m], a NumPy array of float32 with something
            below its head, for which beta comes out with the wrong sign. (LAPACK's sign is that of
            the bit.)
        """,
        solution=sign_lost,
        steps=(("beta changes its sign", _differs), ("there is a mirror", _has_a_mirror)),
        hints=(
            "For which number does adding 0.0 change anything at all?",
            "-0.0 has a sign bit, and LAPACK looks at the bit: beta is +1 for [-0.0, 1].",
            "np.array([-0.0, 1.0], np.float32)",
        ),
    ),
    Exercise(
        id="s10_blackwell.5",
        kind="measure",
        title="what a start costs (starts)",
        task="""
            Cut the same work into more and more launches and time it: what grows is the starts.
            Write starts(launches, us): microseconds a launch, and microseconds of all the rest, by
            a straight line through all measurements, least squares.
        """,
        solution=starts,
        steps=(
            ("on a line", _fit((1, 2, 4), (13.0, 16.0, 22.0), "1, 2, 4 launches: 13, 16, 22 us")),
            ("nearly on a line", _fit((1, 8, 16, 64), (12.0, 31.0, 58.5, 202.0),
                                      "1, 8, 16, 64 launches: 12, 31, 58.5, 202 us")),
        ),
        hints=(
            "us = each * launches + rest.",
            "np.polyfit, or np.linalg.lstsq with a column of ones.",
            "np.polyfit(launches, us, 1) gives the slope and what is left.",
        ),
    ),
)  # fmt: skip
