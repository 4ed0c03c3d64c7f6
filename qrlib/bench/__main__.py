"""python -m qrlib.bench: time stages on the cases of the task, and only what passes.

Without a GPU, and unless sizes are given, the cases are small ones. The exit status is 0 when all
passed, 1 when anything did not, 2 when the question could not be understood.
"""

import argparse
import sys
from functools import partial

from qrlib.bench import profile, q, sweep
from qrlib.bench.chart import bars, draw
from qrlib.bench.results import check_origin, command_line, provenance
from qrlib.matrices import BENCHMARK_CASES, FAMILIES, Case
from qrlib.stages import STAGES


def parser():
    p = argparse.ArgumentParser(prog="python -m qrlib.bench", description=__doc__.split("\n\n")[0])
    add = p.add_argument
    add(
        "--stage",
        nargs="+",
        help="torch, auto, one of the stages, or a module as in qrlib.stages.s03_blocked:nb=16; "
        "if left out all that run here, but not s01_mirror; auto for a sweep; its own for --q",
    )
    add("--precision", nargs="+", default=["fp32"], choices=("fp32", "fast"))
    add(
        "--case",
        nargs="+",
        type=int,
        help="numbers of cases of the task, 0 to 11; of --q, 0 to 9; of --gpus, 0 to 2",
    )
    add("--n", type=int, help="columns, in place of the case's; alone: one case of 16 matrices")
    add("--batch", type=int, help="matrices, in place of the case's")
    add("--family", choices=FAMILIES, help="in place of the case's")
    add("--cond", type=float, help="in place of the case's")
    add(
        "--sweep",
        nargs="*",
        type=int,
        metavar="N",
        help="64 dense matrices of each size; of no size given: of many, and larger ones alone",
    )
    add(
        "--q",
        action="store_true",
        help="Q formed: qr and orthogonalize beside torch.linalg.qr on shapes of optimizers",
    )
    add(
        "--gpus",
        type=int,
        metavar="N",
        help="batches sharded over N GPUs, a process each, beside one GPU; with --device cpu small "
        "ones over N processes; with --replay also by plans, for a host may be slower than a GPU",
    )
    add("--small", action="store_true", help="the cases cut down for a CPU and a minute")
    add("--replay", action="store_true", help="also replayed as a CUDA graph, in rows of its own")
    add("--profile", action="store_true", help="kernel by kernel, where the time of a GPU goes")
    add("--ahead", action="store_true", help="compile all kernels first, by many processes at once")
    add("--compare", help="what speedups are over, by default torch's; none for nothing")
    add("--runs", type=int, default=10, help="of each stage on each case (default 10)")
    add(
        "--seconds",
        type=float,
        help="after which three runs are enough (default 5), or two with --q (default 1)",
    )
    add("--seed", type=int, default=0)
    add("--no-probes", action="store_true", help="do not try the shapes beside a case")
    add("--device", choices=("cpu", "cuda"), help="by default the GPU, if there is one")
    add("--json", metavar="FILE", help="write the results, after every case")
    add("--chart", metavar="FILE", help="draw the results, .svg or .png")
    add("--commit", help="outside a git checkout: what `git describe --always --dirty` says")
    return p


def cases_of(options, small_by_itself):
    """The cases that the options ask for. Raises ValueError for one that is not there."""
    from qrlib.bench.cases import small

    listed, cut = (q.CASES, q.small) if options.q else (BENCHMARK_CASES, small)
    if options.gpus is not None:
        from qrlib.bench import gpus

        listed, cut = gpus.CASES, partial(gpus.small, count=options.gpus)
        unfit = ["q"] * options.q + ["sweep"] * (options.sweep is not None)
        unfit += ["profile"] * options.profile + ["precision"] * (options.precision != ["fp32"])
        unfit += ["compare"] * (options.compare is not None)
        if unfit:
            raise ValueError(
                "--gpus has cases of its own, policy fp32, whole calls, and one GPU to compare "
                f"with; leave out --{', --'.join(unfit)}"
            )
    if options.q:
        unfit = [
            key for key in ("n", "family", "cond", "sweep") if getattr(options, key) is not None
        ]
        unfit += ["replay"] * options.replay + ["precision"] * (options.precision != ["fp32"])
        if unfit:
            raise ValueError(
                "--q has shapes of its own, policy fp32, and calls from Python; "
                f"leave out --{', --'.join(unfit)}"
            )
    own = {key: getattr(options, key) for key in Case._fields if getattr(options, key) is not None}
    if options.sweep is not None:
        cases = [Case(sweep.BATCH, n, 1, "dense") for n in options.sweep] or list(sweep.CASES)
    elif options.case is None and options.n is not None:
        cases = [Case(16, options.n, 1, "dense")]
    else:
        numbers = range(len(listed)) if options.case is None else options.case
        if not all(0 <= k < len(listed) for k in numbers):
            raise ValueError(f"--case must be 0 to {len(listed) - 1}; got {options.case}")
        cases = [listed[k] for k in numbers]
    if options.small or small_by_itself:
        # of sizes that were asked for only the batch is cut
        cases = [cut(case)._replace(n=case.n) if options.sweep else cut(case) for case in cases]
    cases = [case._replace(**own) for case in cases]
    if any(case.n < 1 or case.batch < 1 for case in cases):
        raise ValueError("--n, --batch and --sweep must be 1 or more")
    return cases


class Progress:
    """One line on a terminal that says how far it is and what is being done; elsewhere nothing."""

    def __init__(self, stream):
        self.stream = stream if stream.isatty() else None

    def __call__(self, share, now):
        if self.stream:
            done = round(24 * share)
            bar = "#" * done + "." * (24 - done)
            self.stream.write(f"\r[{bar}] {100 * share:3.0f} %  {now[:60]:60}")
            self.stream.flush()

    def clear(self):
        if self.stream:
            self.stream.write("\r" + " " * 95 + "\r")


