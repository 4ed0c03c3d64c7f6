"""Kernels compiled before they are timed, by many processes at once; one alone takes minutes.

Every process calls the stages on all shapes, each kernel start looked at and none made, and has the
n-th kernel that is new compiled if it is its turn. Triton keeps the machine code in its cache.
"""

import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import product, repeat
from multiprocessing import get_context

# a process holds a few copies of the largest batch
PROCESSES = 16


def compile_ahead(
    stages, cases, *, precisions=("fp32",), replay=False, processes=None, device="cuda"
):
    """Fill Triton's cache with what the stages start on these cases.

    Args:
        stages, cases, precisions, replay: as for measure. processes: one a core, but at most
            PROCESSES, when None.

    Returns:
        how many kernels that were.
    """
    turns = processes or min(PROCESSES, os.cpu_count())
    asked = (stages, cases, precisions, replay, device)
    # a process that is forked could not use the GPU
    with ProcessPoolExecutor(turns, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(compile_share, range(turns), repeat(turns), *map(repeat, asked)))


def compile_share(turn, turns, stages, cases, precisions, replay, device):
    """What one of so many processes does; gives how many kernels it compiled."""
    import torch

    from qrlib.bench.cases import shape_of
    from qrlib.bench.measure import chosen, replayed, resolve, task_of
    from qrlib.bench.starts import starts
    from qrlib.launches import _started

    seen, mine = set(), 0

    def each(run, kernel, args, kwargs):
        nonlocal mine
        given = {key: value for key, value in kwargs.items() if key not in ("grid", "warmup")}
        key = _started(kernel, kwargs["grid"], args, given).config.key
        if key in seen:
            return
        seen.add(key)
        if len(seen) % turns == turn:
            mine += 1
            run(*args, **kwargs | {"warmup": True})

    with starts(each), warnings.catch_warnings():
        # a graph without kernels is what is wanted
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        for case in cases:
            for stage, precision in product(chosen(stages, case), precisions):
                _, geqrf = resolve(stage, precision)
                # what fails here fails again when it is measured, and is told there
                with suppress(Exception):
                    A = task_of(stage).given(torch.zeros(shape_of(case), device=device))
                    geqrf(A)
                    if replay:
                        replayed(geqrf, A)
                A = None
                # other processes need memory, too
                torch.cuda.empty_cache()
    return mine
