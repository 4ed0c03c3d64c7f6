"""Mistakes in the exercises of the last chapter: an answer, and words of the message."""

import torch

from qrlib.bench.results import Results
from qrlib.compact import unpack_v
from qrlib.householder import larfg
from qrlib.stages import s02_unblocked, s03_blocked
from qrlib.teach import faulty
from qrlib.teach.exercises import capstone

RIGHT = capstone.found_out()


def one_by_one(A):
    parts = [s03_blocked.geqrf(A[b : b + 1]) for b in range(len(A))]
    return torch.cat([H for H, _ in parts]), torch.cat([tau for _, tau in parts])


def mirrors_formed(A):
    """Right, and every mirror is a matrix."""
    H, tau = s02_unblocked.geqrf(A)
    V, I = unpack_v(H), torch.eye(A.shape[1])
    for j in range(tau.shape[1]):
        larfg(A[:, 0, 0], A[:, 1:, 0])
        H = (
            H
            + 0
            * (I - tau[:, j, None, None] * V[:, :, j : j + 1] @ V[:, :, j : j + 1].mT)[
                :, :, :1
            ].nan_to_num()
        )
    return H, tau


def in_float64(A):
    return s03_blocked.geqrf(A.double())


def leaves_a_seed(A):
    torch.manual_seed(0)
    return s03_blocked.geqrf(A)


def square_only(A):
    k = A.shape[2]
    H, tau = s03_blocked.geqrf(A[:, :k])
    return torch.cat([H, A[:, k:]], 1), tau


def spreads_nan(A):
    H, tau = s03_blocked.geqrf(A)
    return H + 0 * A.sum(), tau


def row(stage, us=(3.0, 1.0, 2.0), **more):
    return {
        "batch": 4,
        "n": 128,
        "family": "dense",
        "cond": 1,
        "stage": stage,
        "precision": "fp32",
        "ok": True,
        "faults": [],
        "times_us": list(us),
        "runs": len(us),
        "median_us": sorted(us)[len(us) // 2],
        **more,
    }


def run(*rows, stages=("torch", "s02_unblocked", "s03_blocked"), complete=True):
    return Results({}, {}, [*map(row, stages), *rows], complete)


def with_(**answer):
    return RIGHT | answer


WRONG = {
    "capstone.1": {
        "a list": (list(RIGHT.values()), "It must be a dict, program: clause"),
        "one left out": ({k: v for k, v in RIGHT.items() if k != "remembers"}, "nothing of rem"),
        "a clause unknown": (with_(one_scale="batch"), "is no clause; the clauses are example"),
        "a number": (with_(one_scale=6), "one_scale: int 6 is no clause"),
        "the gate sees all": (with_(norms_only="families"), "norms_only keeps the clause families"),
        "a later clause": (
            with_(plain_squares="alone"),
            "refuses plain_squares, but it has been found out before, 1 clause earlier",
        ),
        "much later": (with_(whole_panels="fresh"), "but it has been found out before, 5 clauses"),
        "a good memory": (with_(remembers="manners"), "keeps the clause manners: A is only read"),
    },
    "capstone.2": {
        "plain squares": (faulty.plain_squares, "Squares overflow and vanish long before"),
        "whole panels": (faulty.whole_panels, "2 matrices 31 x 31"),
        "square only": (square_only, "2 matrices 5 x 1"),
        "norms only": (faulty.norms_only, "It is not as good as LAPACK: columnwise"),
        "one scale": (faulty.one_scale, "Is there a max or a norm over the whole batch?"),
        "NaN spread": (spreads_nan, "NaN in one matrix has changed the result of its neighbours"),
        "row by row": (faulty.row_by_row, "matrices that are transposed views"),
        "own buffers": (faulty.Buffers(), "has overwritten the result of the first"),
        "remembered": (faulty.Remembers(), "the same tensor, filled with other numbers"),
        "lower precision": (
            faulty.lower_precision,
            "It has changed the precision of float32 products for everybody",
        ),
        "a seed": (leaves_a_seed, "It has changed the random numbers to come"),
        "in place": (faulty.in_place, "changed its input A"),
        "Q and R": (torch.linalg.qr, "tau must have shape [1, 3]; got [1, 3, 3]"),
        "float64": (in_float64, "H must be float32 as the input is; got float64"),
        "H alone": (lambda A: s03_blocked.geqrf(A).H, "It must give 2 things, H, tau"),
        "one by one": (one_by_one, "goes through the batch one by one"),
        "mirrors formed": (mirrors_formed, "times as many entries as stage 2"),
    },
    "capstone.3": {
        "by hand": ({"median_us": 3.0}, "It must be what climb returns"),
        "stopped": (run(row("yours"), complete=False), "was stopped before its end"),
        "without you": (run(), "the stages are there, and you are not"),
        "alone": (run(row("yours"), stages=()), "must be in the same run; got none"),
        "no library": (
            run(row("yours"), stages=("s02_unblocked", "s03_blocked")),
            "torch.geqrf and two stages at least",
        ),
        "wrong results": (
            run(row("yours", ok=False, faults=["factor 1e+05, the limit is 15"])),
            "It has no time, for it has a fault: factor 1e+05",
        ),
        "an easier gate": (run(row("yours", precision="fast")), "limits of precision fast"),
        "one run": (run(row("yours", (3.0,))), "1 times for 1 runs: three at least"),
        "the best of three": (
            run(row("yours", median_us=1.0)),
            "The median of its times is 2 us, and the row says 1",
        ),
    },
    "capstone.4": {
        "honest": (
            (s03_blocked.geqrf, torch.ones(1, 57, 57)),
            "keeps all clauses, and is right on your A as well",
        ),
        "found out": ((faulty.norms_only, torch.ones(1, 9, 9)), "The clause lapack finds it out"),
        "zeros": (
            (lambda A: (0 * A, 0 * A[:, 0, : min(A.shape[1:])]), torch.ones(1, 9, 9)),
            "The clause example finds it out",
        ),
        "NaN": ((s03_blocked.geqrf, torch.full((1, 3, 3), torch.nan)), "A must be finite"),
        "float64": ((s03_blocked.geqrf, torch.ones(1, 3, 3).double()), "must be a float32 tensor"),
        "a matrix": ((s03_blocked.geqrf, torch.ones(3, 3)), "must be a float32 tensor [B, m, n]"),
        "too large": ((s03_blocked.geqrf, torch.ones(1, 2000, 1000)), "1 to 1048576 entries"),
        "no program": ((torch.ones(1, 3, 3),) * 2, "program must be a function"),
        "the program only": (s03_blocked.geqrf, "It must take (); yours takes (A, *, nb=32)"),
    },
}
