"""What every figure of a chapter is held to: words for who cannot see it, and words that fit.

A module of tests names its figures in DRAWN, {name: (function, *arguments)}; in PLOTS those whose
words matplotlib has put where they are; in STEPPERS functions that give a stepper. A subclass of
EveryFigure then has the tests of them all.
"""

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
    assert not re.search(r"https?:|//|@import|<script|<image|data:", rest)
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


class EveryFigure:
    """Three tests: of every figure, of every drawing that is no plot, of every stepper."""

    def pytest_generate_tests(self, metafunc):
        module = metafunc.module
        names = {
            "figure": module.DRAWN,
            "drawing": [name for name in module.DRAWN if name not in getattr(module, "PLOTS", ())],
            "make_stepper": module.STEPPERS,
        }
        (argument,) = set(names) & set(metafunc.fixturenames)
        metafunc.parametrize(argument, names[argument])

    def test_is_described_self_contained_and_follows_the_page(self, drawn, figure):
        described_and_self_contained(drawn[figure])

    def test_words_stand_inside(self, drawn, drawing):
        words_inside(drawn[drawing])

    def test_frames_of_a_stepper_differ(self, make_stepper):
        frames_differ(make_stepper())


def texts(figure):
    """The words of a drawing, one string a text element, with a plain minus."""
    root = ElementTree.fromstring(figure.svg)
    return ["".join(e.itertext()).replace("\u2212", "-") for e in root.iter(f"{SVG}text")]
