"""The log of a search: a line of JSON for each try and each decision, added to and never changed.

A line is one write, under a lock that all writers share, and on the disk before `append` returns.
Who is killed in the middle of it leaves a torn line. It stays where it is, `read` tells of it and
passes over it, and the next line begins behind it.
"""

import json
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from qrlib.loop.locks import fcntl

# a try is a candidate and what became of it; a family is opened, kept or killed
KINDS = ("try", "family")


@dataclass(frozen=True)
class Log:
    """What `read` found.

    entries: a dict for each whole line, in order; id, kind and date are in all of them.
    damaged: a sentence for each line that is not one.
    """

    entries: list
    damaged: list

    @property
    def tries(self):
        return [each for each in self.entries if each["kind"] == "try"]

    def find(self, name):
        """The try of this number, or the last one of this candidate.

        Raises:
            ValueError: there is none.
        """
        number = str(name).removeprefix("#")
        for each in reversed(self.tries):
            if str(each["id"]) == number or each["candidate"] == name:
                return each
        known = ", ".join(f"#{each['id']} {each['candidate']}" for each in self.tries[-8:])
        raise ValueError(
            f"there must be a try of that number or name; got {name!r}; the last ones are: "
            f"{known or 'none, the ledger is empty'}"
        )

    def scored(self, basis=None):
        """The tries that have a score, of one basis; that of the last of them when None.

        Times of two machines, or of other cases, are not compared.

        Raises:
            ValueError: no try has a score of that basis.
        """
        found = [each for each in self.tries if each.get("geomean_us")]
        known = dict.fromkeys(each["basis"] for each in found)
        if basis is None:
            basis = found[-1]["basis"] if found else None
        elif basis not in known:
            raise ValueError(
                f"basis must be that of a score in the ledger; got {basis!r}; there are: "
                f"{'; '.join(known) or 'none, for no try has a score'}"
            )
        return [each for each in found if each["basis"] == basis]

    def record(self, basis=None):
        """The tries that were faster than all before them, in order; the last one holds it."""
        best, found = float("inf"), []
        for each in self.scored(basis):
            if each["geomean_us"] < best:
                best = each["geomean_us"]
                found.append(each)
        return found


def read(path):
    """The Log of a file; an empty one where there is no file yet.

    Raises:
        ValueError: it is a device or a pipe. OSError: it cannot be read.
    """
    try:
        # of a pipe a writer would be waited for
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return Log([], [])
    with _locked(fd, fcntl.LOCK_SH):
        _file(fd, path)
        return _parsed(_content(fd))


def writable(path):
    """Nothing where a line can be added to a file, which is made where there is none.

    Raises:
        ValueError: it is a file of another kind. OSError: it cannot be written to.
    """
    fd = _opened(path)
    with _locked(fd, fcntl.LOCK_SH):
        _file(fd, path)
        _known(_content(fd), path)


def append(path, kind, **fields):
    """Add an entry, and give it with the number and the date that it got.

    Args:
        kind: one of KINDS. fields: what else is to be in it, as JSON has it.

    Raises:
        ValueError: another kind, a field that JSON has no word for, or a file that is no ledger.
        OSError: no room or no permission; the ledger is as it was.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    fd = _opened(path)
    with _locked(fd, fcntl.LOCK_EX):
        before = _content(fd)
        _known(before, path)
        # numbers go on behind a torn line, whose number nobody has been told
        last = max((each["id"] for each in _parsed(before).entries), default=0)
        entry = {
            "id": last + 1,
            "kind": kind,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **fields,
        }
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        if before and not before.endswith(b"\n"):
            line = b"\n" + line
        _write(fd, line, path, len(before))
    return entry


def _file(fd, path):
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise ValueError(f"the ledger must be a file; got {path}, which is none of a disk")


def _known(content, path):
    """Raises ValueError where there is something, and it does not begin as a ledger does."""
    if content.strip() and not content.lstrip().startswith(b"{"):
        raise ValueError(
            "the ledger must be a file that the loop has begun, or a new one; nothing was added to "
            f"{path}, for it has something else in it"
        )


def _opened(path):
    try:
        # of a pipe the reader would be waited for
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
    except OSError as error:
        raise OSError(
            error.errno, f"the ledger must be a file to write to; got {path}: {error.strerror}"
        ) from None


def _write(fd, line, path, size):
    """All of a line, or nothing of it."""
    try:
        written = os.write(fd, line)
        if written < len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written")
        os.fsync(fd)
    except OSError as error:
        # a pipe or a device has no size to go back to
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise OSError(
            error.errno,
            f"{path} must take a line of {len(line)} bytes; {error.strerror or error}; nothing "
            f"was recorded: make room and record it again: {line.decode().strip()}",
        ) from error


@contextmanager
def _locked(fd, how):
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        # lets go of the lock, too
        os.close(fd)


def _content(fd):
    # of a device there is no end
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _parsed(content):
    entries, damaged = [], []
    for k, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            entry = _entry(line)
            if entry:
                entries.append(entry)
            else:
                start = line[:40].decode(errors="replace")
                damaged.append(
                    f"line {k} is no whole entry and is passed over: {start!r}, {len(line)} bytes; "
                    "a writer was stopped in it"
                )
    return Log(entries, damaged)


def _entry(line):
    """The entry of a line, or None."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(entry, dict) and entry.get("kind") in KINDS
    return entry if whole and isinstance(entry.get("id"), int) else None
