"""Exercises of the chapter Measure, submit, go on. torch, where a kernel is timed."""

import math
from statistics import median
from time import perf_counter

import numpy as np
import torch

from qrlib.bench.judge import Fault, pair
from qrlib.bench.measure import Protocol, measure
from qrlib.certificate import certify
from qrlib.compact import QR
from qrlib.matrices import BENCHMARK_CASES, Case, make
from qrlib.teach.exercises.compare import close, kind, number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.timeline import seen, timeline
from qrlib.teach.tricks import careless, honest

# measure.1

KERNELS, LAUNCH, BUSY = (5, 20, 5, 30), 8, 500
ASKED = (
    "the host's clock, that waits for nothing",
    "events",
    "events, the GPU kept busy until all is launched",
    "events, the last kernel in another stream",
    "the host's clock until the GPU is idle, the last kernel in another stream",
)


def clocks():
    """What five clocks show, in us, in the order of the task: five numbers."""
    return [32, 71, 60, 41, 62]


def _shown():
    """What they show, from the timeline, and the slips that can be told."""
    plain = seen(timeline(KERNELS, LAUNCH))
    queued = seen(timeline(KERNELS, LAUNCH, busy=BUSY), busy=BUSY)
    aside = seen(timeline(KERNELS, LAUNCH, elsewhere=(3,)))
    pairs = plain["host"], plain["events"], queued["events"], aside["events"], aside["idle"]
    return [to - start for start, to in pairs]


_FIRST, _WORK = LAUNCH, sum(KERNELS)
_SLIPS = (
    {_WORK: "It does not wait for the kernels: it stops when the last one is launched."},
    {
        _WORK: "The GPU waits for the host, too: for the first kernel, and after the first one.",
        len(KERNELS) * LAUNCH + _WORK: "The host launches while the GPU works: the two overlap.",
        71 - _FIRST: "The start event is there before the first kernel is: the launch is in it.",
    },
    {71: "Behind other work the kernels stand in a queue when the first one begins: no gaps."},
    {
        71: "An event sees its own stream, and the last kernel is not in it.",
        62: "An event sees its own stream, and the last kernel is not in it.",
    },
    {
        71: "In another stream it does not wait for the one before it.",
        41: "The host waits for every stream.",
    },
)


def _five(answer):
    if isinstance(answer, np.ndarray):
        answer = answer.tolist()
    if not isinstance(answer, (list, tuple)) or len(answer) != len(ASKED):
        raise Wrong(f"It must be a list of {len(ASKED)} numbers; got {kind(answer)}.")
    return [number(f"Number {k + 1}", value) for k, value in enumerate(answer)]


def _shows(k):
    def step(answer):
        said, right = _five(answer)[k], _shown()[k]
        if not close(said, right, 1e-6):
            raise Wrong(
                f"{said:.6g} us is not what it shows.",
                _SLIPS[k].get(said, "Draw the two lines, host and GPU, and the bars on them."),
            )

    return step


# measure.2


def worth():
    """(score after over score before) for 20 x 32 halved and 640 x 512 halved; how many times."""
    return 2 ** (-1 / 12), 2 ** (-4 / 12), 16


def _score(shape, faster):
    """The score over what it was, when all cases of one shape are so many times as fast."""
    count = sum((case.batch, case.n) == shape for case in BENCHMARK_CASES)
    return faster ** (-count / len(BENCHMARK_CASES))


def _three(answer):
    names = "the first factor", "the second factor", "how many times"
    return [number(name, value) for name, value in zip(names, several(answer, names))]


