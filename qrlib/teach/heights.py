"""A panel of 16 columns on the chip, low to tall: python -m qrlib.teach.heights FILE. On a GPU.

Timed as in `qrlib.teach.warps`, each with the warps that stage 5 gives it.
"""

from qrlib.devices import DEVICES
from qrlib.teach.warps import COLUMNS, HOW, record, replayed, timed

HEIGHTS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 132, 264, 528, 640)


def measure(device, clock=replayed, heights=HEIGHTS, batches=BATCHES):
    """{"m x 16": microseconds, in the order of the batches}; nothing that has no certificate."""
    return {
        f"{m} x {COLUMNS}": [timed(batch, m, device, clock) for batch in batches] for m in heights
    }


def written(origin, us, batches=BATCHES):
    """What goes into the file."""
    names = [name for name in DEVICES if name in (origin["gpu"] or "")]
    return {
        "what": f"one panel of {COLUMNS} columns for each matrix of a batch, microseconds",
        "gpu": max(names, key=len, default=origin["gpu"]),
        "kind": "measured",
        "date": origin["date"][:10],
        "software": f"torch {origin['torch'].partition('+')[0]}, Triton {origin['triton']}",
        "how": HOW,
        "provenance": origin,
        "batch": list(batches),
        "us": us,
    }


def main(arguments=None):
    found = record(
        "qrlib.teach.heights",
        __doc__,
        lambda device, origin: written(origin, measure(device)),
        arguments,
    )
    for shape, us in found["us"].items():
        print(f"{shape:>10}: {us}")


if __name__ == "__main__":
    main()
