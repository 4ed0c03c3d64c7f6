"""What can become of a candidate, by name: what it means, and what to do about it."""

from typing import NamedTuple


class Verdict(NamedTuple):
    """An end that a candidate can come to.

    group: passed; failed, which is evidence against it; rejected, for it does what no result may
        rest on; inconclusive, which says nothing of it.
    """

    group: str
    means: str
    todo: str


VERDICTS = {
    "passed": Verdict("passed", "every result is within the gates", ""),
    "does not import": Verdict(
        "failed",
        "the file could not be imported, or has no custom_kernel",
        "run it alone with python first",
    ),
    "raised": Verdict("failed", "a call ended in an error", "run that case alone, with --case"),
    "malformed": Verdict(
        "failed",
        "what came back has the wrong form, shape, dtype or device",
        "return (H, tau), float32, [B, n, n] and [B, n], on the device of the input",
    ),
    "wrong": Verdict(
        "failed",
        "a residual is beyond its gate, or H or tau has a NaN or Inf",
        "look at the family and size that failed, and certify one matrix of it",
    ),
    "crashed": Verdict(
        "failed", "its process ended by itself", "read what it printed last: `show` has it"
    ),
    "out of memory": Verdict(
        "failed", "it asked for more memory than it may have", "use less, or raise --memory"
    ),
    "floods": Verdict(
        "failed",
        "it printed, or wrote to files, more than there is room for",
        "print little, and write no files",
    ),
    "overwrites": Verdict("rejected", "it writes into its input", "work on a copy"),
    "aliases": Verdict(
        "rejected",
        "a result shares memory with another result or with the input",
        "return new tensors from every call",
    ),
    "late": Verdict(
        "rejected",
        "a result changed after the clock had stopped",
        "finish all work on the current stream before returning",
    ),
    "patched": Verdict(
        "rejected",
        "it replaced a function of the clock, of the judge, or of torch under them",
        "leave torch, time and qrlib as they are",
    ),
    "clocks disagree": Verdict(
        "rejected",
        "by the judge's clock it took longer than by its own",
        "do all work inside the call, on the current stream",
    ),
    # a thread of compiled code is not told from those of torch's pools, and does no harm: what it
    # changes before a result has left is seen by the judge, who has the result afterwards
    "leaves processes": Verdict(
        "rejected", "processes or threads of it went on when all was over", "end them"
    ),
    "timed out": Verdict(
        "inconclusive",
        "it was still computing when its time was up",
        "try a smaller case, or raise --limit",
    ),
    "hung": Verdict(
        "inconclusive",
        "it waited for something, without computing, when its time was up",
        "look for a lock, an input or a process that it waits for",
    ),
    "interrupted": Verdict("inconclusive", "the run was stopped from outside", "run it again"),
}


def group(verdict):
    """passed, failed, rejected or inconclusive; that of a name nobody knows is inconclusive."""
    return VERDICTS[verdict].group if verdict in VERDICTS else "inconclusive"