def main(arguments=None):
    p = parser()
    options = p.parse_args(arguments)
    try:
        import torch

        from qrlib.bench import measure
    except ModuleNotFoundError as missing:
        print(f"the benchmark needs {missing.name}; python -m qrlib.doctor says how to get it")
        return 2
    gpu = torch.cuda.is_available()
    if options.device == "cuda" and not gpu:
        p.error("--device cuda needs an NVIDIA GPU; python -m qrlib.doctor says what is there")
    # processes on a CPU have to be asked for: they say nothing of GPUs
    at_least = "cuda" if gpu or options.gpus is not None else "cpu"
    device = torch.device(options.device or at_least)
    if options.replay and device.type == "cpu":
        p.error("--replay needs a GPU: a CUDA graph is what is replayed")
    for name in ("profile", "ahead"):
        if getattr(options, name) and device.type == "cpu":
            p.error(f"--{name} needs a GPU, whose kernels it looks at")
    baseline = options.compare or (q.BASELINE if options.q else "torch")
    if baseline == "none" or options.profile:
        baseline = None
    sized = options.n or options.case or options.sweep is not None or options.device == "cpu"
    small_by_itself = not gpu and not sized and not options.small
    if options.gpus is not None:
        small_by_itself = device.type == "cpu"
    command = command_line("qrlib.bench", arguments or sys.argv[1:])
    try:
        if options.runs < 1:
            raise ValueError(f"--runs must be 1 or more; got {options.runs}")
        cases = cases_of(options, small_by_itself)
        if options.gpus is not None:
            from qrlib.bench import gpus

            gpus.check(options.gpus, cases, device)
        stages, skipped = _stages(options, measure, device)
        for name in {x for case in cases for x in (*measure.chosen(stages, case), baseline) if x}:
            measure.resolve(name)
        origin = provenance(device, command, options.commit)
        if options.json:
            # now, and not when hours have been measured
            check_origin(origin, options.json)
    except ValueError as error:
        p.error(str(error))
    if small_by_itself and options.gpus is None:
        print("There is no NVIDIA GPU here, so these are the cases cut down, as with --small.")
    reasons = {name: why.replace(f"stage {name}", "it") for name, why in skipped.items()}
    for why in dict.fromkeys(reasons.values()):
        names = ", ".join(name for name in reasons if reasons[name] == why)
        print(f"left out, for it does not run here: {names}: {why}")

    progress = Progress(sys.stderr)
    if options.ahead:
        from qrlib.bench.ahead import compile_ahead

        progress(0, "kernels are compiled")
        asked = {"precisions": options.precision, "replay": options.replay}
        ours = stages if options.q else [name for name in stages if name != "torch"]
        shapes = cases if options.gpus is None else gpus.batches(options.gpus, cases)
        count = compile_ahead(ours, shapes, **asked)
        print(f"{count} kernels compiled ahead")
    protocol = {"runs": options.runs, "probes": not options.no_probes}
    protocol |= q.PROTOCOL if options.q else {}
    if options.seconds is not None:
        protocol["seconds"] = options.seconds
    protocol = measure.Protocol(**protocol)
    if options.gpus is not None:
        return _on_gpus(options, cases, stages, device, protocol, command)
    results = measure.measure(
        stages,
        cases,
        precisions=options.precision,
        replay=options.replay,
        baseline=baseline,
        seed=options.seed,
        device=device,
        protocol=protocol,
        command=command,
        commit=options.commit,
        told=lambda results: results.save(options.json) if options.json else None,
        progress=progress,
    )
    if options.profile:
        progress(1, "kernels are watched")
        asked = {"precisions": options.precision, "replay": options.replay, "seed": options.seed}
        results = profile.profiled(results, stages, cases, **asked)
        if options.json:
            results.save(options.json)
    progress.clear()
    print(results)
    told = bars(results)
    if options.profile:
        told = profile.report(results)
    elif options.q:
        told = q.report(results)
    elif options.sweep == []:
        told = sweep.report(results)
    print("\n".join(["", *told]))
    return _end(options, results)


def _end(options, results):
    """Draw, if that is asked for; the exit status."""
    if options.chart:
        draw(results, options.chart)
    if not results.passed:
        failed = sum(not row["ok"] for row in results.rows)
        print(f"\n{failed} of {len(results.rows)} rows FAILED and have no time.")
    return 0 if results.passed else 1


def _on_gpus(options, cases, stages, device, protocol, command):
    """What --gpus does; a file is written when all has passed. The exit status."""
    from qrlib.bench import gpus

    told = {"seed": options.seed, "command": command, "commit": options.commit}
    told |= {"device": device, "protocol": protocol}
    try:
        results = gpus.measure(options.gpus, cases, stages=stages, replay=options.replay, **told)
    except gpus.Failed as failed:
        print(f"{failed}\nnothing was measured", file=sys.stderr)
        return 1
    print("\n".join([str(results), "", *gpus.report(results)]))
    if options.json and results.passed:
        results.save(options.json)
    elif options.json:
        print(f"{options.json} is not written, for not everything passed")
    return _end(options, results)


def _stages(options, measure, device):
    """(the stages to run, {one that is left out: why})."""
    if options.q:
        return options.stage or q.stages, {}
    if options.stage or options.sweep is not None or options.gpus is not None:
        return options.stage or ["auto"], {}
    # stage 1 takes one matrix after the other, and would be waited for
    runs = {name: why for name, why in measure.runnable(device).items() if name != STAGES[0]}
    return [name for name, why in runs.items() if not why], {
        k: why for k, why in runs.items() if why
    }


if __name__ == "__main__":
    sys.exit(main())
