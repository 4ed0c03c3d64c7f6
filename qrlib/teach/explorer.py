"""A figure with several sliders that works on a plain page: no kernel, no network.

    def draw(n, device):
        return Frame(figure_of(n, device), readout=f"n = {n} on {device}: ...")

    Explorer(draw, {"n": (32, 512), "device": ("T4", "H200")}, alt="A point under a roof.")

Every combination is drawn beforehand, by Python. Drawings by one function differ in a few numbers
and words only; the first is sent as it is, of the others what differs. So all frames must have the
same elements in the same order: draw what is not there without a width, do not leave it out. Words
that change may have no variables marked in them.
"""

import json
import xml.etree.ElementTree as ElementTree
from html import escape
from importlib.resources import files
from itertools import product

from qrlib.teach.stepper import Frame
from qrlib.teach.svg import theme_css

# JupyterLab takes arrow keys for its cells, unless the element that has the focus says no
_KEYS = 'data-lm-suppress-shortcuts="true"'


class Explorer:
    """One slider for every axis; the readout says in words what the figure shows.

    Args:
        draw: function of one choice an axis, by position, that gives a Frame.
        axes: {name: choices}, two choices or more; a choice is shown by str.
        alt: what the whole shows, in words.
        start: {name: choice} that is shown first, in print, and without JavaScript; the last choice
            of an axis that is not named.
        lines: how many lines of text to keep free for the readout, so that the page does not jump.
    """

    def __init__(self, draw, axes, alt, *, start=None, lines=3):
        start = start or {}
        for name, choices in axes.items():
            if len(choices) < 2:
                raise ValueError(f"axis {name} must have two choices or more; got {choices!r}")
        for name, choice in start.items():
            if choice not in axes.get(name, ()):
                raise ValueError(f"start must name choices of {axes}; got {name} = {choice!r}")
        if not alt.strip():
            raise ValueError("an explorer must have alt text; got an empty one")
        self.axes, self.alt, self.lines = axes, alt, lines
        self.start = {name: start.get(name, choices[-1]) for name, choices in axes.items()}
        self.frames = {chosen: Frame(*draw(*chosen)) for chosen in product(*axes.values())}

    @property
    def first(self):
        """The Frame shown first."""
        return self.frames[tuple(self.start.values())]

    def _differences(self):
        """(slots, words, rows): what differs between the drawings.

        slots: (element, attribute), the attribute "" for the text of an element. words: all values,
        each once. rows: for each frame, for each slot, the place of its value in words.
        """
        drawn = [_elements(frame.figure.body()) for frame in self.frames.values()]
        base = _elements(self.first.figure.body())
        for each in (*drawn, base):
            # the alternative text is the readout, which is sent once
            each[0][1].pop("aria-label")
        for each in drawn:
            if [tag for tag, _ in each] != [tag for tag, _ in base]:
                raise ValueError("all frames must have the same elements in the same order")
        slots = [
            (k, name)
            for k, (_, values) in enumerate(base)
            for name in sorted(set(values).union(*(each[k][1] for each in drawn)))
            if any(each[k][1].get(name) != values.get(name) for each in drawn)
        ]
        if any(name == _MIXED for _, name in slots):
            raise ValueError("words with variables marked in them must be the same in all frames")
        place = {}
        rows = [
            [place.setdefault(each[k][1].get(name, ""), len(place)) for k, name in slots]
            for each in drawn
        ]
        return slots, list(place), rows

    def _repr_html_(self):
        slots, words, rows = self._differences()
        data = {
            "slots": slots,
            "words": words,
            "rows": rows,
            "readouts": [frame.readout for frame in self.frames.values()],
        }
        here = files("qrlib.teach")
        style = theme_css(".qr-explorer") + (here / "explorer.css").read_text("utf-8")
        script = (here / "explorer.js").read_text("utf-8")
        dials = "".join(
            self._dial(name, tuple(map(str, choices))) for name, choices in self.axes.items()
        )
        # a script of that type is data: "<" could end it
        table = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        return (
            f'<div class="qr-explorer" role="group" aria-label="{escape(self.alt)}">'
            f"<style>{style}</style>{self.first.figure.body()}"
            f'<div class="qr-dials">{dials}</div>'
            f'<output class="qr-readout" aria-live="polite" '
            f'style="min-height:{1.5 * self.lines:g}em">{escape(self.first.readout)}</output>'
            f'<script type="application/json">{table}</script><script>{script}</script></div>'
        )

    def _dial(self, name, choices):
        at = choices.index(str(self.start[name]))
        return (
            f'<label><span>{escape(name)}</span><input {_KEYS} class="qr-dial" type="range" '
            f'min="0" max="{len(choices) - 1}" step="1" value="{at}" autocomplete="off" '
            f'aria-valuetext="{escape(choices[at])}" data-choices="{escape(json.dumps(choices))}">'
            f"<b>{escape(choices[at])}</b></label>"
        )


# the key of words that stand between elements
_MIXED = "#"


def _elements(svg):
    """[(tag, {attribute: value})] of a drawing in document order; the text of a leaf under ""."""
    found = []
    for element in ElementTree.fromstring(svg).iter():
        values = dict(element.attrib)
        if len(element):
            values[_MIXED] = repr([element.text, *(child.tail for child in element)])
        else:
            values[""] = element.text or ""
        found.append((element.tag, values))
    return found
