"""Wrong answers to the exercises of measuring, each with words of the message that it gets."""

import statistics
from math import exp, log

import numpy as np
import torch

from qrlib.teach.exercises import measure as chapter
from qrlib.teach.exercises.measure import passes
from qrlib.teach.tricks import honest


def five(**change):
    """The right answer with some numbers changed: n1=60 changes number 1."""
    answer = chapter.clocks()
    for name, value in change.items():
        answer[int(name[1:])] = value
    return answer


def rounds(ratio, sure=None):
    """told with another ratio or another verdict."""

    def told(a, b):
        low, _, high = np.quantile(a / b, (0.25, 0.5, 0.75))
        return float(ratio(a, b)), bool(low > 1 or high < 1) if sure is None else bool(sure(a, b))

    return told


def middle(a, b):
    return np.median(a / b)


def apart(a, b):
    """The quartiles of the times themselves do not overlap."""
    la, ha = np.quantile(a, (0.25, 0.75))
    lb, hb = np.quantile(b, (0.25, 0.75))
    return la > hb or ha < lb


def every_round(a, b):
    return (a > b).all() or (a < b).all()


def gate(*, count=3, again=False, kept=True, late=True, which=slice(None), same=True, careful=True):
    """accepts with one thing changed."""

    def accepts(kernel, fresh):
        held, A = [], None
        for _ in range(count):
            A = A if again and A is not None else fresh()
            question = A.clone() if kept else A
            if careful:
                try:
                    H, tau = kernel(A)
                except Exception:
                    return False
            else:
                H, tau = kernel(A)
            if not late and not passes(question, H, tau):
                return False
            held.append((question, A, H, tau))
        return all(
            (torch.equal(Q, A) or not same) and (not late or passes(Q, H, tau))
            for Q, A, H, tau in held[which]
        )

    return accepts


def by_lapack(kernel, fresh):
    """Entry by entry, whatever the dtype is."""
    held = []
    for _ in range(3):
        A = fresh()
        kept = A.clone()
        try:
            H, tau = kernel(A)
        except Exception:
            return False
        held.append((kept, A, H, tau))
    return all(
        torch.equal(Q, A)
        and torch.allclose(H.float(), honest(Q).H, atol=1e-4)
        and torch.allclose(tau.float(), honest(Q).tau, atol=1e-4)
        for Q, A, H, tau in held
    )


class Known:
    """Remembers by the contents: right, and no faster on what it has not seen."""

    def __init__(self):
        self.known = {}

    def __call__(self, A):
        key = A.numpy().tobytes()
        if key not in self.known:
            self.known[key] = honest(A)
        return self.known[key]


def twice(A):
    honest(A)
    return honest(A)


def nothing(A):
    return A.clone(), A.new_zeros(A.shape[:2])


def short(A):
    H, tau = honest(A)
    return H, tau[:, :-1]


def in_place(A):
    A.copy_(torch.eye(A.shape[-1]).expand_as(A))
    return nothing(A)


def ratios(stopwatch, *, of=statistics.median, count=9, times=500):
    return [
        of([stopwatch() for _ in range(count)]) / of([stopwatch() for _ in range(count)])
        for _ in range(times)
    ]


def by(what, **options):
    return lambda stopwatch: float(what(np.log(ratios(stopwatch, **options))))


def within(share):
    return lambda logs: exp(np.quantile(np.abs(logs), share))


