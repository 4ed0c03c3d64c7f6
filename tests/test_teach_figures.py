"""The figures of the book: legible, described, self-contained, and right in every number."""

import decimal
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from drawings import SVG, texts, words_inside

from qrlib import STAGES
from qrlib.stages.s01_mirror import geqrf
from qrlib.teach.figures import s01_mirror as mirror
from qrlib.teach.figures.ladder import idea, ladder
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import PALETTE, Figure, from_matplotlib, matplotlib_style, tint

PAGES = {
    # the book, JupyterLab and VS Code, as their themes have it
    0: ("#ffffff",),
    1: ("#121212", "#111111", "#1e1e1e"),
}
DRAWN = {
    **{
        f"plane {a} {s}": (mirror.plane, a, 0.8, s)
        for a in (20, 90, 160)
        for s in ("opposite", "same")
    },
    **{f"digits {t:.1g}": (mirror.digits, t) for t in mirror.TAILS},
    **{
        f"walk {k}": (mirror.walk_frame, state, f"step {k}")
        for k, state in enumerate(mirror.walk_states())
    },
    "scales": (mirror.scales,),
    **{f"ladder {name}": (ladder, name) for name in STAGES},
}
STEPPERS = {
    "plane": mirror.plane_stepper,
    "digits": mirror.digits_stepper,
    "walk": mirror.walk_stepper,
}


@pytest.fixture(scope="module")
def figures():
    pytest.importorskip("matplotlib")
    return {name: draw(*arguments) for name, (draw, *arguments) in DRAWN.items()}


@pytest.fixture(scope="module", params=STEPPERS)
def stepper(request):
    return STEPPERS[request.param]()


