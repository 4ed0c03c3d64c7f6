"""Exercises that check themselves.

    from qrlib.teach import exercises as ex

    ex.listing()                # all of them
    ex.show("1.2")              # the task, and what to start from
    ex.check("1.2", larfg)      # or @ex.check("1.2") over the function
    ex.hint("1.2")              # three hints, one more with every call
    ex.reveal("1.2")            # the solution: the very code that the tests run

A check goes from the outside in: type and shape, a case worked by hand, a certificate in m*eps,
inputs that are awkward, and the cost where that is the point. It stops at the first failure, with
the example that shows it and one hint. Chapters 1, 3 and 4 need NumPy only, the others torch.
"""

from qrlib.teach.exercises.core import (
    Result,
    check,
    exercises,
    hint,
    listing,
    reveal,
    show,
    skeleton,
)

__all__ = ["Result", "check", "exercises", "hint", "listing", "reveal", "show", "skeleton"]
