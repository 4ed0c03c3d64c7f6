"""The contract of a `geqrf`, clause by clause, for whoever has written one; and the ladder.

    print(through(mine))          # every clause, and what is wrong
    results = climb(mine)         # beside our stages, on this machine; no time for a wrong result

A `geqrf` takes a batch A [B, m, n] of torch float32 and gives (H, tau), as torch.geqrf. A clause is
a function of it that raises Wrong. The families and both gates are those of the task, at sizes for
a CPU; the other clauses are what a caller relies on, whom no benchmark asks.
"""

from dataclasses import dataclass
from functools import partial

import torch

from qrlib.bench.judge import certificate, exceeded
from qrlib.bench.measure import Protocol, measure
from qrlib.certificate import certify
from qrlib.matrices import TEST_CASES, Case, lapack_type, make
from qrlib.stages import ANYWHERE, STAGES
from qrlib.teach.exercises.compare import array, several
from qrlib.teach.exercises.guard import NotYet, Wrong, bits, guard

EXAMPLE = ((12, -51, 4), (6, 167, -68), (-4, 24, -41))
# what stands for a size of the task, still a multiple of 16; at most so many matrices
SIZES = {32: 16, 176: 32, 352: 32, 512: 48, 1024: 64, 2048: 96, 4096: 128}
FEW = 3
# what is climbed when nothing else is said
CASE = Case(4, 128, 1, "dense")
# the name of a reader's rung, which no stage has
YOURS = "yours"


