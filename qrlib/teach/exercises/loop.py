"""Exercises of the chapter The loop. torch, and processes of their own for what is judged."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from qrlib.loop.verdicts import VERDICTS, group
from qrlib.matrices import Case
from qrlib.teach.exercises.compare import close, kind, number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.exercises.measure import adding, noisy
from qrlib.teach.search import Family

# loop.1

GROUPS = ("passed", "failed", "rejected", "inconclusive")
# what a candidate does, and the verdict that it gets
DOES = (
    ("tau has a NaN where a column is zero", "wrong"),
    ("at n = 4096 it is still computing when its time is up", "timed out"),
    ("all results are right, and all lie in one buffer", "aliases"),
    ("all results are right, and it is three times as slow as the record", "passed"),
    ("it scales A in place, and scales it back at the end, but for rounding", "overwrites"),
    ("it waits for a lock that a process has which was killed", "hung"),
    ("it asks for more shared memory than there is, and raises", "raised"),
    ("it puts a faster function in the place of torch.linalg.norm", "patched"),
)


def fates():
    """What each of the eight says of its idea, in the order of the task: eight words of GROUPS."""
    return [
        "failed",
        "inconclusive",
        "rejected",
        "passed",
        "rejected",
        "inconclusive",
        "failed",
        "rejected",
    ]


def _words(answer):
    words = several(answer, [f"word {k + 1}" for k in range(len(DOES))])
    for k, word in enumerate(words):
        if word not in GROUPS:
            raise Wrong(f"Word {k + 1} must be one of {', '.join(GROUPS)}; got {word!r}.")
    return words


_WHY = {
    "passed": "Right is right. What is slow has passed, and is a try like others.",
    "failed": "It is not what was asked for, and says so: evidence against the idea as it is.",
    "rejected": "By its residuals it may be right. Can anybody rest on such a result, or on its "
    "time?",
    "inconclusive": "What do you know of its results, and of its time? It did not come to an end.",
}


def _fate(k):
    does, verdict = DOES[k]

    def step(answer):
        said, right = _words(answer)[k], group(verdict)
        if said != right:
            raise Wrong(f"It is not {said!r} when {does}.", _WHY[right])

    return step


# loop.2


def read(content):
    """(entries, torn): the objects of a ledger, in order, and how many lines are none.

    content: bytes. An entry is a line that is a JSON object. A line of blanks is neither.
    """
    entries, torn = [], 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            torn += 1
            continue
        if isinstance(entry, dict):
            entries.append(entry)
        else:
            torn += 1
    return entries, torn


_ONE, _TWO, _THREE = (json.dumps({"id": k, "us": 7.5 / k}).encode() for k in (1, 2, 3))
_CONTENTS = (
    ("two entries", _ONE + b"\n" + _TWO + b"\n", "Each line is one for json.loads."),
    ("nothing", b"", "An empty ledger has no entries, and nothing in it is torn."),
    (
        "the last line was cut off by a kill",
        _ONE + b"\n" + _TWO[:-4],
        "json.loads raises a ValueError for half a line: count it, and go on.",
    ),
    (
        "somebody has gone on behind a torn line",
        _ONE + b"\n" + _TWO[:5] + b"\n" + _THREE + b"\n",
        "What comes after a torn line is whole again.",
    ),
    (
        "a line was cut off in the middle of a letter",
        _ONE + b'\n{"idea": "\xc3\n' + _TWO + b"\n",
        "UnicodeDecodeError is a ValueError, too: decode line by line, inside the try.",
    ),
    (
        "the rest of a torn line is JSON, but no object",
        b"5\n" + _ONE + b"\n[1]\n",
        "json.loads is content with a number: isinstance(entry, dict) tells.",
    ),
    ("blank lines", b"\n" + _ONE + b"\n  \n", "A line of blanks is no entry, and not torn."),
)


def _reads(what, content, hint):
    def step(answer):
        entries, torn = several(answer(content, about=what), ("entries", "torn"))
        if not isinstance(entries, list):
            raise Wrong(f"entries must be a list; got {kind(entries)}.")
        right, count = read(content)
        if entries != right:
            raise Wrong(f"It gives {len(entries)} entries; there are {len(right)}.", hint)
        if number("torn", torn) != count:
            raise Wrong(f"It counts {torn} torn lines; there are {count}.", hint)

    return step


# loop.3


def records(tries):
    """The numbers of the tries that were records, in order: passed, and faster than all passed.

    tries: a list of {"verdict": str, "us": number or None}, in order.
    """
    best, found = math.inf, []
    for k, each in enumerate(tries):
        if each["verdict"] == "passed" and each["us"] < best:
            best = each["us"]
            found.append(k)
    return found


def _tries(*pairs):
    return [{"verdict": verdict, "us": us} for verdict, us in pairs]


_HISTORIES = (
    (
        "all pass",
        _tries(*(("passed", us) for us in (9, 7, 8, 7.5, 5))),
        "Faster than all before it, and not only than the last one.",
    ),
    (
        "the fastest is wrong",
        _tries(("passed", 9), ("wrong", 1), ("passed", 7)),
        "A wrong result has no time that counts.",
    ),
    (
        "the first ones have no time",
        _tries(("does not import", None), ("timed out", None), ("passed", 8)),
        "What has not passed may have no time: look at the verdict first.",
    ),
    (
        "the same time twice",
        _tries(("passed", 6), ("passed", 6), ("passed", 5.9)),
        "As fast is not faster.",
    ),
    ("no tries", [], "Nothing was tried: an empty list."),
    ("none passes", _tries(("wrong", 3), ("hung", None)), "Then there is no record."),
)


def _recorded(what, tries, hint):
    def step(answer):
        said = answer([dict(each) for each in tries], about=what)
        if not isinstance(said, list):
            raise Wrong(f"It must return a list of numbers; got {kind(said)}.")
        if said != records(tries):
            raise Wrong(f"It says {said}; the records are {records(tries)}.", hint)

    return step


# loop.4

# two families: what is tuned already, and a structure that begins behind
OLD, NEW = Family("old", 100, 80, 4), Family("new", 140, 50, 5)


def patience():
    """(tries of the new family until it is below the old one's floor, until it is below the old one
    when both have had as many tries, share of the old floor that the new one's is)."""
    return 9, 8, 50 / 80


def _first(below):
    """The first number of tries of the new family for which it is below something."""
    return next(k for k in range(1, 1000) if NEW.after(k) < below(k))


_QUESTIONS = (
    (
        "below the old one's floor",
        lambda: _first(lambda k: OLD.floor),
        {
            8: "It is at 84 then: the first try is the start, and seven steps have been made.",
            7: "At 89 it is not there; nor is it with the first try left out.",
            2: "90 has to become 30: it takes log2(3) halvings, and five tries make one.",
        },
    ),
    (
        "below the old one, try for try",
        lambda: _first(OLD.after),
        {
            9: "That is the old one's floor; after a few tries it is still above it.",
            16: "Of each family: both together have made twice as many.",
            7: "At 89 the old one, with 87, is still ahead.",
        },
    ),
)


def _patient(k):
    what, right, slips = _QUESTIONS[k]

    def step(answer):
        said = number(what, several(answer, ("a number", "a number", "a share"))[k])
        if said != right():
            hint = slips.get(said, "after(k) = floor + (start - floor) * 2 ** (-(k - 1) / half).")
            raise Wrong(f"It is not after {said:g} tries that it is {what}.", hint)

    return step


def _share(answer):
    said = number("the share", several(answer, ("a number", "a number", "a share"))[2])
    right = NEW.floor / OLD.floor
    if not close(said, right, 1e-6):
        hint = {
            1 / right: "The other way round: the new floor over the old one.",
            1 - right: "What is left, not what is gone.",
        }.get(said, "Floor over floor: what patience was worth.")
        raise Wrong(f"The new floor is not {said:.4g} of the old one.", hint)


# loop.5


def luck(stopwatch, tries):
    """r: in nine searches of ten in which nothing got better, the gain is at most r.

    A search takes one time of the record, and one of each of so many tries that are as fast as it;
    its gain is the time of the record over the shortest of the others. stopwatch(): one time. Take
    1000 searches or more.
    """
    gains = [stopwatch() / min(stopwatch() for _ in range(tries)) for _ in range(1000)]
    return float(np.quantile(gains, 0.9))


def _luck(answer, stopwatch, tries, about):
    r = number("r", answer(stopwatch, tries, about=about))
    if not 0 < r < math.inf:
        raise Wrong(f"r must be finite and above 0; got {r:.4g}.", "It is a ratio of two times.")
    return r


def _no_luck(answer):
    r = _luck(answer, lambda: 50.0, 10, "always 50 us; 10 tries")
    if not close(r, 1, 1e-9):
        raise Wrong(
            f"Where the clock always shows 50 us nothing gains by luck: r is 1; got {r:.4g}.",
            "The time of the record over the shortest of the tries.",
        )


# of the times that the checker gives: one in 4 % up or down
SIGMA = 0.04


def _expected(tries, share=0.9):
    """The logarithm of r for times whose logarithm wobbles by SIGMA."""
    wobble = SIGMA * np.random.default_rng(1).standard_normal((20_000, tries + 1))
    return float(np.quantile(wobble[:, 0] - wobble[:, 1:].min(1), share))


def _lucky(tries):
    def step(answer):
        about = f"50 us, give or take {SIGMA:.0%}; tries = {tries}"
        r, right = _luck(answer, noisy(SIGMA), tries, about), _expected(tries)
        found = math.log(r)
        if 0.8 < found / right < 1.2:
            return
        slips = (
            (-right, "A gain is the record over the try, and nine in ten do not exceed r."),
            (_expected(1), "That is for a single try. Of many the luckiest is taken."),
            (_expected(tries, 0.5), "Half of the searches gain less; nine in ten are asked for."),
            (1.28 * SIGMA * math.sqrt(1 + 1 / tries), "That is against the mean of the tries; a "
             "record is the shortest."),
        )  # fmt: skip
        near = [said for slip, said in slips if abs(found - slip) < 0.1 * right]
        hint = near[0] if near else "np.quantile(gains, 0.9), of 1000 searches."
        raise Wrong(f"r is {r:.4g}; {math.exp(right):.4g} is expected, or nearly.", hint)

    return step


def _luck_here(answer):
    # whatever this machine does: it is a number
    _luck(answer, adding(), 3, "a sum of 20,000 numbers on this machine; 3 tries")


# loop.6


def caught():
    """The text of a candidate whose residuals are all right, and that is rejected all the same."""
    # solution
    return """
import torch

H = tau = None


def custom_kernel(data):
    global H, tau
    found = torch.geqrf(data)
    if H is None or H.shape != data.shape:
        H, tau = (x.clone() for x in found)
    # the same memory every time: who keeps a result, and calls again, loses it
    H.copy_(found[0])
    tau.copy_(found[1])
    return H, tau
"""
    # end


def outcome(text):
    """What the loop says of a candidate with this text."""
    # it needs a system that locks files
    from qrlib.loop.runner import Limits, evaluate

    with TemporaryDirectory() as folder:
        path = Path(folder) / "candidate.py"
        path.write_text(text, encoding="utf-8")
        return evaluate(
            path,
            "test",
            cases=[Case(2, 24, 1, "dense")],
            device="cpu",
            seed=1,
            limits=Limits(seconds=10.0),
            commit="none",
        )


def _is_caught(answer):
    if not isinstance(answer, str):
        raise Wrong(f"It must be the text of a file, a str; got {kind(answer)}.")
    found = outcome(answer)
    if found.passed:
        raise Wrong(
            "It passes.",
            "What may a kernel not do to its caller, however right its numbers are?",
        )
    if group(found.verdict) != "rejected":
        raise Wrong(
            f"It is {found.verdict!r}, which is {group(found.verdict)}: {found.message}",
            "The numbers must be right: let torch.geqrf make them.",
        )


# a test has no clock
REJECTED = [name for name in VERDICTS if group(name) == "rejected" and name != "clocks disagree"]

EXERCISES = (
    Exercise(
        id="loop.1",
        kind="predict",
        title="what it says of the idea",
        task=f"""
            Eight candidates. Say of each whether it passed, failed (which is evidence against the
            idea as it is), is rejected (no result may rest on such a thing), or whether the run is
            inconclusive:

            {" ".join(f"{k + 1}. {does};" for k, (does, _) in enumerate(DOES))}

            The answer is a list of eight words: passed, failed, rejected, inconclusive.
        """,
        solution=fates,
        steps=(
            ("eight words", _words),
            *((f"candidate {k + 1}", _fate(k)) for k in range(len(DOES))),
        ),
        hints=(
            "Did it come to an end? Then: are the numbers right? Then: may one rely on them?",
            "Two did not come to an end, three do what nobody may rely on, two are wrong.",
            "What is slow and right has passed.",
        ),
    ),
    Exercise(
        id="loop.2",
        kind="implement",
        title="a log that was torn (read)",
        task="""
            A ledger is a file of lines, each a JSON object. A writer was killed in the middle of a
            line, and another one has gone on behind it. Write read(content): the objects in order,
            and how many lines are none. content is bytes. A line of blanks is neither. Nothing may
            raise: the log is what you have left when all else has crashed.
        """,
        solution=read,
        steps=tuple((what, _reads(what, *rest)) for what, *rest in _CONTENTS),
        hints=(
            "Line by line: what is wrong with one says nothing of the next.",
            "Split the content at its newlines; json.loads of each line is for a try.",
            "except ValueError catches half a line and half a letter; isinstance(entry, dict) the "
            "rest.",
        ),
    ),
    Exercise(
        id="loop.3",
        kind="implement",
        title="the line of records (records)",
        task="""
            tries is a list of {"verdict": ..., "us": ...}, in the order in which they were made.
            Write records(tries): the numbers of those that were a record when they were made. A
            record has the verdict "passed", and is faster than every one before it that has passed.
            What has not passed may have no time.
        """,
        solution=records,
        steps=tuple((what, _recorded(what, *rest)) for what, *rest in _HISTORIES),
        hints=(
            "Go through them once, and keep the best time so far.",
            "Which tries may change the best time so far?",
            "best = math.inf to begin with; and then only if verdict is 'passed' and us < best.",
        ),
    ),
    Exercise(
        id="loop.4",
        kind="predict",
        title="how long to be patient",
        task=f"""
            An old family begins at {OLD.start} us, its floor is {OLD.floor}, and {OLD.half} tries
            halve what lies between. A new one begins at {NEW.start}, its floor is {NEW.floor}, and
            {NEW.half} tries halve. So after k tries a family is at

                floor + (start - floor) * 2 ** (-(k - 1) / half)

            1. After how many tries is the new one below the old one's floor? 2. Both take turns
            from the beginning: after how many tries of each is the new one below the old one for
            the first time? 3. What share of the old floor is the new one's? The answer is three
            numbers.
        """,
        solution=patience,
        steps=(
            *((what, _patient(k)) for k, (what, _, _) in enumerate(_QUESTIONS)),
            ("what it is worth", _share),
        ),
        hints=(
            "Make a table of both, for k = 1, 2, 3, ...",
            "1: 90 us above its floor have to become less than 30.",
            "2: seven tries of each are not enough, and the old one is not at its floor yet.",
        ),
        given=(Family,),
    ),
    Exercise(
        id="loop.5",
        kind="measure",
        title="what luck is worth (luck)",
        task="""
            A loop takes the fastest of many tries, and so also the luckiest. How large must a gain
            be to be believed? Write luck(stopwatch, tries): stopwatch() gives one time of one and
            the same thing. In a search, take one time for the record, and one for each of so many
            tries, none of which is any faster. The gain is the time of the record over the shortest
            of the tries. Make 1000 such searches or more: which gain do nine in ten not exceed? The
            checker gives you a stopwatch that stands, one that wobbles, and a real one. For
            playing:

                from qrlib.teach.exercises.measure import adding, noisy

            Before you print it for 1, 10 and 100 tries: how much does it grow, each time?
        """,
        solution=luck,
        steps=(
            ("a clock that stands", _no_luck),
            ("one try", _lucky(1)),
            ("thirty tries", _lucky(30)),
            ("a real clock", _luck_here),
        ),
        hints=(
            "One search is one number: stopwatch() over the smallest of so many more.",
            "min(stopwatch() for _ in range(tries))",
            "A list of 1000 gains, and np.quantile(gains, 0.9).",
        ),
        given=(noisy, adding),
    ),
    Exercise(
        id="loop.6",
        kind="break it",
        title="right, and refused (caught)",
        task=f"""
            Write caught(): the text of a candidate, a Python file with custom_kernel(data) ->
            (H, tau), whose residuals are all within the gates, and that the loop rejects all the
            same. There are {len(REJECTED)} ways: {", ".join(REJECTED)}. The checker runs it in a
            process of its own, on two small matrices, and tells what became of it. At hand:

                from qrlib.teach.exercises.loop import outcome
                print(outcome(caught()))
        """,
        solution=caught,
        steps=(("rejected, and not for its numbers", _is_caught),),
        hints=(
            "What would you not want a library function to do with your memory?",
            "torch.geqrf(data) makes the numbers. What comes back, and where does it lie?",
            "Return the same two tensors from every call, with the new numbers copied into them.",
        ),
        given=(outcome,),
    ),
)
