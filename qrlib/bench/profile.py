"""Where the time goes: the kernels of a call as the GPU's own profiler saw them, role by role.

`profiled` takes what `measure` has found, so that a profile is of a result that passed. The time of
the whole is that of the row, measured before the profiler was there, for it slows down what it
watches; what it leaves beside the kernels is the time of launches: gaps in a graph, and in an eager
call the host as well. Where kernels of several branches run at once, a moment counts for each by
its share, so that roles add up.
"""

import json
import os
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import dropwhile, product
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from typing import NamedTuple

from qrlib.bench.results import kind, short, words
from qrlib.bench.roles import ROLES, role
from qrlib.devices import DEVICES, FORMATS

REPEATS = 5
# with the number of a row behind it
MARK = "qrlib.bench.profile "
# seconds between a marked call and what is beside it: the clocks of host and GPU differ by less
APART = 2e-3


class Event(NamedTuple):
    """A kernel that ran: from start to end in us; threads and bytes of shared memory a block."""

    start: float
    end: float
    name: str
    threads: int | None
    shared: int | None


def profiled(results, stages, cases, *, precisions=("fp32",), replay=False, seed=0, device="cuda"):
    """Results in which every row that passed has a "profile", as in `summary`.

    Args:
        results: what measure has returned for the other arguments, without a baseline.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from qrlib.bench.cases import Inputs
    from qrlib.bench.clock import Clock
    from qrlib.bench.measure import chosen

    device, modes = torch.device(device), ("eager", "replay") if replay else ("eager",)
    clock, started = Clock(device, results.protocol["sweep"]), {}
    # one session for all: graphs do not survive the profiler's end in some versions, and each
    # session loses more of its first kernels than the one before
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
        k = 0
        for case in cases:
            inputs = Inputs(case, seed, device)
            for stage, precision, mode in product(chosen(stages, case), precisions, modes):
                if results.rows[k]["ok"]:
                    started[k] = _marked(k, stage, precision, mode, inputs, clock)
                k += 1
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(path))
        seen = calls(json.loads(path.read_text(encoding="utf-8")))
    most = ceilings(results.provenance["gpu"])
    rows = [
        row | {"profile": summary(seen.get(k, []), started[k], row["median_us"], most)}
        if k in started
        else row
        for k, row in enumerate(results.rows)
    ]
    return replace(results, rows=rows)


def _marked(k, stage, precision, mode, inputs, clock):
    """Call a stage, marked as row k, while the profiler watches; gives [Start] of one call."""
    import torch

    from qrlib.bench.measure import replayed, resolve, task_of
    from qrlib.bench.starts import noted, starts

    (_, geqrf), given = resolve(stage, precision), task_of(stage).given
    A = given(inputs.fresh()[1])
    found, started = [], []
    with starts(noted(found)):
        if mode == "replay":
            geqrf = replayed(geqrf, A)
            started = [start for start in found if start.captured]
            found.clear()
        geqrf(A)
    for _ in range(REPEATS):
        A = given(inputs.fresh()[1])
        torch.cuda.synchronize()
        time.sleep(APART)
        with torch.profiler.record_function(f"{MARK}{k}"):
            clock(geqrf, A, queued=mode == "replay")
        time.sleep(APART)
    return [*started, *found]


def calls(trace):
    """{k: [[Event]]} of calls marked k, in order, without the sweeps of the cache they begin with.

    Args:
        trace: as torch.profiler exports it.
    """
    events = [each for each in trace["traceEvents"] if each.get("ph") == "X"]
    marks = sorted(
        (each["ts"], each["ts"] + each["dur"], int(each["name"].removeprefix(MARK)))
        for each in events
        if each["name"].startswith(MARK) and each.get("cat") == "user_annotation"
    )
    ran = sorted(
        Event(each["ts"], each["ts"] + each["dur"], each["name"], *_shape(each.get("args", {})))
        for each in events
        if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    begins, margin, found = [each.start for each in ran], 0.5e6 * APART, defaultdict(list)
    for begin, end, k in marks:
        first, last = bisect_left(begins, begin - margin), bisect_right(begins, end + margin)
        found[k].append(_swept(ran[first:last]))
    return found


def _swept(events):
    sweep = events[0].name if events else None
    return list(dropwhile(lambda each: each.name == sweep, events))


def _shape(args):
    x, y, z = args.get("block", (None, 1, 1))
    return x and x * y * z, args.get("shared memory")


def shares(events):
    """us of each event, in order; of a time in which k run at once, each has a k-th."""
    edges = sorted(
        (at, opens, k)
        for k, each in enumerate(events)
        for at, opens in ((each.start, True), (each.end, False))
    )
    us, running, last = [0.0] * len(events), set(), 0.0
    for at, opens, k in edges:
        for other in running:
            us[other] += (at - last) / len(running)
        last = at
        (running.add if opens else running.discard)(k)
    return us


def ceilings(gpu):
    """{"of", "memory": bytes a second, format: flops a second} of a GPU by its name, or {}.

    Measured ones where there are any, else its vendor's.
    """
    device = next((each for name, each in DEVICES.items() if name in gpu.split()), None)
    if device is None:
        return {}
    if not device.measured:
        return {"of": f"{device.name}, stated", "memory": device.bandwidth, **device.peak}
    seen = {key: device.measured[key].value for key in FORMATS if key in device.measured}
    of = f"{device.name}, measured {device.measured_on}"
    return {"of": of, "memory": device.measured["bandwidth"].value} | seen


def summary(calls, started, wall_us, ceilings):
    """The profile of one of several calls, that with the median time of kernels.

    Args:
        calls: [[Event]]. started: [Start] of one call. wall_us: what a call takes by the clock.
        ceilings: see there.

    Returns:
        dict: busy_us, in which any kernel ran, and of all calls; sum_us, of all kernels, more where
        they overlap; launch_us, the rest of the wall; roles, kernels, notes.
    """
    timed = [(sum(shares(each)), each) for each in calls if each]
    if not timed:
        raise RuntimeError(
            "the profiler must see the kernels of a call, and saw none; torch needs CUPTI for it, "
            "and no other profiler beside it"
        )
    busy, events = median_low(timed)
    constants = defaultdict(list)
    for each in started:
        constants[each.name, each.threads, each.shared].append(each.constants)
    kernels = defaultdict(lambda: {"count": 0, "us": 0.0})
    for event, us in zip(events, shares(events)):
        one = kernels[event.name, event.threads, event.shared]
        one["count"] += 1
        one["us"] += us
    listed = [
        {
            "name": key[0],
            "role": role(key[0]),
            "constants": _common(constants.get(key)),
            "threads": key[1],
            "shared": key[2],
            **one,
        }
        for key, one in sorted(kernels.items(), key=lambda item: -item[1]["us"])
    ]
    counts = Counter(event.name for event in events)
    expected = Counter(start.name for start in started)
    notes = [
        f"{name}: {counts[name]} ran, and {expected[name]} were started from Python"
        for name in expected
        if counts[name] != expected[name]
    ]
    if any(Counter(event.name for event in each) != counts for _, each in timed):
        notes.append("not all calls had the same kernels")
    return {
        "ceilings": ceilings,
        "calls_us": [round(each, 3) for each, _ in timed],
        "busy_us": busy,
        "sum_us": sum(event.end - event.start for event in events),
        "launch_us": wall_us - busy,
        "launch_share": (wall_us - busy) / wall_us,
        "roles": _roles(listed, started, wall_us, ceilings),
        "kernels": listed,
        "notes": notes,
    }


def _common(several):
    """The constants of launches that look the same from outside, if all have them."""
    first, *others = several or [{}]
    same = {key: v for key, v in first.items() if all(each.get(key) == v for each in others)}
    return {key: v if isinstance(v, int | float | None) else str(v) for key, v in same.items()}


def _roles(kernels, started, wall_us, ceilings):
    """[{role, count, us, share, bytes, flops, memory_us, arithmetic_us, times}], those there are.

    share: of the wall. times: how much longer it took than the longer of memory_us and
    arithmetic_us, which its bytes and flops would take at the ceilings; None where not known. Below
    1 where a cache still has what a kernel reads.
    """
    found = []
    for name in ROLES:
        mine = [each for each in kernels if each["role"] == name]
        if not mine:
            continue
        us, starts = sum(each["us"] for each in mine), [s for s in started if role(s.name) == name]
        known = starts and all(start.bytes is not None for start in starts)
        moved, flops = (sum(start.bytes for start in starts), Counter()) if known else (None, None)
        memory_us = arithmetic_us = None
        if known:
            for start in starts:
                flops.update(start.flops)
        if known and ceilings.keys() >= {"memory", *flops}:
            memory_us = 1e6 * moved / ceilings["memory"]
            arithmetic_us = sum(1e6 * flops[key] / ceilings[key] for key in flops)
        found.append(
            {
                "role": name,
                "count": sum(each["count"] for each in mine),
                "us": us,
                "share": us / wall_us,
                "bytes": moved,
                "flops": flops and dict(flops),
                "memory_us": memory_us,
                "arithmetic_us": arithmetic_us,
                "times": us / max(memory_us, arithmetic_us) if memory_us else None,
            }
        )
    return found


def report(results):
    """Lines: for each row with a profile its roles, then its kernels."""
    for row in results.rows:
        if found := row.get("profile"):
            yield f"{words(row)}: {row['stage']} {kind(row)}, {short(row['median_us'])} us"
            yield from _table(found)


def _table(found):
    yield _line("", "kernels", "us", "share", "at the ceilings: memory", "arithmetic", "times")
    for each in found["roles"]:
        least = (short(each[key], 3) for key in ("memory_us", "arithmetic_us", "times"))
        share = f"{100 * each['share']:.0f} %"
        yield _line(each["role"], each["count"], short(each["us"]), share, *least)
    share = f"{100 * found['launch_share']:.0f} %"
    yield _line("launches", "", short(found["launch_us"]), share, "", "", "")
    for each in found["kernels"]:
        constants = " ".join(f"{k}={v}" for k, v in each["constants"].items())
        told = f"{each['name'][:60]} {constants}".strip()
        yield f"    {short(each['us']):>9} us {each['count']:>6} x {told} ({each['role']})"
    yield from (f"      note: {sentence}" for sentence in found["notes"])


def _line(name, *cells):
    widths = (8, 9, 7, 24, 11, 7)
    return f"  {name:<9}" + " ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths)).rstrip()
