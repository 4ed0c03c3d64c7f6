"""A panel of 16 columns on the chip, low to tall: python -m qrlib.teach.heights FILE. On a GPU.

Timed as in `qrlib.teach.warps`, each with the warps that stage 5 gives it.
"""

import argparse
import json
from pathlib import Path

import torch

import qrlib
from qrlib.bench.results import check_origin, provenance
from qrlib.devices import DEVICES
from qrlib.teach.warps import COLUMNS, factor, replayed

HEIGHTS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 132, 264, 528, 640)


def measure(device, clock=replayed, heights=HEIGHTS, batches=BATCHES):
    """{"m x 16": microseconds, in the order of the batches}; nothing that has no certificate."""
    found = {}
    for m in heights:
        us = []
        for batch in batches:
            draw = torch.Generator().manual_seed(batch)
            A = torch.randn(batch, m, COLUMNS, generator=draw).to(device)
            H, tau, again = factor(A)
            # a few of the batch, for all are alike
            seen = qrlib.certify(A[:4].cpu(), H[:4].cpu(), tau[:4].cpu())
            if not seen.passed:
                raise ValueError(f"no time for a result that fails its certificate: {seen}")
            us.append(round(clock(again) - clock(lambda again=again: again(False)), 2))
        found[f"{m} x {COLUMNS}"] = us
    return found


def written(origin, us, batches=BATCHES):
    """What goes into the file."""
    names = [name for name in DEVICES if name in (origin["gpu"] or "")]
    return {
        "what": f"one panel of {COLUMNS} columns for each matrix of a batch, microseconds",
        "gpu": max(names, key=len, default=origin["gpu"]),
        "kind": "measured",
        "date": origin["date"][:10],
        "software": f"torch {origin['torch'].partition('+')[0]}, Triton {origin['triton']}",
        "how": "one launch of stage 5 replayed from a CUDA graph, the copy of its input subtracted",
        "provenance": origin,
        "batch": list(batches),
        "us": us,
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m qrlib.teach.heights", description=__doc__.split("\n")[0]
    )
    parser.add_argument("file", help="the JSON to write")
    parser.add_argument("--commit", help="outside a git checkout: git describe --always --dirty")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error(
            "this times kernels on an NVIDIA GPU; python -m qrlib.doctor says what is here"
        )
    device = torch.device("cuda")
    origin = provenance(device, f"python -m qrlib.teach.heights {asked.file}", asked.commit)
    check_origin(origin, asked.file)
    found = written(origin, measure(device))
    Path(asked.file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for shape, us in found["us"].items():
        print(f"{shape:>10}: {us}")


if __name__ == "__main__":
    main()
