"""The search of the chapter "The loop": what is found by who keeps more than one idea alive."""

from itertools import accumulate

from qrlib.teach.search import FAMILIES, climb
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure

TRIES = 72
# marks differ as colours do
_LOOKS = dict(zip(FAMILIES, ("blue", "orange", "green", "muted")))


def _mark(fig, x, y, family):
    color = _LOOKS[family]
    match FAMILIES.index(family):
        case 0:
            fig.circle(x, y, 3, color=color, fill=color)
        case 1:
            fig.rect(x - 3, y - 3, 6, 6, color=color, fill=color)
        case 2:
            fig.path(f"M{x - 4} {y + 3}H{x + 4}L{x} {y - 4}Z", color=color, fill=color)
        case _:
            fig.line(x - 3, y - 3, x + 3, y + 3, color=color, width=2)
            fig.line(x - 3, y + 3, x + 3, y - 3, color=color, width=2)


def search_frame(alive, count=TRIES):
    """Every try of a search, and the best so far."""
    tries = climb(count, alive)
    best = list(accumulate((us for _, us in tries), min))
    last = max(k for k in range(count) if k == 0 or best[k] < best[k - 1])
    holder = tries[last][0].name
    spent = {family: sum(each == family for each, _ in tries) for family in FAMILIES}
    readout = (
        f"{count} tries, {alive} alive: {best[-1]:.0f} us, by {holder!r}.\n"
        f"tries: {', '.join(f'{family.name} {k}' for family, k in spent.items())}"
    )
    fig = Figure(
        440,
        300,
        f"Made-up times of {count} tries, one after the other, and the best so far, when up to "
        f"{alive} families are kept alive. {readout}",
        max_width=560,
    )

    def X(k):
        return 46 + k * 380 / max(1, count - 1)

    def Y(us):
        return 246 - (us - 30) * 210 / 130

    fig.text(8, 14, "us, made up", size=13, anchor="start", color="muted")
    for us in (40, 80, 120, 160):
        fig.line(40, Y(us), 426, Y(us), color="faint", width=1)
        fig.text(34, Y(us), str(us), size=13, anchor="end", color="muted")
    fig.text(436, 262, f"{count} tries", size=13, anchor="end", color="muted")
    for k, (family, us) in enumerate(tries):
        _mark(fig, X(k), Y(us), family)
    fig.polyline([(X(k), Y(us)) for k, us in enumerate(best)], width=2)
    for k, family in enumerate(FAMILIES):
        x, y = 20 + 210 * (k % 2), 278 + 16 * (k // 2)
        _mark(fig, x, y - 4, family)
        fig.text(x + 10, y - 4, family.name, size=13, anchor="start")
    return Frame(fig, readout, f"{alive} alive")


def search_stepper():
    """The same four ideas by who keeps one of them alive, two, three, and all."""
    frames = [search_frame(alive) for alive in (1, 2, 4, 3)]
    return Stepper(
        frames,
        "How many are alive",
        "Tries of a made-up search and the best so far, by how many families of ideas are kept "
        "alive.",
        lines=4,
    )
