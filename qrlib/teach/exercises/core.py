"""What an exercise is, and the verbs of a reader: show, check, hint, reveal, skeleton, listing.

An exercise is data: its text, its steps (functions that raise Wrong), its hints, and its solution.
The solution is an ordinary tested function. What a reader starts from is that same function with
its body taken out, so the two cannot drift apart. Where only a part is to be written, the solution
has it between two comment lines, `# solution` and `# end`.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import NamedTuple

import numpy as np

from qrlib.teach.exercises.compare import kind, takes
from qrlib.teach.exercises.guard import NotYet, Wrong, guard, unfinished

# in the order of the book; the first number of an exercise is that of its chapter
CHAPTERS = {
    "1": "s01_mirror",
    "2": "s02_unblocked",
    "3": "certify",
    "4": "roofline",
    "5": "s03_blocked",
    "6": "s04_recursive",
    "7": "s05_panel",
    "8": "compilelab",
    "9": "s06_update",
    "10": "s07_whole",
    "11": "reconstruction",
    "12": "precision",
    "13": "s08_cholesky",
    "14": "s09_mixed",
    "15": "s10_blackwell",
    "16": "measure",
    "17": "loop",
    "18": "use",
    "19": "capstone",
}
# the same the other way round: an exercise called by the name of its chapter, as "measure.2", keeps
# that name when chapters are put before it, and its number follows
NUMBERS = {name: number for number, name in CHAPTERS.items()}


class Exercise(NamedTuple):
    """One exercise.

    id: chapter.number, or name.number. kind: predict, implement, break it or measure. title, task:
        plain text.
    solution: the reference. One without arguments stands for the value that it returns, and the
        answer may be such a value or such a function; otherwise the answer is a function.
    steps: pairs (what is checked, function of the answer), the first failure stops.
    hints: three, from a nudge to nearly all.
    writes: the arguments that the answer may write.
    also: functions that the solution is made of, revealed with it.
    given: functions that the exercise is about, shown with its text.
    """

    id: str
    kind: str
    title: str
    task: str
    solution: Callable
    steps: tuple
    hints: tuple
    writes: tuple = ()
    also: tuple = ()
    given: tuple = ()

    @property
    def arguments(self):
        return tuple(inspect.signature(self.solution).parameters)


@dataclass(frozen=True)
class Result:
    """What a check found. `.passed` answers; `print` shows it; a notebook draws it.

    passed: bool. title: which exercise. steps: pairs (what was checked, "ok", "FAIL" or "not done
    yet"), up to the first that is not ok. fault: what is wrong, one sentence. example: the
    arguments it was found with. printed: what the answer printed then. hint: one.
    """

    passed: bool
    title: str
    steps: tuple
    fault: str = ""
    example: str = ""
    printed: str = ""
    hint: str = ""

    @property
    def verdict(self):
        last = self.steps[-1][1]
        return {"ok": "passed", "FAIL": "not passed"}.get(last, last)

    def _notes(self):
        pairs = ("Example", self.example), ("It printed", self.printed.strip()), ("Hint", self.hint)
        return [(name, text) for name, text in pairs if text]

    def __str__(self):
        lines = [f"{self.title}: {self.verdict}"]
        lines += [
            f"  {'...' if word.startswith('not') else word:5}{what}" for what, word in self.steps
        ]
        lines += _wrapped(self.fault, "       ")
        for name, text in self._notes():
            lines += _wrapped(f"{name}: {text}", "  ")
        # a terminal may know ASCII only, and an error message of the reader's may hold anything
        return "\n".join(lines).encode("ascii", "backslashreplace").decode()

    __repr__ = __str__

    def _repr_html_(self):
        steps = "".join(f"<li>{escape(word)}: {escape(what)}</li>" for what, word in self.steps)
        notes = "".join(
            f"<p style='overflow-wrap:anywhere;white-space:pre-line'><strong>{name}:</strong> "
            f"{escape(text)}</p>"
            for name, text in [("Fault", self.fault)] * bool(self.fault) + self._notes()
        )
        return (
            f"<div class='qr-result'><p><strong>{escape(self.title)}: {escape(self.verdict)}"
            f"</strong></p><ul>{steps}</ul>{notes}</div>"
        )


def _wrapped(text, indent):
    return [
        line
        for each in text.splitlines()
        for line in textwrap.wrap(each, 88, initial_indent=indent, subsequent_indent=indent)
    ]


def exercises(chapter):
    """The exercises of a chapter, a key of CHAPTERS.

    Raises:
        RuntimeError: the chapter needs torch, and torch is not installed.
    """
    try:
        return import_module(f"qrlib.teach.exercises.{CHAPTERS[chapter]}").EXERCISES
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("qrlib"):
            raise
        raise RuntimeError(
            f"the exercises of chapter {chapter} need {missing.name}, which is not installed here; "
            f"run `pip install {missing.name}`"
        ) from missing


def find(id):
    """The exercise called `id`, by the number of its chapter or its name: "2.3", "measure.2"."""
    chapter, _, k = str(id).partition(".")
    chapter = NUMBERS.get(chapter, chapter)
    if chapter in CHAPTERS:
        for exercise in exercises(chapter):
            if exercise.id.partition(".")[2] == k:
                return exercise
    known = [each.id for chapter in CHAPTERS for each in _available(chapter)]
    raise ValueError(f"no exercise {id!r}; there are {', '.join(known)}")


def _available(chapter):
    try:
        return exercises(chapter)
    except RuntimeError:
        return ()


def listing():
    """Print the exercises, chapter by chapter."""
    for chapter in CHAPTERS:
        for exercise in _available(chapter):
            print(f"  {exercise.id}  {exercise.kind:10} {exercise.title}")


def show(id):
    """Print the text of an exercise, and the functions that it is about."""
    exercise = find(id)
    parts = [f"{_title(exercise)} ({exercise.kind})", _paragraphs(exercise.task)]
    parts += [source_of(each) for each in exercise.given]
    name = exercise.solution.__name__
    parts += [
        f'Start from print(ex.skeleton("{exercise.id}")); ex.check("{exercise.id}", {name}) checks.'
    ]
    print("\n\n".join(parts))


_hints_given = {}


def hint(id, level=None):
    """Print a hint: the next one with every call, or the one of a level, 1 to 3."""
    exercise = find(id)
    count = len(exercise.hints)
    if level is None:
        level = _hints_given.get(exercise.id, 0) + 1
        _hints_given[exercise.id] = level
        if level > count:
            print(f"There are no more hints for {id}; ex.reveal({exercise.id!r}) shows a solution.")
            return
    if level not in range(1, count + 1):
        raise ValueError(f"level must be 1 to {count}; got {level!r}")
    print(_paragraphs(f"Hint {level} of {count} for {exercise.id}: {exercise.hints[level - 1]}"))


def reveal(id):
    """Print the solution: the source of the function that the tests run."""
    exercise = find(id)
    sources = [source_of(each) for each in (exercise.solution, *exercise.also)]
    print("\n\n".join([f"{_title(exercise)}: a solution", *sources]))


def skeleton(id):
    """The cell a reader starts from: the solution without its body, and the call that checks it."""
    exercise = find(id)
    name = exercise.solution.__name__
    return f'{_emptied(exercise.solution)}\n\nex.check("{exercise.id}", {name})'


_NONE = object()


def check(id, answer=_NONE, *, limit=10.0):
    """Check an answer: ex.check("1.2", larfg), or @ex.check("1.2") over a function.

    Args:
        id: as `find` takes it. answer: a function; for an exercise that asks for numbers or inputs,
            those, or a function that returns them.
        limit: seconds that one call of the answer may take.

    Returns:
        Result; as a decorator the function itself, with the result shown.
    """
    exercise = find(id)
    if answer is not _NONE:
        return judge(exercise, answer, limit)

    def decorate(function):
        result = judge(exercise, function, limit)
        try:
            from IPython import get_ipython
            from IPython.display import display
        except ModuleNotFoundError:
            print(result)
            return function
        display(result) if get_ipython() else print(result)
        return function

    return decorate


def judge(exercise, answer, limit):
    """The steps of an exercise, one after another, up to the first failure."""
    names = exercise.arguments
    call = guard(answer, names, writes=exercise.writes, limit=limit)
    call.printed = ""
    steps = (("an answer", None), *exercise.steps)
    done = []

    def result(passed=False, **more):
        return Result(passed, _title(exercise), tuple(done), printed=call.printed, **more)

    for what, step in steps:
        try:
            if step is None:
                given = _receive(exercise, answer, call)
            else:
                # a wrong answer makes NaN and infinity; the step will say so
                with np.errstate(all="ignore"):
                    step(given)
        except NotYet:
            done.append((what, "not done yet"))
            return result(
                fault="The place for your code still holds `...`: write it there and check again.",
                hint=f'ex.show("{exercise.id}") tells the task, ex.hint("{exercise.id}") helps.',
            )
        except Wrong as wrong:
            done.append((what, "FAIL"))
            return result(
                fault=wrong.fault, example=call.example, hint=wrong.hint or exercise.hints[0]
            )
        done.append((what, "ok"))
    return result(passed=True)


def _receive(exercise, answer, call):
    """What the steps get: the value, or the guarded function."""
    if unfinished(answer):
        raise NotYet
    if not exercise.arguments:
        if not callable(answer):
            return answer
        takes(answer, ())
        return call()
    name = exercise.solution.__name__
    if not callable(answer):
        raise Wrong(
            f"The answer must be a function; got {kind(answer)}.",
            f'Give the function itself, without calling it: ex.check("{exercise.id}", {name}).',
        )
    takes(answer, exercise.arguments)
    return call


def _title(exercise):
    chapter, _, k = exercise.id.partition(".")
    return f"Exercise {NUMBERS.get(chapter, chapter)}.{k}, {exercise.title}"


def _paragraphs(text):
    """Text from an indented string literal, wrapped; blocks indented further stay as they are."""
    blocks = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        block if block.startswith(" ") else textwrap.fill(block, 88) for block in blocks
    )


def source_of(function):
    """The source of a function, or of a kernel, which holds its function as `fn`."""
    function = getattr(function, "fn", function)
    return textwrap.dedent(inspect.getsource(inspect.unwrap(function)))


def _emptied(function):
    """The source of a solution with its body, or what is between its marks, left to be written."""
    source = source_of(function)
    lines = source.splitlines()
    marks = [line.strip() for line in lines]
    if "# solution" in marks:
        start, end = marks.index("# solution"), marks.index("# end") + 1
    else:
        docstring = ast.parse(source).body[0].body[0]
        start, end = docstring.end_lineno, len(lines)
    first = next(line for line in lines[start:end] if line.strip())
    indent = first[: len(first) - len(first.lstrip())]
    lines[start:end] = [f"{indent}# your code goes here", f"{indent}return ..."]
    return "\n".join(lines) + "\n"
