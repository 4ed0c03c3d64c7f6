"""python -m qrlib.loop: judge and time candidates, keep a ledger of them, and look at it.

The exit status is 0 when a candidate passed, 1 when it did not, 2 when the question could not be
understood.
"""

import argparse
import os
import sys
from pathlib import Path

from qrlib.bench.results import command_line
from qrlib.loop import beam, forms, history, ledger, shown, workspace
from qrlib.loop.report import report


def parser():
    p = argparse.ArgumentParser(prog="python -m qrlib.loop", description=__doc__.split("\n\n")[0])
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, words, run):
        one = commands.add_parser(name, help=words, description=words)
        one.set_defaults(run=run)
        return one

    new = command(
        "new", "a folder with the problem, the rules, a candidate and an empty ledger", _new
    )
    new.add_argument("name")

    for mode, words in (
        ("test", "the test specs of the task, each on inputs that nobody has seen"),
        ("bench", "the benchmarks of the task, timed, every result judged"),
        ("leaderboard", "tests, then all benchmarks: the score that counts"),
    ):
        each = command(mode, words, _judge)
        _judged(each, mode)
        about = each.add_argument_group("for the ledger")
        for option, words in (
            ("parent", "the try that it comes from, by number (#7) or name"),
            ("family", "the family of ideas that it is of; a+b for one of two"),
            ("idea", "what is new, in few words"),
            ("hypothesis", "why it should be faster"),
            ("prediction", "by how much"),
        ):
            about.add_argument(f"--{option}", help=words, default="")
        about.add_argument("--no-ledger", action="store_true", help="record nothing")
        _ledger(about)

    profile = command("profile", "where the time of a candidate goes", _profile)
    _judged(profile, "profile")

    _ledger(command("log", "every entry, a line each", _log))
    show = command("show", "one try in full", _show)
    show.add_argument("try", help="number or name")
    diff = command("diff", "what differs between two tries", _diff)
    diff.add_argument("tries", nargs=2, help="number or name")
    for each in (show, diff):
        _ledger(each)

    board = command("beam", "the board of ideas; open, keep or kill a family", _beam)
    board.add_argument("what", nargs="?", choices=("open", "keep", "kill"))
    board.add_argument("name", nargs="?")
    board.add_argument("--role", choices=beam.ROLES, help="exploit if left out")
    board.add_argument("--cost", choices=beam.COSTS, help="what it is about; other if left out")
    board.add_argument("--hypothesis", help="why it should be faster")
    board.add_argument("--reason", choices=beam.REASONS, help="that it is killed for")
    board.add_argument("--because", help="what was seen")
    _ledger(board)

    lineage = command("lineage", "draw the time of every try and the record", _lineage)
    lineage.add_argument("-o", "--output", default="lineage.svg", help="an .svg or .png file")
    told = command("report", "the story of the search as markdown", _report)
    told.add_argument("-o", "--output", help="a file; standard output if left out")
    told.add_argument("--picture", help="a file with the lineage, named in the page")
    for each in (lineage, told):
        each.add_argument("--basis", help="of the scores, as `show` has it; the last one's")
        _ledger(each)

    one = command("bundle", "a stage as one file that runs alone", _bundle)
    one.add_argument("stage")
    one.add_argument("-o", "--output", required=True)
    one.add_argument("--precision", default="fp32", choices=("fp32", "fast"))
    return p


def _ledger(p):
    known = ", ".join(history.FILES)
    p.add_argument(
        "--ledger", default=workspace.LEDGER, help=f"a file; to read, our own way, too: {known}"
    )


