"""Stands between the judge and a candidate, so that nothing goes on when the judge is gone.

    python guard.py LIFE STATUS FOLDER COMMAND...

It begins the command in a session of its own, and says on the pipe STATUS what its process is, and
how it has ended. When nobody holds the other end of the pipe LIFE any more, it ends all that the
command has begun: on Linux whoever has it among his parents' parents, for who loses his parent
becomes a child of this process, wherever he has gone. Then it removes FOLDER, as the judge would
have. It imports nothing of this package, to be there at once. A candidate that stops it, or that
holds LIFE open by /proc, goes on when the judge is killed; the judge, while it is there, ends it.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

# Linux's numbers for: a signal when the parent ends; those who lose their parent are ours
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(what, value):
    """Where there is no such call the group of the command is all that is known of it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(what, value)


def stat(pid):
    """Fields of /proc/pid/stat from the state on; bytes, for a process need not be called in text.

    Raises:
        OSError: there is no such process, or no /proc.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def alive():
    """{process id: its `stat`} of all; one that has ended does nothing. Empty without a /proc."""
    found = {}
    with suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError, IndexError):
                fields = stat(name)
                if fields[0] != b"Z":
                    found[int(name)] = fields
    return found


def begun(own, processes):
    """Ids of these and of all that they have begun, among processes as `alive` gives them."""
    own = set(own)
    while more := {pid for pid, fields in processes.items() if int(fields[1]) in own} - own:
        own |= more
    return own


def end(worker):
    """End all of it. What is ended may have begun another one just before."""
    with suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)
    own = os.getpid()
    while left := begun({own}, alive()) - {own}:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def ended(worker):
    """How it has ended, as subprocess has it; None where it has not."""
    if hasattr(os, "waitid"):
        # it is looked at, and not let go: its number is to stay its own
        found = os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    pid, status = os.waitpid(worker, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def run(command, parent):
    """Become the command; not where the parent, who is to look after it, has gone already."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # of an end before that call there is no signal
    if os.getppid() != parent:
        return
    with suppress(OSError):
        os.execv(command[0], command)


def main(life, status, folder, command):
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for fd in (life, status):
        os.set_inheritable(fd, False)
    own, (told, tell) = os.getpid(), os.pipe()
    for fd in (told, tell):
        os.set_blocking(fd, False)
    # a signal that somebody has ended is a byte to read
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    inherited = map(int, os.listdir("/dev/fd"))
    worker = os.fork()
    if not worker:
        run(command, own)
        os._exit(127)
    os.write(status, b"%d\n" % worker)
    # what it prints and replies has an end when it and its own have gone
    for fd in inherited:
        if fd not in (life, status, told, tell):
            with suppress(OSError):
                os.close(fd)
    while life not in select.select([life, told], [], [])[0]:
        os.read(told, 1 << 10)
        code = ended(worker)
        if code is not None:
            with suppress(BrokenPipeError):
                os.write(status, b"%d\n" % code)
            # once is enough
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end(worker)
    # only now, for it takes a while to import
    from shutil import rmtree

    rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