def _state():
    return {
        "the default dtype": torch.get_default_dtype(),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
        "the number of threads": torch.get_num_threads(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "the random numbers to come": bits(torch.get_rng_state()),
    }


def factored(geqrf, A, about="", left=lambda changed: None):
    """(A as it was, H, tau): what came back for A, plain float32 tensors of the right shapes.

    What was changed for everybody is put back, and `left` is told of it, a list of words.
    """
    question, before, generator = A.clone(), _state(), torch.get_rng_state()
    try:
        returned = geqrf(A, about=about)
        after = _state()
    finally:
        torch.set_default_dtype(before["the default dtype"])
        torch.set_float32_matmul_precision(before["the precision of float32 products"])
        torch.set_num_threads(before["the number of threads"])
        torch.set_grad_enabled(before["whether gradients are recorded"])
        torch.set_rng_state(generator)
    left([name for name in before if after[name] != before[name]])
    (B, m, n), (H, tau) = A.shape, several(returned, ("H", "tau"))
    return question, array("H", H, A, (B, m, n)), array("tau", tau, A, (B, min(m, n)))


def _gate(geqrf, A, about, hint=""):
    """The task's two gates, for every matrix."""
    found = certify(*factored(geqrf, A, about))
    if not found.passed:
        failed = [
            f"{name} is {worst:.3g}, the gate is {gate:g}"
            for name, _, worst, _, gate, ok in found.rows()
            if not ok
        ]
        raise Wrong(f"Matrix {found.worst[0]} fails: {'; '.join(failed)} (in m*eps).", hint)


def _lapack(geqrf, A, about, hint=""):
    """LAPACK's own test, and that of every column by its own length."""
    failed = exceeded(certificate(*factored(geqrf, A, about)), "fp32")
    if failed:
        raise Wrong(f"It is not as good as LAPACK: {'; '.join(failed.values())} (in m*eps).", hint)


def _family(family, batch, n, cond=0, seed=0):
    return torch.from_numpy(make(family, batch, n, cond=cond, seed=seed))


def example(geqrf):
    """The 3 x 3 example, up to signs."""
    _gate(geqrf, torch.tensor([EXAMPLE], dtype=torch.float32), "the 3 x 3 example of the book")


def families(geqrf):
    """All 22 test cases of the task at small sizes: both gates, matrix by matrix."""
    hint = "Zero columns, dependent ones, tiny ones: does every step hold where nothing is left?"
    for case in TEST_CASES:
        n, B = SIZES[case.n], min(case.batch, FEW)
        A = _family(case.family, B, n, case.cond, seed=case.n)
        _gate(geqrf, A, f"{B} matrices, {case.family}, n = {n}, for {case.n} of the task", hint)


def sizes(geqrf):
    """Any m and n: small, odd, tall, wide."""
    hint = "A last panel that is narrower; min(m, n) mirrors; no row below the last one."
    for m, n in ((1, 1), (2, 2), (1, 5), (5, 1), (33, 33), (31, 31), (40, 7), (7, 40), (65, 63)):
        A = torch.randn(2, m, n, generator=torch.Generator().manual_seed(m * n))
        _gate(geqrf, A, f"2 matrices {m} x {n}", hint)


def lapack(geqrf):
    """As good as LAPACK: its own test, and every column by its own length."""
    hint = "A gate on the norm of the matrix does not see small columns. Are they computed, too?"
    for family in ("dense", "clustered", "rowscale", "nearcollinear"):
        _lapack(geqrf, _family(family, 2, 48, 1), f"2 matrices, {family}, n = 48", hint)
    for t in range(1, 7):
        A = torch.from_numpy(lapack_type(t, 40, 24, batch=2))
        _lapack(geqrf, A, f"LAPACK's test matrices of type {t}, 40 x 24", hint)


def scale(geqrf):
    """Any size of number."""
    hint = "Squares overflow and vanish long before numbers do. Scale by a power of two first."
    A = _family("dense", 2, 24, 1)
    for power in (-100, -60, 60, 120):
        _lapack(geqrf, A * 2.0**power, f"2 matrices of 24, times 2^{power}", hint)
    _gate(geqrf, 0 * A, "zeros", "A column of zeros has tau = 0, and no division by its length.")


def alone(geqrf):
    """No matrix sees another one of its batch."""
    A = _family("dense", 3, 16)
    A[0] *= 2.0**90
    A[2] *= 2.0**-90
    hint = "Is there a max or a norm over the whole batch? Each matrix needs its own."
    _gate(geqrf, A, "3 matrices of very different sizes", hint)
    B = _family("dense", 3, 16)
    _, clean, _ = factored(geqrf, B.clone(), "3 matrices")
    clean = bits(clean[::2])
    B[1, 3, 2] = float("nan")
    _, H, _ = factored(geqrf, B, "NaN in matrix [1] only")
    if bits(H[::2]) != clean:
        raise Wrong("A NaN in one matrix has changed the result of its neighbours.", hint)


def views(geqrf):
    """Any strides: transposed, every second matrix, one matrix repeated."""
    A = _family("dense", 4, 20)
    hint = "Do not count on strides: A.contiguous() makes a copy where one is needed."
    _gate(geqrf, A.mT, "matrices that are transposed views", hint)
    _gate(geqrf, A[::2], "every second matrix of a batch", hint)
    _gate(geqrf, A[:1].expand(3, -1, -1), "one matrix, three times in the batch", hint)


def fresh(geqrf):
    """Every call computes, and what it gave belongs to the caller."""
    A = _family("dense", 2, 20)
    _, H, tau = factored(geqrf, A, "a first call")
    kept = bits(H), bits(tau)
    memory = {X.untyped_storage().data_ptr() for X in (H, tau)}
    if A.untyped_storage().data_ptr() in memory:
        raise Wrong("H lies in the memory of A.", "Give a tensor of its own: A.clone().")
    # .data, so that its version counter does not tell either
    A.data.copy_(_family("dense", 2, 20, seed=1))
    hint = "Nothing may be remembered by where a tensor lies: its contents may be others."
    _gate(geqrf, A, "the same tensor, filled with other numbers", hint)
    if (bits(H), bits(tau)) != kept:
        raise Wrong(
            "The second call has overwritten the result of the first.",
            "New tensors for every call: what was returned is the caller's.",
        )


def manners(geqrf):
    """A is only read, and torch is left as it was found."""
    A = _family("dense", 2, 20)
    content, changed = bits(A), []
    factored(geqrf, A, "2 matrices of 20", changed.extend)
    if bits(A) != content:
        raise Wrong("It changed its input A, which is to be read only.", "Work on A.clone().")
    if changed:
        raise Wrong(
            f"It has changed {', '.join(changed)} for everybody.",
            "Who needs another setting asks for it in the call, or gives the old one back.",
        )


CLAUSES = {
    clause.__name__: clause
    for clause in (example, families, sizes, lapack, scale, alone, views, fresh, manners)
}


@dataclass(frozen=True)
class Report:
    """What became of each clause. faults: {clause: "" or a sentence}."""

    name: str
    faults: dict

    @property
    def passed(self):
        return not any(self.faults.values())

    @property
    def first(self):
        """The first clause that refuses; None where none does."""
        return next((clause for clause, fault in self.faults.items() if fault), None)

    def __str__(self):
        kept = sum(not fault for fault in self.faults.values())
        lines = [f"{self.name}: {kept} of {len(self.faults)} clauses"]
        for clause, fault in self.faults.items():
            said = " ".join(CLAUSES[clause].__doc__.split())
            lines.append(f"  {'FAIL' if fault else 'ok':5}{clause:9} {fault or said}")
        return "\n".join(lines)

    __repr__ = __str__


def through(geqrf, *, limit=60.0):
    """Put a geqrf through all clauses, also after one that it fails.

    Args:
        limit: seconds that a call may take.

    Returns:
        Report.
    """
    faults = {}
    for name, clause in CLAUSES.items():
        # that it writes into A is the matter of one clause, and not of all
        call = guard(geqrf, ("A",), writes=("A",), limit=limit)
        try:
            clause(call)
            faults[name] = ""
        except Wrong as wrong:
            at = f" Example: {call.example}." if call.example else ""
            faults[name] = f"{wrong.fault}{at}"
        except NotYet:
            faults[name] = "The place for your code still holds `...`."
    return Report(getattr(geqrf, "__name__", type(geqrf).__name__), faults)


def climb(geqrf, case=CASE, *, device="cpu", runs=5, progress=lambda share, now: None):
    """Time a geqrf beside torch.geqrf and our stages, by the protocol of qrlib.bench.

    Args:
        case: as for bench.measure. device: on a GPU all stages that it can run are there, on a CPU
            those that need no Triton. runs: of each.

    Returns:
        Results; a row with faults has no time.
    """
    stages = STAGES[1:] if torch.device(device).type == "cuda" else ANYWHERE[1:]
    mine = partial(geqrf)
    mine.__name__ = YOURS
    return measure(
        [*stages, mine],
        [case],
        device=device,
        protocol=Protocol(runs=runs),
        progress=progress,
    )