def _halved(k, shape):
    def step(answer):
        said, right = _three(answer)[k], _score(shape, 2)
        if close(said, right, 2e-3):
            return
        one, four = 2 ** (-1 / 12), 2 ** (-4 / 12)
        slips = (
            (1 / right, "The score is a time: it goes down. After over before."),
            (100 * (1 - right), "A factor, not percents: what is left, over what there was."),
            (1 - right, "What is left over what there was, not what is gone."),
            (0.5, "One factor of two among the twelve, then the twelfth root."),
            (1 - 0.5 / 12, "That is a mean of twelve numbers that are added; these multiply."),
            (one if right != one else four, "How often does this shape occur among the 12?"),
        )
        hint = next((said_ for slip, said_ in slips if close(said, slip, 2e-3)), "")
        raise Wrong(f"The score does not change by {said:.4g}.", hint)

    return step


def _as_much(answer):
    said = _three(answer)[2]
    if not close(said, 16, 1e-3):
        hint = "x^(1/12) must be 2^(4/12)."
        if said in (4, 8):
            hint = "Four cases are halved: 2 * 2 * 2 * 2 under the root, not 2 + 2 + 2 + 2."
        raise Wrong(f"{said:.4g} times as fast is not worth as much as the other, halved.", hint)


# measure.3


def told(a, b):
    """(how many times as fast b is as a, whether the rounds tell them apart).

    a[k], b[k]: their times in round k, NumPy arrays. The first is the median of the ratios of the
    rounds; the rounds tell if the quartiles of the ratios lie on one side of 1.
    """
    ratios = a / b
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float(middle), bool(low > 1 or high < 1)


def _told(answer, a, b, about):
    a, b = np.array(a, float), np.array(b, float)
    ratio, sure = several(answer(a, b, about=about), ("the ratio", "whether they tell"))
    if not isinstance(sure, (bool, np.bool_)):
        raise Wrong(f"Whether the rounds tell must be True or False; got {kind(sure)}.")
    return number("the ratio", ratio), bool(sure), *told(a, b)


def _as_told(a, b, about, slips):
    """A step: what is told of these rounds; slips: (hint, wrong ratio or None, wrong word)."""

    def step(answer):
        ratio, sure, right, rightly = _told(answer, a, b, about)
        if close(ratio, right, 1e-6) and sure == rightly:
            return
        hint = next(
            (
                said
                for said, slip, word in slips
                if (slip is not None and close(ratio, slip, 1e-6)) or (word and sure != rightly)
            ),
            "",
        )
        raise Wrong(f"It says {ratio:.4g}, {sure}; expected {right:.4g}, {rightly}.", hint)

    return step


_PLAIN = np.full(5, 10.0), np.full(5, 8.0)
_rng = np.random.default_rng(3)
# one machine under both that is slower and slower, and a little noise of their own
_SLOWER = 10 * np.linspace(1, 2.5, 12)
_DRIFT = (
    _SLOWER * _rng.uniform(0.98, 1.02, 12),
    _SLOWER / 1.1 * _rng.uniform(0.98, 1.02, 12),
)
_SPIKE = (
    np.array([10.2, 10.1, 10.0, 10.3, 10.1, 10.2, 10.0]),
    np.array([9.0, 9.1, 9.2, 180.0, 9.0, 9.1, 9.2]),
)
_NOISE = _rng.lognormal(2, 0.1, 12), _rng.lognormal(2, 0.1, 12)


# measure.4


def passes(A, H, tau):
    """Whether (H, tau) is a QR of the batch A, by its certificate; False for what is no result."""
    try:
        return certify(A, *pair((H, tau), A)).passed
    except (Fault, ValueError, TypeError):
        return False


def accepts(kernel, fresh):
    """Whether three results of kernel(A) -> (H, tau) are right when all three calls are over.

    fresh() gives a batch [B, n, n] that nobody has seen. Whatever kernel does, the answer is True
    or False; it may not raise, nor write into A.
    """
    held = []
    for _ in range(3):
        A = fresh()
        question = A.clone()
        try:
            H, tau = kernel(A)
        except Exception:
            return False
        held.append((question, A, H, tau))
    return all(torch.equal(Q, A) and passes(Q, H, tau) for Q, A, H, tau in held)


