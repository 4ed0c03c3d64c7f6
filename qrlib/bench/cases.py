"""The matrices of a benchmark: cases of the task, and for each run a variant never seen before."""

import itertools

import torch

from qrlib.matrices import Case, make

# numbers of variants; none is used twice in a process, by whatever stage and case
_NUMBERS = itertools.count(1)


def shape_of(case):
    """(B, m, n) of a Case, whose matrices are square, or of a q.Shape."""
    return case.batch, getattr(case, "m", case.n), case.n


def small(case):
    """A case for a CPU and a few seconds: at most 4 matrices, about 32 times fewer columns."""
    # odd sizes, too, and no two alike that were not
    return case._replace(batch=min(case.batch, 4), n=case.n // 32 + 6)


class Inputs:
    """The batch of a case, and variants: members in another order, rows and columns with signs.

    A variant is as hard as the batch itself: its singular values are the same, zeros stay where
    they are, and so do the lengths of rows and columns. But no entry need stand where it stood, so
    nothing that was remembered of an earlier run is of use.
    """

    def __init__(self, case, seed=0, device="cpu"):
        self.case, self.seed = case, seed
        if isinstance(case, Case):
            A = make(case.family, case.batch, case.n, cond=case.cond, seed=seed)
            self.base = torch.from_numpy(A).to(device)
        else:
            # of a q.Shape; made where it is needed, for there it takes no time
            generator = torch.Generator(device).manual_seed(seed)
            self.base = torch.randn(shape_of(case), generator=generator, device=device)

    def fresh(self):
        """(k, variant k) for a k that was never given before."""
        k = next(_NUMBERS)
        return k, self.variant(k)

    def variant(self, k):
        """Variant k: a new tensor at every call, with the same contents for the same k."""
        B, m, n = self.base.shape
        device = self.base.device
        generator = torch.Generator(device).manual_seed(1_000_003 * self.seed + k)
        A = self.base[torch.randperm(B, generator=generator, device=device)]
        for shape in ((B, m, 1), (B, 1, n)):
            A *= 1 - 2 * torch.randint(2, shape, generator=generator, device=device)
        return A


def beside(inputs):
    """{axis: [A]}: batches one smaller and one larger, in n and in number.

    To a program that is keyed on the exact shape of a case they are just another shape.
    """
    case = inputs.case
    _, A = inputs.fresh()
    sizes = [case._replace(n=n) for n in (case.n - 1, case.n + 1) if n > 0]
    return {
        "n": [Inputs(each, inputs.seed, A.device).fresh()[1] for each in sizes],
        "batch": [torch.cat([A, A[:1]])] + ([A[1:].clone()] if case.batch > 1 else []),
    }
