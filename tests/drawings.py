"""What every figure of a chapter is held to: words for who cannot see it, and words that fit."""

import re
import xml.etree.ElementTree as ElementTree

from qrlib.teach.svg import PALETTE

SVG = "{http://www.w3.org/2000/svg}"


def described_and_self_contained(figure):
    """It has alt text, asks for nothing from outside, and has only colours that follow the page."""
    root = ElementTree.fromstring(figure.body())
    assert root.get("role") == "img" and root.get("aria-label") == figure.alt
    assert len(figure.alt) > 40
    rest = figure.svg.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|@import|<script|<image|data:", rest)
    colours = re.findall(r"\b(?:fill|stroke)(?:=\"|: )([^\";]+)", figure.body())
    assert len(colours) > 5
    for colour in colours:
        known = re.fullmatch(r"var\(--qr-(\w+),(#\w+)\)", colour)
        assert colour == "none" or known and PALETTE[known[1]][0] == known[2], colour


def words_inside(figure):
    """No word of a drawing leaves it."""
    for text in ElementTree.fromstring(figure.body()).iter(f"{SVG}text"):
        x, y, size = (float(text.get(key)) for key in ("x", "y", "font-size"))
        # letters are wider than 0.45 of their size on average: a lower bound of the true width
        width = 0.45 * size * len("".join(text.itertext()))
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
        assert left >= 0 and left + width <= figure.width, "".join(text.itertext())
        assert size / 2 <= y <= figure.height - size / 2, "".join(text.itertext())


def frames_differ(stepper):
    """Every position says something else, in words and in alt text, and the page stays light."""
    for said in ([f.readout for f in stepper.frames], [f.figure.alt for f in stepper.frames]):
        assert len(set(said)) == len(stepper.frames)
    assert len(stepper._repr_html_()) < 200_000


def texts(figure):
    """The words of a drawing, one string a text element, with a plain minus."""
    root = ElementTree.fromstring(figure.svg)
    return ["".join(e.itertext()).replace("\u2212", "-") for e in root.iter(f"{SVG}text")]
