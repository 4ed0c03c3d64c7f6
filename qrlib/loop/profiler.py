"""Where the time of a candidate goes, in one table; what this machine cannot tell is said.

On a GPU its kernels, as torch's profiler saw them, by their roles and against the ceilings
(qrlib.bench.profile), and the bytes that Nsight Compute has counted, where it is installed. On a
CPU the operators of torch.
"""

import csv
import shutil
import subprocess
import sys
from collections import defaultdict

from qrlib.bench.results import short, words
from qrlib.loop.process import Limits, Process, Stop, environment
from qrlib.loop.runner import Judge, alone, device_of, named, plan_of, seed_of

# calls that are watched, and operators that are shown
CALLS, SHOWN = 5, 12
# of Nsight Compute, in base units: nanoseconds and bytes
TIME, BYTES = "gpu__time_duration.sum", "dram__bytes.sum"


def profile(
    candidate,
    *,
    case=None,
    device=None,
    full=False,
    seed=None,
    limits=None,
    told=lambda text: None,
):
    """Lines: the profile of a candidate on benchmark cases, by default on case 3, 640 x 512.

    Args:
        case: numbers of benchmark cases. Others as for runner.evaluate.

    Raises:
        ValueError: no such file or case. RuntimeError: the candidate did not get so far.
    """
    import torch

    _, path, _ = named(candidate)
    device = device_of(device)
    small = device.type == "cpu" and not full
    cases = [case for case, _ in plan_of("bench", case or [3], small, 1)]
    seed = seed_of(0 if seed is None else seed)
    process = Process(device, limits or Limits())
    with alone(told), process.alive():
        try:
            Judge(process, seed, 1.0).start(path)
            told("watching it")
            reply = process.ask("profile", cases=[list(each) for each in cases], seed=seed)
            if "verdict" in reply:
                raise Stop(reply["verdict"], reply["message"])
        except Stop as stop:
            verdict, message = stop.args
            raise RuntimeError(f"{candidate} was not profiled: {verdict}: {message}") from None
    yield from reply["lines"]
    if device.type == "cuda" and shutil.which("ncu"):
        for each in cases:
            yield from counted(_nsight(path, each, seed), torch.cuda.get_device_name(device))
    yield from (f"missing here: {sentence}" for sentence in missing(device))


def missing(device):
    """Sentences: what a profile lacks on this machine."""
    if device.type != "cuda":
        yield (
            "an NVIDIA GPU, so there are operators in place of kernels, no roles, and no ceilings"
        )
        return
    import torch

    from qrlib.bench.profile import ceilings

    name = torch.cuda.get_device_name(device)
    if not ceilings(name):
        yield f"ceilings of {name}: qrlib.devices has none"
    if not shutil.which("ncu"):
        yield "Nsight Compute (ncu), so bytes are those that a kernel has to move, not counted ones"


def profiled(candidate, device, cases, seed):
    """In the worker: {"lines"} of the profile."""
    see = _kernels if device.type == "cuda" else _operators
    return {"lines": see(candidate, device, cases, seed)}


def _kernels(candidate, device, cases, seed):
    from qrlib.bench import profile
    from qrlib.bench.measure import Protocol, measure
    from qrlib.matrices import Case

    cases, asked = [Case(*case) for case in cases], {"precisions": ("fast",), "seed": seed}
    protocol = Protocol(runs=3, probes=False)
    found = measure(
        [candidate], cases, baseline=None, device=device, protocol=protocol, **asked
    )  # fmt: skip
    faults = [f"{words(row)}: {each}" for row in found.rows for each in row["faults"]]
    return [*profile.report(profile.profiled(found, [candidate], cases, **asked)), *faults]


