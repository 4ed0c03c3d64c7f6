"""One panel of 512 x 16 in registers, with other warps: python -m qrlib.teach.warps FILE. On a GPU.

Every variant is certified first. Then its launches are replayed from a CUDA graph, before each a
copy that brings the panels back; what the copies take alone is subtracted.
"""

import argparse
import json
import statistics
from itertools import product
from pathlib import Path

import torch

import qrlib
from qrlib.bench.results import check_origin, command_line, provenance
from qrlib.jit import put
from qrlib.stages import s05_panel

ROWS, COLUMNS = 512, 16
BATCHES = (1, 66, 132, 198, 264, 330, 396, 462, 528, 594, 640, 660, 726, 792)
# (warps, unrolled)
VARIANTS = tuple(product((1, 2, 4, 8, 16), (False, True)))
LAUNCHES, REPLAYS = 20, 15
HOW = "one launch of stage 5 replayed from a CUDA graph, the copy of its input subtracted"


def variant(warps, unrolled):
    """Within it stage 5 holds a tile of 512 rows with so many warps."""
    table = {**s05_panel.TABLE, ROWS: (warps, unrolled)}
    return put(vars(s05_panel), "TABLE", table)


def factor(A):
    """(H, tau, again) of panels A [B, m, 16]; again() copies A to H and launches stage 5 on it."""
    B, m, nb = A.shape
    H, V, tau, T = A.clone(), torch.empty_like(A), A.new_empty(B, nb), A.new_empty(B, nb, nb)

    def again(panel=True):
        H.copy_(A)
        if panel:
            s05_panel.launch(H, tau, V, T)

    again()
    return H, tau, again


def replayed(call):
    """Microseconds of one call, out of many in a CUDA graph: the median of some replays."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    times = []
    for _ in range(REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(1e3 * start.elapsed_time(stop) / LAUNCHES)
    return statistics.median(times)


def timed(batch, m, device, clock):
    """Microseconds of the panels of `batch` random matrices of m rows, and of nothing else.

    Raises ValueError where the result does not pass its certificate.
    """
    A = torch.randn(batch, m, COLUMNS, generator=torch.Generator().manual_seed(batch)).to(device)
    H, tau, again = factor(A)
    # a few of the batch, for all are alike
    found = qrlib.certify(A[:4].cpu(), H[:4].cpu(), tau[:4].cpu())
    if not found.passed:
        raise ValueError(f"no time for a result that fails its certificate: {found}")
    return round(clock(again) - clock(lambda: again(False)), 2)


def measure(device, clock=replayed, batches=BATCHES, variants=VARIANTS):
    """[{warps, unrolled, us}], us in the order of the batches."""
    rows = []
    for warps, unrolled in variants:
        with variant(warps, unrolled):
            us = [timed(batch, ROWS, device, clock) for batch in batches]
        rows.append({"warps": warps, "unrolled": unrolled, "us": us})
    return rows


def record(module, doc, content, arguments=None):
    """The command line of a module that measures: writes content(device, origin), and returns it.

    Args:
        module: its name. doc: its docstring. content: gives the dict that goes into the JSON.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc.split("\n")[0])
    parser.add_argument("file", help="the JSON to write")
    parser.add_argument("--commit", help="outside a git checkout: git describe --always --dirty")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error(
            "this times kernels on an NVIDIA GPU; python -m qrlib.doctor says what is here"
        )
    device = torch.device("cuda")
    origin = provenance(device, command_line(module, [asked.file]), asked.commit)
    check_origin(origin, asked.file)
    found = content(device, origin)
    Path(asked.file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def written(device, origin):
    """What goes into the file."""
    return {
        "what": f"one panel of {ROWS} x {COLUMNS} for each matrix of a batch, microseconds",
        "kind": "measured",
        "provenance": origin,
        "how": HOW,
        "batch": list(BATCHES),
        "variants": measure(device),
    }


def main(arguments=None):
    for row in record("qrlib.teach.warps", __doc__, written, arguments)["variants"]:
        print(f"{row['warps']:2} warps, {'unrolled' if row['unrolled'] else 'a loop'}: {row['us']}")


if __name__ == "__main__":
    main()
