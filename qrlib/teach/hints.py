"""The hints of an exercise on a page, folded away one by one; in a lab `ex.hint` says them."""

from html import escape

from qrlib.teach.exercises.core import find


class Hints:
    """The hints of exercise `id`, each behind its own summary; they open without a kernel."""

    def __init__(self, id):
        self.hints = find(id).hints

    def __repr__(self):
        return "\n".join(f"Hint {k}: {hint}" for k, hint in enumerate(self.hints, 1))

    def _repr_html_(self):
        # the padding makes room for a finger
        folded = "".join(
            f"<details><summary style='padding:0.4rem 0'>Hint {k}</summary>"
            f"<p>{escape(hint)}</p></details>"
            for k, hint in enumerate(self.hints, 1)
        )
        return f"<div class='qr-hints'>{folded}</div>"