def _judged(p, mode):
    add = p.add_argument
    add("candidate", help="a file with custom_kernel(data) -> (H, tau); torch, auto, or a stage")
    if mode != "leaderboard":
        add("--case", nargs="+", type=int, help="numbers of cases; all if left out")
    add("--device", choices=("cpu", "cuda"), help="the GPU if left out, where there is one")
    add("--full", action="store_true", help="on a CPU, too, cases of full size")
    add("--seed", type=int, help="of the inputs; a secret one if left out")
    if mode in ("bench", "leaderboard"):
        add("--runs", type=int, default=10, help="timed calls of a case (default 10)")
        add("--seconds", type=float, default=2.0, help="after which three are enough (default 2)")
    add("--limit", type=float, help="seconds for any one answer of the candidate (default 180)")
    add("--memory", type=int, help="MiB for all its processes (default half of the machine's)")
    add("--commit", help="outside a git checkout: what `git describe --always --dirty` says")


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    p = parser()
    options = p.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        # a name of a file need be no text, and not every terminal can write each
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        options.line = command_line("qrlib.loop", arguments)
        status = options.run(options) or 0
        # there is none where it was closed from the beginning
        if sys.stdout:
            sys.stdout.flush()
        return status
    except ModuleNotFoundError as missing:
        told = f"this needs {missing.name}; python -m qrlib.doctor says how to get it"
        print(f"{p.prog}: {told}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{p.prog}: stopped from the keyboard; nothing was recorded", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # who reads has enough
        _drop_output()
        return 0
    except (ValueError, OSError, RuntimeError) as error:
        print(f"{p.prog}: {error}", file=sys.stderr)
        try:
            if sys.stdout:
                sys.stdout.flush()
        except OSError:
            _drop_output()
        return 2


def _drop_output():
    """Nothing is to be said, and no other status given, when Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read(options):
    """The Log, whose damage is told."""
    if options.ledger in history.FILES:
        return history.load(options.ledger)
    path = Path(options.ledger)
    if not path.is_file():
        raise ValueError(
            f"the ledger must be a file; got {path}; `new NAME` makes a workspace with one"
        )
    log = ledger.read(path)
    for sentence in log.damaged:
        print(f"{path}: {sentence}", file=sys.stderr)
    for each in log.entries:
        if found := list(forms.faults(each)):
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise ValueError(
                f"{path}: an entry must be one that the loop has written; of #{each['id']} "
                f"{', '.join(found[:3])}{more}: take it out, or record what it is about with a "
                "command"
            )
    return log


def _write(path, text):
    try:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OSError(
            error.errno,
            f"-o must be a file with room for {len(text):,} characters; got {path}: "
            f"{error.strerror}",
        ) from None


def _writable(options):
    if options.ledger in history.FILES:
        raise ValueError(f"{options.ledger} is our own way, and can only be read; give a file")
    return options.ledger


def _new(options):
    folder = workspace.create(options.name)
    print(f"{folder}: {', '.join(sorted(each.name for each in folder.iterdir()))}")
    print(f"cd {folder} && python -m qrlib.loop test candidate.py")


def _limits(options):
    from qrlib.loop.process import MOST_MEMORY, Limits, number

    given = {}
    if options.limit is not None:
        number("--limit", options.limit)
        given["seconds"] = options.limit
    if options.memory is not None:
        number("--memory", options.memory, whole=True, most=MOST_MEMORY >> 20)
        given["memory"] = options.memory << 20
    return Limits(**given)


def _told(text):
    if sys.stderr.isatty():
        print(f"  {text}", file=sys.stderr)


def _judge(options):
    from qrlib.loop.runner import evaluate

    if not options.no_ledger:
        # before an hour of measuring, not after it
        ledger.writable(_writable(options))
        if options.family:
            beam.check_names(options.family)
        if options.parent:
            _read(options).find(options.parent)
    asked = {key: getattr(options, key) for key in ("device", "full", "seed", "commit")}
    asked |= {key: getattr(options, key) for key in ("runs", "seconds") if hasattr(options, key)}
    outcome = evaluate(
        options.candidate,
        options.command,
        cases=getattr(options, "case", None),
        limits=_limits(options),
        command=options.line,
        told=_told,
        **asked,
    )
    print(outcome)
    if not options.no_ledger:
        about = ("parent", "family", "idea", "hypothesis", "prediction")
        entry = outcome.record(
            options.ledger, **{key: getattr(options, key) or None for key in about}
        )
        print(f"  recorded as #{entry['id']} in {options.ledger}")
    return 0 if outcome.passed else 1


def _log(options):
    print("\n".join(shown.listed(_read(options))) or "the ledger is empty")


def _show(options):
    print("\n".join(shown.shown(_read(options).find(getattr(options, "try")))))


def _diff(options):
    log = _read(options)
    a, b = map(log.find, options.tries)
    print("\n".join(shown.difference(a, b, options.ledger)))


def _beam(options):
    every = dict.fromkeys(key for keys in forms.EVENTS.values() for key in keys)
    given = [key for key in every if getattr(options, key) is not None]
    own = forms.EVENTS.get(options.what, ())
    if unfit := [f"--{key}" for key in given if key not in own]:
        known = "; ".join(f"{what}: --{', --'.join(keys)}" for what, keys in forms.EVENTS.items())
        raise ValueError(
            f"beam {options.what or 'alone'} must do without {', '.join(unfit)}, which it would "
            f"not look at; what is for which: {known}"
        )
    if options.what:
        path, name = _writable(options), options.name or ""
        if options.what == "open":
            about = {key: getattr(options, key) for key in own}
            beam.open_family(path, name, **about)
        elif options.what == "keep":
            beam.keep(path, name, options.because)
        else:
            beam.kill(path, name, options.reason, options.because)
    print("\n".join(beam.board(_read(options))))


def _lineage(options):
    from qrlib.teach.figures.loop import save

    save(_read(options), options.output, options.basis)
    print(options.output)


def _report(options):
    text = "\n".join(report(_read(options), options.picture, options.basis)) + "\n"
    if options.output:
        _write(options.output, text)
    else:
        print(text, end="")


def _bundle(options):
    from qrlib.loop.bundle import bundle

    text = bundle(options.stage, options.precision)
    _write(options.output, text)
    print(f"{options.output}: {len(text.splitlines())} lines, custom_kernel(data) -> (H, tau)")


def _profile(options):
    from qrlib.loop.profiler import profile

    asked = {key: getattr(options, key) for key in ("device", "full", "seed", "case")}
    print("\n".join(profile(options.candidate, limits=_limits(options), told=_told, **asked)))


if __name__ == "__main__":
    sys.exit(main())