def _batches():
    """A `fresh`, and how often it was called."""
    calls = []

    def fresh():
        calls.append(len(calls))
        return torch.from_numpy(make("dense", 2, 8, seed=100 + len(calls)))

    return fresh, calls


class Planted:
    """A kernel that counts its calls; `what(self, A)` is what it does."""

    def __init__(self, what):
        self.what, self.calls, self.kept = what, 0, None

    def __call__(self, A):
        self.calls += 1
        return self.what(self, A)


def _first_result(self, A):
    self.kept = self.kept or honest(A)
    return QR(*(X.clone() for X in self.kept))


def _one_buffer(self, A):
    result = honest(A)
    self.kept = self.kept or result
    for X, right in zip(self.kept, result):
        X.copy_(right)
    return self.kept


def _identity(self, A):
    A.copy_(torch.eye(A.shape[-1]).expand_as(A))
    return QR(A.clone(), A.new_zeros(A.shape[:2]))


def _scribbles(self, A):
    result = honest(A)
    A[0, 0, 0] += 1
    return result


def _tires(self, A):
    H, tau = honest(A)
    return QR(H, tau if self.calls < 3 else 0 * tau)


def _raises(self, A):
    raise RuntimeError("out of shared memory")


def _nothing(self, A):
    return None


def _in_double(self, A):
    return QR(*honest(A.double()))


# what it is, what it does, the hint for who is taken in by it
_FAKES = (
    (
        "gives its first result again",
        _first_result,
        "Give it another batch each time, and check each result with its own.",
    ),
    (
        "makes the identity of A, and factors that",
        _identity,
        "Keep a copy of A from before the call, and check with that.",
    ),
    (
        "gives the right result, always in the same memory",
        _one_buffer,
        "Hold all three results, and check when the last call is over.",
    ),
    (
        "writes into A when it has done",
        _scribbles,
        "torch.equal(A, its copy) tells.",
    ),
    (
        "is right twice, and wrong the third time",
        _tires,
        "Check each of the three, not only the first.",
    ),
    (
        "raises",
        _raises,
        "try: ... except Exception: return False.",
    ),
    (
        "returns None",
        _nothing,
        "Taking None apart raises TypeError: inside the try, too.",
    ),
    (
        "returns float64",
        _in_double,
        "passes(A, H, tau) is False for what is no result of A's dtype.",
    ),
)


def _verdict(answer, what, words):
    kernel, (fresh, batches) = Planted(what), _batches()
    said = answer(kernel, fresh, about=f"a kernel that {words}")
    if not isinstance(said, (bool, np.bool_)):
        raise Wrong(f"It must return True or False; got {kind(said)}.")
    return bool(said), kernel.calls, len(batches)


def _accepts_the_honest(answer):
    said, calls, batches = _verdict(answer, lambda self, A: honest(A), "is right")
    if not said:
        raise Wrong(
            "It refuses a kernel that is right.",
            "passes(A, H, tau) is True for each of its results, with the A that it was given.",
        )
    if calls != 3:
        raise Wrong(f"It calls the kernel {calls} times; three are asked for.")
    if batches < 3:
        raise Wrong(f"It asks for {batches} batches; each call needs one of its own.")


def _refuses(words, what, hint):
    def step(answer):
        if _verdict(answer, what, words)[0]:
            raise Wrong(f"It accepts a kernel that {words}.", hint)

    return step


# measure.5

_FOOLED = Case(4, 128, 1, "dense")


def fake(A):
    """(H, tau) of A as `careless` sees it: right when it looks, and at least twice as fast."""
    # solution
    # A may be another one now; careless will not notice
    fake.kept = getattr(fake, "kept", None) or honest(A)
    return fake.kept
    # end


def _fooled():
    return torch.from_numpy(make(_FOOLED.family, _FOOLED.batch, _FOOLED.n, cond=_FOOLED.cond))