def _operators(candidate, device, cases, seed):
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watching

    from qrlib.bench.cases import Inputs
    from qrlib.bench.clock import Clock
    from qrlib.matrices import Case

    clock, lines = Clock(torch.device(device), 1 << 20), []
    for case in (Case(*case) for case in cases):
        inputs = Inputs(case, seed, device)
        candidate(inputs.fresh()[1])
        taken = [clock(candidate, inputs.fresh()[1])[2].us for _ in range(CALLS)]
        wall = sorted(taken)[CALLS // 2]
        variants = [inputs.fresh()[1] for _ in range(CALLS)]
        with watching(activities=[ProfilerActivity.CPU], with_flops=True) as watched:
            for A in variants:
                candidate(A)
        seen = [
            (each.key, each.count, each.self_cpu_time_total, each.flops)
            for each in watched.key_averages()
            if each.self_cpu_time_total > 0
        ]
        total = sum(us for _, _, us, _ in seen)
        seen.sort(key=lambda each: -each[2])
        lines.append(f"{words(case)}: {short(wall)} us a call")
        lines.append(_line("operator", "calls", "share", "GFLOP/s"))
        for name, count, us, flops in seen[:SHOWN]:
            rate = short(flops / us / 1e3, 3) if flops else ""
            lines.append(_line(name, f"{count / CALLS:g}", f"{100 * us / total:.0f} %", rate))
        if rest := sum(us for _, _, us, _ in seen[SHOWN:]):
            lines.append(_line("all others", "", f"{100 * rest / total:.0f} %", ""))
    return lines


def _line(name, *cells):
    return f"  {name[:40]:40} " + " ".join(f"{cell:>9}" for cell in cells).rstrip()


def _nsight(path, case, seed):
    """What Nsight Compute writes of one call, as CSV."""
    watched = [sys.executable, "-m", __name__, path, *map(str, case), str(seed)]
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--nvtx", "--nvtx-include", "watched/", "--metrics", f"{TIME},{BYTES}", *watched]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    return done.stdout


def counted(text, gpu):
    """Lines: time and counted bytes of each kernel, against the memory's ceiling.

    Args:
        text: CSV of Nsight Compute, with what it says around it. gpu: its name.
    """
    from qrlib.bench.profile import ceilings
    from qrlib.bench.roles import role

    lines = text.splitlines()
    heads = [k for k, line in enumerate(lines) if line.startswith('"ID"')]
    if not heads:
        told = " ".join(" ".join(lines[-3:]).split())
        yield f"missing here: counters; ncu said: {told or 'nothing'}"
        return
    kernels = defaultdict(lambda: [0, 0.0, 0.0])
    # the line below the heads has the units
    for row in list(csv.DictReader(lines[heads[0] :]))[1:]:
        one = kernels[row["Kernel Name"].partition("(")[0]]
        one[0] += 1
        for k, metric in enumerate((TIME, BYTES), 1):
            one[k] += float(row[metric].replace(",", ""))
    most = ceilings(gpu).get("memory")
    total = sum(ns for _, ns, _ in kernels.values()) or 1.0
    yield _line("counted by Nsight Compute", "kernels", "share", "MB", "of memory")
    for name, (count, ns, moved) in sorted(kernels.items(), key=lambda item: -item[1][1]):
        share = f"{100 * moved / ns * 1e9 / most:.0f} %" if most and ns else ""
        told = f"{name} ({role(name)})"
        yield _line(told, str(count), f"{100 * ns / total:.0f} %", short(moved / 1e6, 3), share)


def main(path, batch, n, cond, family, seed):
    """One call that Nsight Compute watches, after one that compiles."""
    import torch

    from qrlib.bench.cases import Inputs
    from qrlib.bench.measure import resolve
    from qrlib.loop.worker import _imported
    from qrlib.matrices import Case

    kernel = _imported(path) if path.endswith(".py") else resolve(path)[1]
    inputs = Inputs(Case(int(batch), int(n), float(cond), family), int(seed), "cuda")
    kernel(inputs.fresh()[1])
    _, A = inputs.fresh()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("watched")
    kernel(A)
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()


if __name__ == "__main__":
    main(*sys.argv[1:])
