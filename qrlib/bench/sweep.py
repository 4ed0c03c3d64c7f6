"""The time against the size: 64 matrices of each, and one alone; and what must hold of it.

Needs no torch. Sizes are powers of two and what is beside them, those of the task, and odd ones.
"""

from qrlib.bench.results import kind, short
from qrlib.matrices import Case

BATCH = 64
SIZES = (
    32, 47, 64, 95, 128, 129, 176, 191, 256, 257, 352, 383, 512, 513, 640, 767, 1024, 1025, 1280,
    1535, 2047, 2048,
)  # fmt: skip
# a batch of one
ALONE = (512, 1024, 2048, 4096)
CASES = tuple(Case(B, n, 1, "dense") for B, sizes in ((BATCH, SIZES), (1, ALONE)) for n in sizes)

# a size may take so many times what the next larger one takes
LARGER = 1.1
# so much faster than the baseline, with so many matrices or more
MANY, OVER = 8, 3.0
RULES = (
    f"no size is slower than the next larger one by more than {100 * (LARGER - 1):.0f} %",
    f"with {MANY} matrices or more none is less than {OVER:g} times as fast as torch.geqrf",
    "one matrix alone is not slower than torch.geqrf",
)


def broken(results, *, stage="auto", precision="fp32", mode="replay"):
    """{rule: [a sentence for each case that breaks it]} for all RULES; of none, an empty list.

    A case that did not pass its gate, or that has no baseline, breaks those it has to keep.

    Raises:
        ValueError: there are no such rows.
    """
    rows = results.find(stage=stage, precision=precision, mode=mode)
    if not rows:
        raise ValueError(f"there must be rows of {stage}, {precision}, {mode}; there are none")
    found = {rule: [] for rule in RULES}
    rows.sort(key=lambda row: (row["batch"], row["n"]))
    for row, larger in zip(rows, [*rows[1:], None]):
        least = OVER if row["batch"] >= MANY else 1.0 if row["batch"] == 1 else 0.0
        rule = RULES[2] if row["batch"] == 1 else RULES[1]
        if least and not (row["speedup"] or 0.0) >= least:
            found[rule].append(f"{_said(row)}, {short(row['speedup'], 3)}x")
        if larger is None or larger["batch"] != row["batch"]:
            continue
        if not (row["ok"] and larger["ok"] and row["median_us"] <= LARGER * larger["median_us"]):
            found[RULES[0]].append(f"{_said(row)}; {_said(larger)}")
    return found


def _said(row):
    time = f"{short(row['median_us'])} us" if row["ok"] else "FAILED"
    return f"{row['batch']} x {row['n']}: {time}"


def report(results):
    """Lines: of each stage, precision and mode, which rules hold and which sizes break the rest."""
    base = results.protocol["baseline"]
    kinds = dict.fromkeys((row["stage"], row["precision"], row["mode"]) for row in results.rows)
    for stage, precision, mode in kinds:
        if stage == base:
            continue
        yield f"{stage} {kind({'precision': precision, 'mode': mode})}"
        for rule, cases in broken(results, stage=stage, precision=precision, mode=mode).items():
            yield f"  {'BROKEN' if cases else 'holds'}: {rule}"
            yield from (f"      {case}" for case in cases)