def _checked(answer, A):
    returned = answer(A, about="the batch of the benchmark")
    try:
        return pair(returned, A)
    except Fault as fault:
        raise Wrong(f"A kernel {fault}.") from None


def _looks_right(answer):
    A = _fooled()
    if not passes(A, *_checked(answer, A)):
        raise Wrong(
            "Even careless sees that it is wrong.",
            "It checks the first result that it gets: that one must be right.",
        )


def _looks_fast(answer):
    A = _fooled()
    lapack, _ = careless(honest, A)
    # with what guarding the answer takes, which is little beside LAPACK
    seconds, _ = careless(lambda A: answer(A, about="timed"), A)
    ratio = lapack / seconds
    if ratio < 2:
        raise Wrong(
            f"It is {ratio:.2g} times as fast as LAPACK; twice is asked for.",
            "careless gives it one tensor again and again. Is there anything left to compute?",
        )


def _is_refused(answer):
    def kernel(A):
        return answer(A, about="in the bench")

    protocol = Protocol(runs=3, sweep=0)
    results = measure([kernel], [_FOOLED], baseline=None, protocol=protocol, commit="none")
    if results.passed:
        raise Wrong(
            "qrlib.bench finds nothing wrong with it: on what it has never seen it is honest, and "
            "takes its time.",
            "Be careless, too: answer without looking at A.",
        )


# measure.6


def wobble(stopwatch):
    """r >= 1: nine in ten ratios of two medians of 9 times of one thing lie from 1/r to r.

    stopwatch(): one time of it. Take 500 ratios or more.
    """
    ratios = [
        median(stopwatch() for _ in range(9)) / median(stopwatch() for _ in range(9))
        for _ in range(500)
    ]
    return float(np.exp(np.quantile(np.abs(np.log(ratios)), 0.9)))


def noisy(sigma, spikes=0.0, seed=0):
    """A stopwatch of something that takes 50 us: its logarithm wobbles, and some times are long."""
    rng = np.random.default_rng(seed)

    def stopwatch():
        return 50 * math.exp(sigma * rng.standard_normal()) * (8 if rng.random() < spikes else 1)

    return stopwatch


def adding(n=20_000):
    """A stopwatch of one sum of n numbers, here and now, in us."""
    x = np.ones(n, np.float32)

    def stopwatch():
        begin = perf_counter()
        x.sum()
        return 1e6 * (perf_counter() - begin)

    return stopwatch


def _wobble(answer, stopwatch, about):
    r = number("r", answer(stopwatch, about=about))
    if not 1 <= r < math.inf:
        raise Wrong(f"r must be 1 or more; got {r:.4g}.", "A ratio of 0.8 is off by 1 / 0.8.")
    return r


def _steady(answer):
    r = _wobble(answer, lambda: 50.0, "always 50 us")
    if not close(r, 1, 1e-9):
        raise Wrong(f"A stopwatch that always shows 50 us has r = 1; got {r:.4g}.")


def _wobbles(answer):
    r = _wobble(answer, noisy(0.05, 0.08), "50 us, give or take 5 %; some eight times as long")
    right = wobble(noisy(0.05, 0.08, seed=1))
    share = math.log(r) / math.log(right)
    if 0.85 < share < 1.15:
        return
    slips = (
        (0.33, 0.5, "Half of the ratios lie within that; nine in ten are asked for."),
        (0.5, 0.7, "That is about the spread of a ratio; nine in ten lie within 1.6 of it."),
        (0.7, 0.85, "Both sides count: take the sizes of the logarithms, then the quantile."),
        (1.6, 3, "That is about the largest of the ratios; nine in ten are asked for."),
        (3, math.inf, "A long time among nine moves their mean, and not their median; for single "
         "times it is worse."),
    )  # fmt: skip
    hint = next((said for low, high, said in slips if low <= share < high), "")
    raise Wrong(f"r is {r:.4g}; {right:.4g} is expected, or nearly.", hint)