WRONG = {
    "measure.1": {
        "the work": (five(n0=60), "stops when the last one is launched"),
        "no launches": (five(n1=60), "The GPU waits for the host, too"),
        "one after the other": (five(n1=92), "the two overlap"),
        "from the first kernel": (five(n1=63), "The start event is there before the first kernel"),
        "gaps in a queue": (five(n2=71), "no gaps"),
        "the other stream too": (five(n3=71), "An event sees its own stream"),
        "until all is idle": (five(n3=62), "An event sees its own stream"),
        "in turn after all": (five(n4=71), "does not wait for the one before it"),
        "idle but for one": (five(n4=41), "The host waits for every stream"),
        "four numbers": (chapter.clocks()[1:], "a list of 5 numbers"),
        "words": (["a"] * 5, "Number 1 must be a number"),
        "NaN": (five(n1=float("nan")), "is not what it shows"),
    },
    "measure.2": {
        "half": ((0.5, 0.5, 1), "then the twelfth root"),
        "a mean of sums": ((1 - 0.5 / 12, 2 ** (-1 / 3), 16), "these multiply"),
        "before over after": ((2 ** (1 / 12), 2 ** (1 / 3), 16), "After over before"),
        "percents": ((5.61, 20.6, 16), "not percents"),
        "what is gone": ((0.0561, 0.206, 16), "not what is gone"),
        "all shapes once": ((2 ** (-1 / 12), 2 ** (-1 / 12), 16), "How often does this shape"),
        "the first four times": ((2 ** (-1 / 3), 2 ** (-1 / 3), 16), "How often does this shape"),
        "four times": ((2 ** (-1 / 12), 2 ** (-1 / 3), 4), "2 * 2 * 2 * 2"),
        "eight times": ((2 ** (-1 / 12), 2 ** (-1 / 3), 8), "2 * 2 * 2 * 2"),
        "never enough": ((2 ** (-1 / 12), 2 ** (-1 / 3), float("inf")), "is not worth as much"),
        "two numbers": ((0.944, 0.794), "3 things"),
    },
    "measure.3": {
        "b over a": (rounds(lambda a, b: np.median(b / a)), "Faster is less time"),
        "a ratio of medians": (
            rounds(lambda a, b: np.median(a) / np.median(b)),
            "take the ratio of each round first",
        ),
        "a ratio of means": (
            rounds(lambda a, b: a.mean() / b.mean()),
            "ratio of each round first, then its median",
        ),
        "a mean of ratios": (
            rounds(lambda a, b: np.median(a / b) if len(a) == 12 else (a / b).mean()),
            "One bad moment decides a mean",
        ),
        "the best round": (
            rounds(lambda a, b: np.median(a / b) if len(a) == 12 else (a / b).max()),
            "The best round of seven is luck",
        ),
        "quartiles of the times": (rounds(middle, apart), "Take the quartiles of the ratios"),
        "every round": (rounds(middle, every_round), "Quartiles, not the smallest and largest"),
        "always": (rounds(middle, lambda a, b: True), "one above: the rounds do not tell"),
        "never": (rounds(middle, lambda a, b: False), "both quartiles are above 1"),
        "faster only": (
            rounds(middle, lambda a, b: np.quantile(a / b, 0.25) > 1),
            "Slower can be told, too",
        ),
        "a ratio alone": (lambda a, b: float(middle(a, b)), "It must give 2 things"),
        "a word": (lambda a, b: (1.25, "yes"), "must be True or False"),
    },
    "measure.4": {
        "once": (gate(count=1), "calls the kernel 1 times"),
        "one batch": (gate(again=True), "each call needs one of its own"),
        "with what A has become": (gate(kept=False, same=False), "Keep a copy of A"),
        "at once": (gate(late=False), "when the last call is over"),
        "the first of three": (gate(which=slice(1), same=True), "gives its first result again"),
        "the first two": (gate(which=slice(2)), "always in the same memory"),
        "A may be spoilt": (gate(same=False), "torch.equal(A, its copy) tells"),
        "it may raise": (gate(careful=False), "RuntimeError: out of shared memory"),
        "anything": (lambda kernel, fresh: bool([kernel(fresh()) for _ in "123"]), "its first"),
        "nothing": (lambda kernel, fresh: False, "It refuses a kernel that is right"),
        "LAPACK's entries": (by_lapack, "returns float64"),
        "a count": (lambda kernel, fresh: 3, "must return True or False"),
    },
    "measure.5": {
        "honest": (honest, "twice is asked for"),
        "twice the work": (twice, "twice is asked for"),
        "H = A": (nothing, "Even careless sees"),
        "by its contents": (Known(), "finds nothing wrong with it"),
        "one tau missing": (short, "A kernel tau must be [4, 128]"),
        "the identity": (in_place, "changed its input A"),
        "H alone": (lambda A: honest(A).H, "must return (H, tau)"),
    },
    "measure.6": {
        "the largest": (by(lambda logs: exp(abs(logs).max())), "about the largest"),
        "half of them": (by(within(0.5)), "Half of the ratios"),
        "the spread": (by(lambda logs: exp(logs.std())), "about the spread"),
        "one side": (by(lambda logs: exp(np.quantile(logs, 0.9))), "Both sides count"),
        "single times": (by(within(0.9), count=1), "for single times it is worse"),
        "means": (by(within(0.9), of=statistics.mean), "moves their mean"),
        "the logarithm": (by(lambda logs: log(within(0.9)(logs))), "r must be 1 or more"),
        "one more than it is": (by(lambda logs: 1 + within(0.9)(logs)), "has r = 1; got 2"),
        "infinity": (lambda stopwatch: float("inf"), "r must be 1 or more; got inf"),
    },
}
