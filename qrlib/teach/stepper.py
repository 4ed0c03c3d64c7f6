"""A figure with a slider that works on a plain page: no kernel, no network, mouse or arrow keys.

    frames = [Frame(draw(k), readout=f"step {k}: ...", value=f"step {k}") for k in range(5)]
    Stepper(frames, label="Step", alt="A matrix walks down to R.")

A notebook shows it and so does the book: the HTML carries its own style and script, and a page may
hold as many steppers as it likes. The last frame is the one shown first, in print, and without
JavaScript: let it say the whole. From there the forward button goes round to the first frame.
"""

from html import escape
from importlib.resources import files
from typing import NamedTuple

from qrlib.teach.svg import Figure, theme_css

# JupyterLab takes arrow keys and Enter for its cells, unless the element that has the focus says no
_KEYS = 'data-lm-suppress-shortcuts="true"'


class Frame(NamedTuple):
    """One position of the slider.

    figure: what is drawn. All frames of a stepper have one size, so that the page does not jump.
    readout: the sentence or numbers under the drawing; lines may be broken with newlines.
    value: the position in a few words, which a screen reader says; the readout when empty.
    """

    figure: Figure
    readout: str
    value: str = ""


class Stepper:
    """Frames behind a slider.

    Args:
        frames: Frame objects, at least two, all figures of one size.
        label: what the slider changes, in a word or two.
        alt: what the whole shows, in words.
        lines: how many lines of text to keep free for the readout, so that the page does not jump.
    """

    def __init__(self, frames, label, alt, *, lines=2):
        frames = [Frame(*frame) for frame in frames]
        sizes = {(frame.figure.width, frame.figure.height) for frame in frames}
        if len(frames) < 2 or len(sizes) != 1:
            raise ValueError(
                f"frames must be two or more of one size; got {len(frames)} of sizes {sizes}"
            )
        if not (label.strip() and alt.strip()):
            raise ValueError("a stepper must have a label and alt text; got an empty one")
        self.frames, self.label, self.alt, self.lines = frames, label, alt, lines

    def _repr_html_(self):
        last = len(self.frames) - 1
        final = self.frames[last]
        here = files("qrlib.teach")
        style = theme_css(".qr-stepper") + (here / "stepper.css").read_text("utf-8")
        script = (here / "stepper.js").read_text("utf-8")
        drawn = "".join(
            f'<div class="qr-frame" data-value="{escape(frame.value or frame.readout)}" '
            f'data-readout="{escape(frame.readout)}"{"" if k == last else " hidden"}>'
            f"{frame.figure.body()}</div>"
            for k, frame in enumerate(self.frames)
        )
        slider = (
            f'<input {_KEYS} class="qr-range" type="range" min="0" max="{last}" step="1" '
            f'value="{last}" autocomplete="off" '
            f'aria-valuetext="{escape(final.value or final.readout)}">'
        )
        return (
            f'<div class="qr-stepper" role="group" aria-label="{escape(self.alt)}">'
            f'<style>{style}</style><div class="qr-frames">{drawn}</div><div class="qr-controls">'
            f'<button {_KEYS} type="button" value="-1" aria-label="Back">\u25c0</button>'
            f"<label><span>{escape(self.label)}</span>{slider}</label>"
            f'<button {_KEYS} type="button" value="1" aria-label="Forward">\u25b6</button></div>'
            f'<output class="qr-readout" aria-live="polite" '
            f'style="min-height:{1.5 * self.lines:g}em">{escape(final.readout)}</output>'
            f'<p class="qr-print">{escape(final.readout)}</p><script>{script}</script></div>'
        )
