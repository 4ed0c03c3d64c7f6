"""Runs a reader's function so that whatever it does comes back as a sentence.

`guard(function, names)` gives a `call` that runs it under a time limit, with its output captured,
and raises Wrong when it raises, runs on and on, prints without end, or writes to an argument that
is to be read. Nothing is started beside this process, so it works in a notebook as it does in a
script. In the main thread an alarm (signal.setitimer) interrupts the function; elsewhere, and where
the system has no such alarm (Windows), it runs in a thread of its own, into which the exception is
thrown. Both wait for the end of the one operation of NumPy or torch that is being computed. A loop
that catches everything (`except:`) is stopped too; one with two of these around each other is not.
"""

import contextlib
import ctypes
import io
import linecache
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
import warnings

import numpy as np

import qrlib

# characters that one call may print
PRINTABLE = 2000


class Wrong(Exception):
    """What is wrong with an answer, in a sentence, and one hint that goes with it."""

    def __init__(self, fault, hint=""):
        super().__init__(fault)
        self.fault, self.hint = fault, hint


class NotYet(Exception):
    """The answer is still the skeleton."""


class _Stop(BaseException):
    """Not an Exception, so that `except Exception` in the answer lets it through."""


class _TimeUp(_Stop):
    pass


class _TooMuch(_Stop):
    pass


def guard(function, names, *, writes=(), limit):
    """`function`, safe to call.

    Args:
        names: its arguments, for the messages. writes: those that it may write.
        limit: seconds a call may take.

    Returns:
        call(*args, about="", inside=None): the value. `about` describes the example when it is too
        large to print; `inside` is a context manager to run in. `call.example` and `call.printed`
        tell of the last call.
    """

    def call(*args, about="", inside=None):
        call.example = _describe(names, args, about)
        before = [bits(a) for a in args]
        output = _Output()
        try:
            value = _run(function, args, limit, output, inside or contextlib.nullcontext())
        except NotImplementedError as error:
            raise NotYet from error
        except Exception as error:
            raise Wrong(f"It raised {_name(error)}{_where(error)}.") from error
        except _TimeUp as error:
            raise Wrong(
                f"It ran longer than {limit:g} s and was stopped{_where(error)}.",
                "Does every loop come nearer to its end each time round?",
            ) from error
        except _TooMuch as error:
            raise Wrong(
                f"It printed more than {PRINTABLE} characters and was stopped{_where(error)}.",
                "Print a shape or a norm, not every number; or take the print out.",
            ) from error
        except SystemExit as error:
            raise Wrong(f"It tried to leave Python (SystemExit){_where(error)}.") from error
        finally:
            call.printed = output.getvalue()
        if unfinished(value):
            raise NotYet
        for name, old, new in zip(names, before, args):
            if name not in writes and bits(new) != old:
                raise Wrong(
                    f"It changed its input {name}, which is to be read only.",
                    "Work on a copy: x -= ... and x[...] = ... write into x, x = x - ... does not.",
                )
        return value

    call.example = call.printed = ""
    return call


def bits(X):
    """The content of an array or tensor, bit by bit; NaN is the same as NaN, 0.0 is not -0.0."""
    if hasattr(X, "detach"):
        X = X.detach().cpu().numpy()
    return X.tobytes() if isinstance(X, np.ndarray) else X


def unfinished(value):
    """Is it `...`, or does it hold `...`?"""
    parts = value.values() if isinstance(value, dict) else value
    listed = isinstance(value, (tuple, list, dict))
    return value is ... or listed and any(part is ... for part in parts)


class _Output(io.StringIO):
    def write(self, text):
        if self.tell() + len(text) > PRINTABLE:
            super().write(text[: PRINTABLE - self.tell()])
            raise _TooMuch
        return super().write(text)


def _run(function, args, limit, output, inside):
    def work():
        # entered where the work is done: what torch watches it watches for one thread
        with inside:
            return function(*args)

    alarm = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        with warnings.catch_warnings():
            # that a number overflowed is what the checks are about
            warnings.simplefilter("ignore")
            return (_with_alarm if alarm else _in_thread)(work, limit)


def _with_alarm(work, limit):
    tracing = sys.gettrace()
    running, rung = True, False

    def ring(signum, frame):
        nonlocal rung
        if not running:
            return
        if rung:
            # a bare `except:` around the loop has swallowed the first one: now the line that comes
            # after it raises too, outside of the `try`
            sys.settrace(lambda *call: None)
            while frame is not None:
                if _is_the_readers(frame.f_code.co_filename):
                    frame.f_trace = _raise_at_line
                frame = frame.f_back
        rung = True
        raise _TimeUp

    handler = signal.signal(signal.SIGALRM, ring)
    start = time.monotonic()
    # whoever else had set the alarm (a test runner does) gets it back afterwards
    others, every = signal.setitimer(signal.ITIMER_REAL, limit, 0.1)
    try:
        try:
            return work()
        finally:
            running = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(tracing)
        signal.signal(signal.SIGALRM, handler)
        if others:
            left = others - (time.monotonic() - start)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), every)


def _raise_at_line(frame, event, arg):
    if event == "line":
        raise _TimeUp
    return _raise_at_line


def _in_thread(work, limit):
    outcome = {}

    def keep():
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error

    worker = threading.Thread(target=keep, daemon=True)
    worker.start()
    worker.join(limit)
    for _ in range(20):
        if not worker.is_alive():
            break
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(worker.ident), ctypes.py_object(_TimeUp)
        )
        worker.join(0.1)
    else:
        # it swallows what is thrown at it; being a daemon, it ends with Python
        raise _TimeUp
    if "value" in outcome:
        return outcome["value"]
    # hit once more while it kept what it was hit by, on a busy machine, it has kept nothing
    raise outcome.get("error") or _TimeUp()


def _name(error):
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_PATHS = sysconfig.get_paths()
_NOT_THE_READERS = (
    *(_PATHS[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")),
    os.path.dirname(qrlib.__file__) + os.sep,
    "<frozen",
    "<__array_function__",
)


def _is_the_readers(filename):
    return not filename.startswith(_NOT_THE_READERS)


def _where(error):
    """', at line 4: `v = x / 0`' for the deepest line of the reader's own code."""
    at = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_the_readers(frame.f_code.co_filename):
            at = frame.f_code.co_filename, line
    if at is None:
        return ""
    text = linecache.getline(*at).strip()
    return f", at line {at[1]} of your code" + (f": `{text}`" if text else "")


def _describe(names, args, about):
    shown = [f"{name} = {brief(value)}" for name, value in zip(names, args)]
    return ", ".join(shown) + (f" ({about})" if about else "")


def brief(value):
    """A number or a small array in full, a large one by its shape and dtype."""
    if not hasattr(value, "shape"):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    if array.ndim == 0:
        return f"{array:.6g}" if array.dtype.kind in "fiu" else repr(value)
    if array.size > 12 or array.dtype.kind not in "fiu":
        return f"{array.dtype} {list(array.shape)}"
    return f"{_entries(array)} {array.dtype}"


def _entries(array):
    if array.ndim == 0:
        return f"{array:.6g}"
    return f"[{', '.join(_entries(each) for each in array)}]"
