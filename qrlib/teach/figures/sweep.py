"""The time against the size, ours, torch.geqrf's and the least that the model knows of.

Times are those of a file that `python -m qrlib.bench --sweep --replay --json` has written.
"""

import textwrap

from qrlib import model
from qrlib.bench import profile, results, sweep
from qrlib.devices import DEVICES
from qrlib.teach.figures.ladder import DATA as LADDER
from qrlib.teach.figures.ladder import duration
from qrlib.teach.svg import from_matplotlib, matplotlib_style

DATA = LADDER.with_name("sweep.json")


def floor_us(gpu, B, n):
    """Predicted: us that B matrices [n, n] take at least, by their bytes and their flops.

    A in, H and tau out at the bandwidth, and all flops at the rate of float16 products, which no
    accurate QR has; no column waits for another. None for a GPU that is not in qrlib.devices.
    """
    device = DEVICES.get(profile.ceilings(gpu).get("of", "").partition(",")[0])
    if device is None:
        return None
    measured = bool(device.measured)
    estimate = model.estimate("floor", B, n, n, device, precision="fp16", measured=measured)
    return 1e6 * estimate.roof


def against_size(batch=sweep.BATCH, data=DATA, *, stage="auto", precision="fp32"):
    """Time against n, both logarithmic, for so many matrices of each size.

    Args:
        batch: sweep.BATCH, or 1. data: the file.

    Raises:
        ValueError: there are no such times in the file.
    """
    found = results.load(data)
    gpu = found.provenance["gpu"] or ""

    def times(**want):
        rows = sorted(found.find(batch=batch, ok=True, **want), key=lambda row: row["n"])
        return {row["n"]: row["median_us"] for row in rows}

    own = {"stage": stage, "precision": precision}
    lines = {
        "torch.geqrf": times(stage="torch"),
        f"{stage}, from Python": times(mode="eager", **own),
        f"{stage}, replayed": times(mode="replay", **own),
    }
    if not lines[f"{stage}, replayed"]:
        raise ValueError(
            f"{data} must have times of {stage}, {precision}, replayed, for {batch} matrices; "
            "measure with --sweep --replay"
        )
    least = {n: floor_us(gpu, batch, n) for n in lines[f"{stage}, replayed"]}
    if None not in least.values():
        lines["predicted floor"] = least
    count = f"{batch} matrices" if batch > 1 else "one matrix"
    told = (
        f"{name} from {duration(us[min(us)])} at n = {min(us)} to {duration(us[max(us)])} at "
        f"n = {max(us)}"
        for name, us in lines.items()
        if us
    )
    alt = f"Time against n for {count}, both logarithmic, {found.where()}. {'; '.join(told)}."
    # marks differ as colours do
    looks = {"color": ("muted", "orange", "blue", "green"), "marker": ("s", "^", "o", None)}
    with matplotlib_style() as colors:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.9))
        for (name, us), color, marker in zip(lines.items(), looks["color"], looks["marker"]):
            look = {"color": colors[color], "marker": marker, "markersize": 4, "linewidth": 1.5}
            axes.plot(list(us), list(us.values()), label=name, **look)
        axes.set(xscale="log", yscale="log", xlabel=f"n, of {count}", ylabel="time")
        axes.yaxis.set_major_formatter(lambda us, _: duration(us))
        axes.set_xticks([1 << k for k in range(5, 13) if min(least) <= 1 << k <= max(least)])
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.xaxis.set_minor_locator(pyplot.NullLocator())
        axes.set_title("\n".join(textwrap.wrap(found.where(), 54)), size=9)
        figure.legend(loc="outside lower center", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)