def rgb(colour):
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def luminance(colour):
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    """The ratio of the web accessibility guidelines; text needs 4.5."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def numbers_in(words):
    return [
        float(x) for x in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?", words.replace("\u2212", "-"))
    ]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", [name for name in PALETTE if name not in ("faint", "paper")])
def test_every_colour_is_legible_as_text(name, mode):
    for page in PAGES[mode]:
        assert contrast(rgb(PALETTE[name][mode]), rgb(page)) >= 4.5


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", [name for name in PALETTE if name not in ("ink", "paper")])
def test_ink_is_legible_on_the_deepest_tint(name, mode):
    deepest = tint(1.0, top=1.0)
    for page in PAGES[mode]:
        cell = deepest * rgb(PALETTE[name][mode]) + (1 - deepest) * rgb(page)
        assert contrast(rgb(PALETTE["ink"][mode]), cell) >= 4.5


def test_a_tint_deepens_with_size_and_is_none_for_zero():
    depths = [tint(a, top=100.0) for a in (0, 0.1, 1, -10, 100)]
    assert depths[0] == 0
    assert depths == sorted(depths) and depths[1] < depths[-1]
    assert tint(math.nan, top=1.0) == 0


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_described_and_self_contained(figures, name):
    figure = figures[name]
    for markup in (figure.svg, figure.body()):
        root = ElementTree.fromstring(markup)
        assert root.get("role") == "img"
        assert root.get("aria-label") == figure.alt and len(figure.alt) > 40
        assert root.get("viewBox") == f"0 0 {figure.width:g} {figure.height:g}"
        # the namespace is a name, not an address; nothing else may look like one
        rest = markup.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|//|@import|<script|<image|data:", rest)
        assert next(root.iter(f"{SVG}text"), None) is not None, "words must stay words"
        for use in root.iter(f"{SVG}use"):
            assert use.get("href", "").startswith("#")


@pytest.mark.parametrize("name", DRAWN)
def test_every_colour_of_a_figure_can_follow_the_page(figures, name):
    body = figures[name].body()
    said = re.findall(r"\b(?:fill|stroke)(?:=\"|: )([^\";]+)", body)
    assert len(said) > 10
    for colour in said:
        known = re.fullmatch(r"var\(--qr-(\w+),(#\w+)\)", colour)
        assert colour == "none" or known and PALETTE[known[1]][0] == known[2], colour


@pytest.mark.parametrize("name", [name for name in DRAWN if name != "scales"])
def test_words_stand_inside_the_figure(figures, name):
    words_inside(figures[name])


def test_ids_are_unique_on_a_page_and_every_reference_is_found(figures):
    page = "".join(figure.body() for figure in figures.values())
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert ids and len(ids) == len(set(ids))
    used = {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)}
    assert used == set(ids)


def test_a_file_of_its_own_has_its_style_and_its_size(tmp_path, figures):
    figure = figures["scales"]
    figure.save(tmp_path / "scales.svg")
    root = ElementTree.parse(tmp_path / "scales.svg").getroot()
    assert float(root.get("width")) == pytest.approx(figure.width)
    style = root.find(f"{SVG}style").text
    for name, (light, dark) in PALETTE.items():
        assert f"var(--qr-{name},{light})" not in style
        assert light in style and dark in style


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="alt text"):
        Figure(10, 10, "  ")
    fig = Figure(10, 10, "A line.")
    with pytest.raises(ValueError, match="finite"):
        fig.line(0, math.nan, 1, 1)
    with pytest.raises(ValueError, match="one of ink, muted"):
        fig.line(0, 0, 1, 1, color="red")


def test_markup_in_words_is_shown_and_not_obeyed():
    fig = Figure(100, 20, 'a < b & "c"')
    fig.text(50, 10, "<b>*x* & y")
    assert texts(fig) == ["<b>x & y"]
    assert ElementTree.fromstring(fig.body()).get("aria-label") == 'a < b & "c"'


def test_a_matrix_without_numbers_marks_its_negative_entries():
    fig = Figure(100, 100, "A matrix.")
    fig.matrix(0, 0, [[1, -2], [0, -3]], cell=40, text=None)
    root = ElementTree.fromstring(fig.body())
    assert len(list(root.iter(f"{SVG}rect"))) == 4
    assert len(list(root.iter(f"{SVG}line"))) == 2


def plot(alt, **look):
    with matplotlib_style():
        from matplotlib import pyplot

        figure, axes = pyplot.subplots()
        axes.plot([1, 2, 3], [1, 4, 9], marker="o", label="squares", **look)
        axes.legend()
        return from_matplotlib(figure, alt)


def test_a_plot_with_a_colour_that_cannot_follow_the_page_is_refused():
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="#ff0000"):
        plot("A plot.", color="red")


def test_one_plot_twice_on_a_page_has_no_id_twice_and_no_style_for_the_page():
    pytest.importorskip("matplotlib")
    one, two = plot("First.").body(), plot("Second.").body()
    ids = [set(re.findall(r'\bid="([^"]+)"', body)) for body in (one, two)]
    assert ids[0] and not ids[0] & ids[1]
    assert "<style" not in one
    assert "squares" in texts(plot("First."))
    # black is what a plot leaves unsaid: it must be ink
    assert "var(--qr-ink" in plot("Black.", color="black").body()


class Page(HTMLParser):
    """What a browser without JavaScript keeps of a stepper."""

    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.words = {}
        self._open = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self.words.setdefault(self._open[-1], []).append(data)

    def named(self, name):
        return [a for _, a in self.tags if name in a.get("class", "").split()]


def test_a_stepper_shows_its_last_frame_until_it_is_moved(stepper):
    page = Page(stepper._repr_html_())
    frames = page.named("qr-frame")
    final = stepper.frames[-1]
    assert len(frames) == len(stepper.frames)
    assert ["hidden" in frame for frame in frames] == [True] * (len(frames) - 1) + [False]
    (slider,) = page.named("qr-range")
    assert slider["type"] == "range" and slider["min"] == "0"
    assert slider["value"] == slider["max"] == str(len(frames) - 1)
    assert slider["aria-valuetext"] == final.value == frames[-1]["data-value"]
    assert page.words["output"] == [final.readout]
    assert [frame["data-readout"] for frame in frames] == [f.readout for f in stepper.frames]


def test_a_stepper_is_named_and_self_contained(stepper):
    html = stepper._repr_html_()
    assert len(html) < 200_000
    page = Page(html)
    (group,) = page.named("qr-stepper")
    assert group["role"] == "group" and group["aria-label"] == stepper.alt
    # the slider has a name because it stands in its label
    order = [tag for tag, _ in page.tags]
    assert order.index("input") == order.index("label") + 2
    assert stepper.label in page.words["span"]
    assert all(a.get("aria-label") for tag, a in page.tags if tag == "button")
    # JupyterLab leaves the keys of such an element alone
    controls = [a for tag, a in page.tags if tag in ("button", "input")]
    assert len(controls) == 3 and all("data-lm-suppress-shortcuts" in a for a in controls)
    rest = html.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|src=|@import", rest)


def test_two_steppers_on_a_page_share_no_id():
    page = Page("".join(make()._repr_html_() for make in STEPPERS.values()))
    assert not [a["id"] for _, a in page.tags if "id" in a]


def test_alt_text_of_frames_tells_them_apart(stepper):
    alts = [frame.figure.alt for frame in stepper.frames]
    assert len(set(alts)) == len(alts)


def test_frames_that_would_make_the_page_jump_are_refused():
    frames = [Frame(Figure(10, h, "A frame."), "words") for h in (10, 20)]
    with pytest.raises(ValueError, match="one size"):
        Stepper(frames, "Step", "A stepper.")
    with pytest.raises(ValueError, match="two or more"):
        Stepper(frames[:1], "Step", "A stepper.")
    with pytest.raises(ValueError, match="label"):
        Stepper([frames[0]] * 2, "", "A stepper.")


@pytest.mark.parametrize("angle", [20, 60, 90, 110, 160])
def test_the_plane_says_what_the_formulas_say(angle):
    x = np.array([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
    given, opposite, same = mirror.plane_words(angle).split("\n")
    assert numbers_in(given) == pytest.approx([*x, 1], abs=1e-3)
    for line, beta in ((opposite, -math.copysign(1, x[0])), (same, math.copysign(1, x[0]))):
        assert line.startswith("opposite sign" if beta * x[0] < 0 else "same sign")
        told_beta, *raw, length, one, v1, tau = numbers_in(line)
        assert [told_beta, one] == [beta, 1]
        assert raw == pytest.approx([x[0] - beta, x[1]], abs=1e-3)
        assert length == pytest.approx(math.sqrt(2 - 2 * beta * x[0]), abs=1e-3)
        v = np.array([1, x[1] / (x[0] - beta)])
        assert v1 == pytest.approx(v[1], rel=1e-3, abs=1e-3)
        assert tau == pytest.approx(2 / (v @ v), abs=1e-3)


@pytest.mark.parametrize("sign", ["opposite", "same"])
def test_both_mirrors_of_the_plane_send_x_to_the_axis(sign):
    for angle in range(5, 180, 5):
        x = np.array([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
        beta, v, tau = mirror.larfg_with(x, sign)
        assert x - tau * v * (v @ x) == pytest.approx([beta, 0], abs=1e-14)
        assert (beta * x[0] < 0) == (sign == "opposite")


@pytest.mark.parametrize("t", mirror.TAILS, ids="{:.1g}".format)
def test_the_digits_are_those_of_an_exact_calculation(t):
    with decimal.localcontext(prec=60):
        wide = decimal.Decimal(float(t))
        length = (1 + wide * wide).sqrt()
        for sign, exact in (("opposite", 1 + length), ("same", 1 - length)):
            computed, told, right = mirror.first_entry(t, sign)
            assert told == pytest.approx(float(exact), rel=1e-15)
            error = abs(decimal.Decimal(computed) - exact) / abs(exact)
            if error > decimal.Decimal(mirror.EPS):
                assert right == pytest.approx(max(0.0, -float(error.log10())), abs=1e-6)
            else:
                assert right >= 6.9
            assert numbers_in(mirror.digits_words(t).split("\n")[1 + (sign == "same")])[0] == (
                pytest.approx(right, abs=0.05)
            )


def test_the_wrong_sign_loses_two_digits_a_decade_and_the_right_one_none():
    for t in (1e-1, 1e-2, 1e-3):
        assert mirror.worst_digits(t, "opposite") > 6.5
        lost = mirror.worst_digits(1.0, "same") - mirror.worst_digits(t, "same")
        assert lost == pytest.approx(-2 * math.log10(t), abs=1.0)
    assert mirror.first_entry(np.float32(1e-4), "same")[::2] == (0.0, 0.0)
    assert "cannot be scaled" in mirror.digits_words(np.float32(1e-4))


def test_the_wrong_sign_makes_a_mirror_that_is_none():
    x = np.array([1, 1e-2], np.float32)
    assert mirror.orthogonality(x, "opposite") < 8
    assert mirror.orthogonality(x, "same") > 1000


def test_the_walk_of_the_example():
    states = mirror.walk_states()
    assert "(12, 6, \u22124) has length 14" in states[1].words
    assert "(26, 6, \u22124)" in states[1].words
    assert "(\u221214, 0, 0)" in states[2].words
    R = np.triu(states[-1].M)
    assert np.abs(R) == pytest.approx(np.array([[14, 21, 14], [0, 175, 70], [0, 0, 35]]), abs=1e-12)
    assert states[-1].tau[-1] == 0


@pytest.mark.parametrize(
    "A",
    [
        mirror.A3,
        np.random.default_rng(0).standard_normal((5, 3)),
        np.random.default_rng(1).standard_normal((3, 5)),
        np.array([[0.0, 1, 2], [0, 3, 4], [0, 5, 6]]),
        np.triu(np.ones((3, 3))),
    ],
    ids=["example", "tall", "wide", "zero column", "triangular"],
)
def test_the_walk_ends_where_geqrf_ends_and_every_step_is_a_product_of_mirrors(A):
    states = mirror.walk_states(A)
    H, tau = geqrf(A[None])
    assert np.array_equal(states[-1].M, H[0])
    assert np.array_equal(states[-1].tau, tau[0])
    m, n = A.shape
    for state in states:
        # what is shown, with zeros put back where v is stored, is H_(j-1) ... H_0 A
        shown = np.where(np.array(state.owner) == "v", 0, state.M)
        expected = A.copy()
        done = sum(row[j] == "R" for j, row in enumerate(state.owner) if j < n)
        for j in range(done):
            v = np.concatenate([np.zeros(j), [1], H[0, j + 1 :, j]])
            expected -= tau[0, j] * np.outer(v, v @ expected)
        assert shown == pytest.approx(expected, abs=1e-12 * np.abs(A).max())
    assert {who for row in states[-1].owner for who in row} <= {"R", "v"}


def test_the_last_frame_of_the_walk_shows_every_number():
    state = mirror.walk_states()[-1]
    drawn = [numbers_in(words) for words in texts(mirror.walk_frame(state))]
    drawn = [each[0] for each in drawn if each]
    assert drawn == pytest.approx([*state.M.ravel(), *state.tau], rel=5e-3)


@pytest.mark.parametrize(
    "scale, believed",
    [(1e-44, False), (1e-30, False), (1e-22, False), (1, True), (1e18, True), (1e20, False)],
)
def test_where_an_unscaled_sum_of_squares_is_right(scale, believed):
    unscaled, scaled = mirror.norm_errors(scale)
    assert (unscaled < 8 * mirror.EPS) == believed
    if scale >= 1e-37:
        assert scaled < 8 * mirror.EPS


def test_larfg_is_right_wherever_float32_has_all_its_digits():
    for scale in mirror.SCALES:
        if 1e-36 <= scale:
            assert mirror.norm_errors(scale)[1] < 8 * mirror.EPS
    unscaled = [mirror.norm_errors(scale)[0] for scale in (1e-30, 1e30)]
    assert unscaled == [1.0, math.inf]


@pytest.mark.parametrize("name", STAGES)
def test_the_ladder_has_every_stage_and_marks_one(name):
    figure = ladder(name)
    words = texts(figure)
    for stage in STAGES:
        assert any(stage in each for each in words)
        assert stage in figure.alt and idea(stage)[0] in figure.alt
    assert [each for each in words if each.startswith("\u25b6")] == [f"\u25b6 {name}"]
    assert words.count("you are here") == 1


def test_the_ladder_needs_no_backend_and_knows_its_stages():
    code = (
        "import sys; from qrlib.teach.figures.ladder import ladder; ladder('s01_mirror'); "
        "assert not {'torch', 'triton', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ValueError, match="lit must be one of"):
        ladder("s99_none")
