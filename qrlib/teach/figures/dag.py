"""Who waits for whom in blocked QR: its panels and updates as a graph.

A task is ("panel", k) or ("update", k, j): what panel k does to block column j. It waits for the
last one that wrote what it reads; nothing else is put in by hand.
"""

from functools import cache

from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure


def tasks(blocks):
    """The tasks of a matrix of so many block columns, in the order of the loop."""
    found = []
    for k in range(blocks):
        found.append(("panel", k))
        found += [("update", k, j) for j in range(k + 1, blocks)]
    return found


def reads(task):
    """What a task needs: its block column, and for an update V and T of its panel."""
    if task[0] == "panel":
        return {("column", task[1])}
    return {("column", task[2]), ("factors", task[1])}


def writes(task):
    """What a task leaves behind."""
    if task[0] == "panel":
        return {("column", task[1]), ("factors", task[1])}
    return {("column", task[2])}


@cache
def graph(blocks):
    """{task: the tasks it waits for, in the order of the loop}."""
    last, waits = {}, {}
    for task in tasks(blocks):
        waits[task] = tuple(dict.fromkeys(last[each] for each in sorted(reads(task))
                                          if each in last))  # fmt: skip
        last |= dict.fromkeys(writes(task), task)
    return waits


def before(blocks, task):
    """All tasks that must be done before this one may begin."""
    found = set()
    for each in graph(blocks)[task]:
        found |= {each} | before(blocks, each)
    return found


def chain(blocks):
    """The longest chain of tasks that wait for one another."""
    longest = {}
    for task, waits in graph(blocks).items():
        longest[task] = max((longest[each] for each in waits), key=len, default=()) + (task,)
    return max(longest.values(), key=len)


def name(task):
    kind, *where = task
    return f"{'P' if kind == 'panel' else 'U'}{','.join(map(str, where))}"


def panel_words(blocks, k):
    """What panel k waits for, and what the loop does before it all the same."""
    order = tasks(blocks)
    earlier = order[: order.index(("panel", k))]
    needed = before(blocks, ("panel", k))
    if not earlier:
        return "Panel 0 waits for nothing; everything else waits for it."
    idle = [each for each in earlier if each not in needed]
    could = f"The other {len(idle)} could wait: {', '.join(map(name, idle))}." if idle else ""
    if not idle:
        could = "It is the last one, and needs them all."
    return f"Before panel {k} the loop does {len(earlier)} tasks. It needs {len(needed)}. {could}"


def whole_words(blocks):
    """The whole graph in numbers, and its longest chain."""
    found = graph(blocks)
    links = chain(blocks)
    return (
        f"{len(found)} tasks, {sum(map(len, found.values()))} arrows. The longest chain has "
        f"{len(links)} tasks: {', '.join(map(name, links))}. The other {len(found) - len(links)} "
        "can be done beside it."
    )


STEP, TOP, LEFT, R = 82, 66, 54, 19


def _place(task):
    """Panel k on the diagonal; an update in the row of its panel and above its column."""
    k, j = task[1], task[-1]
    return LEFT + STEP * j, TOP + STEP * 0.9 * k


def _arrow(fig, task, other, **look):
    """From a task to one that waits for it."""
    (x1, y1), (x2, y2) = _place(task), _place(other)
    if x1 == x2:
        fig.arrow(x1, y1 + R + 1, x2, y2 - R - 1, head=8, **look)
        return
    # arcs above the row, the longer the higher
    rise = 12 + 8 * (other[-1] - task[-1])
    fig.path(
        f"M{x1 + 10} {y1 - R + 3} C{x1 + 24} {y1 - R - rise} {x2 - 24} {y2 - R - rise} "
        f"{x2 - 5} {y2 - R - 6}",
        color=look["color"], width=look["width"], dash=look.get("dash"),
    )  # fmt: skip
    fig.arrow(x2 - 8, y2 - R - 9, x2 - 3, y2 - R + 0.5, head=8, color=look["color"],
              width=look["width"])  # fmt: skip


def dag_frame(blocks, k=None):
    """The graph; what panel k needs is strong, what could wait is dashed. None: the chain."""
    words = whole_words(blocks) if k is None else panel_words(blocks, k)
    order = list(graph(blocks))
    if k is None:
        strong, pale = set(chain(blocks)), set()
    else:
        strong = before(blocks, ("panel", k)) | {("panel", k)}
        pale = set(order) - strong
    # what stands below must fit, too
    width = max(LEFT + STEP * (blocks - 1) + 44, 390)
    height = TOP + STEP * 0.9 * (blocks - 1) + 62
    fig = Figure(
        width,
        height,
        f"A graph of {blocks} panels on a diagonal, from each an arrow to an update of every block "
        f"column on its right, and from each update one down to what comes next there. {words}",
        max_width=1.2 * width,
    )
    fig.text(LEFT, 12, "block column 0", size=13, color="muted")
    fig.text(_place(order[-1])[0], 12, str(blocks - 1), size=13, color="muted")
    for task, waits in graph(blocks).items():
        for other in waits:
            both = {task, other} <= strong
            _arrow(fig, other, task, color="ink" if both else "faint", width=2.5 if both else 1.2)
    for task in order:
        x, y = _place(task)
        color = "orange" if task[0] == "panel" else "blue"
        now = k is not None and task == ("panel", k)
        look = {"color": color, "width": 5 if now else 2.5 if task in strong else 1.2}
        look |= {"fill": color, "fill_opacity": 0.3 if task in strong else 0.04}
        if task in pale:
            look["dash"] = (3, 3)
        if task[0] == "panel":
            fig.rect(x - R, y - R, 2 * R, 2 * R, r=4, **look)
        else:
            fig.circle(x, y, R, **look)
        fig.text(x, y, name(task), size=13, bold=task in strong)
    said = "square: a panel. round: an update."
    said += " thick: the longest chain" if k is None else " dashed: not needed yet"
    fig.text(12, height - 14, said, size=13, anchor="start", color="muted")
    return fig


def dag_stepper(blocks=5):
    """What each panel waits for, one after the other; last the longest chain of all."""
    frames = [
        Frame(dag_frame(blocks, k), panel_words(blocks, k), f"panel {k}") for k in range(blocks)
    ]
    frames.append(Frame(dag_frame(blocks), whole_words(blocks), "the longest chain"))
    return Stepper(frames, "Panel", "Who waits for whom in blocked QR.", lines=4)
