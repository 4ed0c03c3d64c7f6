"""Where the time goes: the kernels of a call as the GPU's own profiler saw them, role by role.

`examine` runs where `measure` has found no fault, so that a profile is of a result that passed. The
time of the whole is that of the row, taken without the profiler, which slows down what it watches;
what it leaves beside the kernels is the time of launches: gaps in a graph, and in an eager call
the host as well. Where kernels of several branches run at once, a moment counts for each by its
share, so that roles add up.
"""

import json
import time
from collections import Counter, defaultdict
from itertools import dropwhile
from pathlib import Path
from statistics import median, median_low
from tempfile import TemporaryDirectory
from typing import NamedTuple

from qrlib.bench.results import kind, short, words
from qrlib.bench.roles import ROLES, role
from qrlib.devices import DEVICES, FORMATS

REPEATS = 5
MARK = "qrlib.bench.profile"
# seconds between a marked call and what is beside it: the clocks of host and GPU differ by less
APART = 2e-3


class Event(NamedTuple):
    """A kernel that ran: from start to end in us; threads and bytes of shared memory a block."""

    start: float
    end: float
    name: str
    threads: int | None
    shared: int | None


def examine(contestant, inputs, clock, repeats=REPEATS):
    """What a row of the benchmark has as "profile"; see `summary`. For measure(examine=...)."""
    import torch
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as profiler

    from qrlib.bench.measure import replayed
    from qrlib.bench.starts import noted, starts

    replay, activities = contestant.mode == "replay", [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    # the first time sets the profiler up; a graph is captured when that has been done
    with profiler(activities=activities):
        _, A = inputs.fresh()
    found = []
    with starts(noted(found)):
        call = replayed(contestant.geqrf, A) if replay else contestant.geqrf
        started = [start for start in found if start.captured]
        found.clear()
        call(A)
    with profiler(activities=activities) as watched:
        for _ in range(repeats):
            _, A = inputs.fresh()
            torch.cuda.synchronize()
            time.sleep(APART)
            with record_function(MARK):
                clock(call, A, queued=replay)
            time.sleep(APART)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    wall = median(each.us for each in contestant.times)
    gpu = torch.cuda.get_device_name(A.device)
    return summary(calls(trace), [*started, *found], wall, ceilings(gpu))


def calls(trace):
    """[[Event]] of each marked call, in order, without the sweeps of the cache that it begins with.

    Args:
        trace: as torch.profiler exports it.
    """
    events = [each for each in trace["traceEvents"] if each.get("ph") == "X"]
    marks = sorted(
        (each["ts"], each["ts"] + each["dur"])
        for each in events
        if each["name"] == MARK and each.get("cat") == "user_annotation"
    )
    ran = sorted(
        Event(each["ts"], each["ts"] + each["dur"], each["name"], *_shape(each.get("args", {})))
        for each in events
        if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    margin, found = 0.5e6 * APART, []
    for begin, end in marks:
        found.append(_swept([e for e in ran if begin - margin < e.start < end + margin]))
    if not found or not all(found):
        raise RuntimeError(
            "the profiler must see the kernels of every call, and saw none; torch needs CUPTI for "
            "it, and no other profiler beside it"
        )
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
    timed = [(sum(shares(each)), each) for each in calls]
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
    if any(Counter(event.name for event in each) != counts for each in calls):
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
    """The constants that all have, in all that look the same from outside."""
    first, *others = several or [{}]
    return {k: v for k, v in first.items() if all(each.get(k) == v for each in others)}


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