def _here(answer):
    # whatever this machine does: it is a number, and no nonsense
    _wobble(answer, adding(), "a sum of 20,000 numbers on this machine")


EXERCISES = (
    Exercise(
        id="measure.1",
        kind="predict",
        title="what five clocks show",
        task="""
            A program launches four kernels, which run for 5, 20, 5 and 30 us, in this order. The
            host takes 8 us to launch one, and launches one after the other. The GPU is idle at
            first. Events, and being told that the GPU is idle, take no time. What does each clock
            show?

            1. the host's, read before the first launch and right after the last one;
            2. events, before the first kernel and after the last one;
            3. the same events, when the GPU is kept busy with other work until all is launched;
            4. events as in 2, but the last kernel goes to another stream, while the events stay;
            5. the host's, until the whole GPU is idle, with the last kernel in another stream.

            The answer is a list of five numbers, in us.
        """,
        solution=clocks,
        steps=(("five numbers", _five), *((words, _shows(k)) for k, words in enumerate(ASKED))),
        hints=(
            "A kernel begins when it has been launched, and the one before it has ended.",
            "The first runs from 8 to 13. The second is launched at 16: three us for nothing.",
            "In a queue there are no gaps: the sum of the four. In a stream of its own the last "
            "one begins at 32.",
        ),
        given=(timeline,),
    ),
    Exercise(
        id="measure.2",
        kind="predict",
        title="what is it worth?",
        task="""
            The score is the geometric mean of the times of the 12 cases of the task. You can make
            one thing twice as fast: 20 matrices of 32 x 32, or 640 of 512 x 512, whatever their
            family. By which factor does the score change, after over before? And how many times as
            fast would the 20 x 32 have to be, to be worth as much as the 640 x 512, twice as fast?
            The answer is three numbers: (factor, factor, times).
        """,
        solution=worth,
        steps=(
            ("20 x 32 in half the time", _halved(0, (20, 32))),
            ("640 x 512 in half the time", _halved(1, (640, 512))),
            ("as fast as it would have to be", _as_much),
        ),
        hints=(
            "The twelfth root of a product. Which factors of it change?",
            "How many of the 12 cases have 640 matrices of 512 x 512?",
            "2^(-1/12), 2^(-4/12), and x with x^(1/12) = 2^(4/12).",
        ),
    ),
    Exercise(
        id="measure.3",
        kind="implement",
        title="is it faster? (told)",
        task="""
            Two kernels, a and b, took turns. a[k] and b[k] are their times in round k, so that
            both have seen the same moods of the machine. Write told(a, b): how many times as fast b
            is as a, as the median of the ratios of the rounds; and whether the rounds tell, which
            they do if both quartiles of the ratios (np.quantile) lie on the same side of 1.
        """,
        solution=told,
        steps=(
            (
                "five equal rounds",
                _as_told(
                    *_PLAIN,
                    "10 us and 8 us, five times",
                    (
                        ("Faster is less time: a over b.", 0.8, False),
                        ("All rounds say the same: both quartiles are above 1.", None, True),
                    ),
                ),
            ),
            (
                "a machine that gets slower",
                _as_told(
                    *_DRIFT,
                    "the machine is slower with every round",
                    (
                        (
                            "The machine has changed between the rounds, and not within them: take "
                            "the ratio of each round first.",
                            float(np.median(_DRIFT[0]) / np.median(_DRIFT[1])),
                            False,
                        ),
                        (
                            "Take the ratio of each round first, then its median.",
                            float(_DRIFT[0].mean() / _DRIFT[1].mean()),
                            False,
                        ),
                        ("Take the quartiles of the ratios, not of the times.", None, True),
                    ),
                ),
            ),
            (
                "one bad moment",
                _as_told(
                    *_SPIKE,
                    "one round was disturbed",
                    (
                        (
                            "One bad moment decides a mean; a median does not care.",
                            float((_SPIKE[0] / _SPIKE[1]).mean()),
                            False,
                        ),
                        (
                            "The best round of seven is luck.",
                            float((_SPIKE[0] / _SPIKE[1]).max()),
                            False,
                        ),
                        ("Quartiles, not the smallest and largest: np.quantile.", None, True),
                    ),
                ),
            ),
            (
                "nothing to tell",
                _as_told(
                    *_NOISE,
                    "the same kernel twice",
                    (("A quartile below 1 and one above: the rounds do not tell.", None, True),),
                ),
            ),
            (
                "the other way round",
                _as_told(
                    *_DRIFT[::-1],
                    "b is the slower one",
                    (("Slower can be told, too: both quartiles below 1.", None, True),),
                ),
            ),
        ),
        hints=(
            "a / b has a ratio for each round.",
            "np.quantile(a / b, (0.25, 0.5, 0.75)) has all that is needed.",
            "They tell if low > 1 or high < 1.",
        ),
    ),
    Exercise(
        id="measure.4",
        kind="implement",
        title="a gate (accepts)",
        task="""
            Write accepts(kernel, fresh): call kernel(A) three times, each time with a batch of its
            own, A = fresh(), and say whether all three results are right when the last call is
            over, and A is what it was. Eight kernels that are wrong will be planted, and one that
            is right. At hand:

                from qrlib.teach.exercises.measure import passes

            passes(A, H, tau) is True if H and tau are a result for A, and the certificate passes.
        """,
        solution=accepts,
        steps=(
            ("one that is right", _accepts_the_honest),
            *((f"one that {words}", _refuses(words, *rest)) for words, *rest in _FAKES),
        ),
        hints=(
            "What do you have to keep from before the call, so that it cannot be changed on you?",
            "Hold (a copy of A, A, H, tau) of each call in a list, and judge after the loop.",
            "try around `H, tau = kernel(A)`; then all(torch.equal(Q, A) and passes(Q, H, tau)).",
        ),
        given=(passes,),
    ),
    Exercise(
        id="measure.5",
        kind="break it",
        title="believed, and wrong (fake)",
        task="""
            Here is how one times a kernel at first. Write fake(A) -> (H, tau), a kernel that
            careless says is right and at least twice as fast as LAPACK, on 4 dense matrices of
            128 x 128, and that qrlib.bench refuses. At hand:

                from qrlib.teach.tricks import honest
        """,
        solution=fake,
        steps=(
            ("right when somebody looks", _looks_right),
            ("twice as fast, says careless", _looks_fast),
            ("refused by qrlib.bench", _is_refused),
        ),
        hints=(
            "What do all the calls that careless makes have in common?",
            "A function can keep something between its calls: fake.kept = ...",
            "The first result, kept and given again, whatever A is.",
        ),
        given=(careless, honest),
    ),
    Exercise(
        id="measure.6",
        kind="measure",
        title="nothing against nothing (wobble)",
        task="""
            Before you believe that one kernel is 3 % faster than another, time one against itself.
            Write wobble(stopwatch): stopwatch() gives one time of something. Take nine times, and
            nine more; the ratio of their medians should be 1, and is not. Do it 500 times or more:
            for which r, 1 or more, do nine in ten of the ratios lie from 1/r to r? The checker
            gives you stopwatches that it knows, and then a real one. At hand, for playing:

                from qrlib.teach.exercises.measure import adding, noisy
        """,
        solution=wobble,
        steps=(
            ("a clock that stands", _steady),
            ("times that wobble, and some that are long", _wobbles),
            ("a real one", _here),
        ),
        hints=(
            "A ratio r and a ratio 1/r are equally far off: take logarithms, and their sizes.",
            "statistics.median of nine, over the same of nine others, 500 times.",
            "np.exp(np.quantile(np.abs(np.log(ratios)), 0.9))",
        ),
        given=(noisy, adding),
    ),
)
