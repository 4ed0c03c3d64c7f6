"""A tiny SVG writer whose figures follow the reader's page, light or dark.

    fig = Figure(200, 100, alt="An arrow that points right.")
    fig.arrow(20, 50, 180, 50, color="blue")
    fig.text(100, 40, "x", color="blue")
    fig                       # a notebook shows it; fig.save("arrow.svg") keeps it

Coordinates are SVG's: x to the right, y down. Colours are names in PALETTE; each is written as a
CSS variable with a fallback, and a style sheet that travels with the figure sets the variables for
the book, JupyterLab, VS Code, Colab, print, and a file opened alone. Every name is legible as text
on both backgrounds (contrast 4.5 and more) except "faint", which is for grids. Colour is never the
only carrier of a meaning: add a dash, a sign or a word.

Text may mark variables: "H *x* = *y*" sets x and y in italics. `from_matplotlib` gives a matplotlib
figure the same colours; draw it inside `matplotlib_style()`.
"""

import hashlib
import io
import math
import re
from collections import Counter
from contextlib import contextmanager
from html import escape

# name: (on a light page, on a dark page); after Okabe and Ito, darkened or lightened for contrast
PALETTE = {
    "ink": ("#1b1f24", "#e6e9ec"),
    "muted": ("#57606a", "#a7b0ba"),
    "faint": ("#c9d1d9", "#4a525c"),
    "blue": ("#0068a8", "#63b8ee"),
    "orange": ("#b04a00", "#f0a04b"),
    "green": ("#00734f", "#3cc796"),
    "pink": ("#98386f", "#e59cc6"),
    "paper": ("#ffffff", "#121212"),
}

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
_DARK_PAGES = ", ".join(
    (
        "html[data-theme=dark]",
        "html[theme=dark]",
        "body[data-jp-theme-light=false]",
        "body.vscode-dark",
        "body.vscode-high-contrast",
    )
)


def _variables(mode):
    names = [name for name in PALETTE if name != "paper"]
    pairs = "".join(f"--qr-{name}:{PALETTE[name][mode]};" for name in names)
    # the halo behind a label must be the page's own colour
    page = "var(--pst-color-background,var(--jp-layout-color0,var(--vscode-editor-background,%s)))"
    return f"{pairs}--qr-paper:{page % PALETTE['paper'][mode]};"


def theme_css(root=".qr-fig"):
    """The style sheet that sets the colour variables on every element that `root` selects."""
    return (
        f"{root}{{{_variables(0)}}}"
        f"@media screen{{:is({_DARK_PAGES}) {root}{{{_variables(1)}}}}}"
        # a file opened alone has no page to ask, only the system's preference
        f"@media screen and (prefers-color-scheme:dark){{svg{root}:root{{{_variables(1)}}}}}"
        f"@media print{{{root}{{--qr-paper:#ffffff}}}}"
        # the book's theme puts a light box behind html output in dark mode; figures need none
        f"html[data-theme=dark] .bd-content div.cell_output .text_html:has({root})"
        "{background:transparent!important;color:inherit!important;padding:0!important}"
    )


def ink(name):
    """The CSS value of a palette colour: a variable, with the light page's colour as fallback."""
    if name == "none":
        return name
    if name not in PALETTE:
        raise ValueError(f"colour must be one of {', '.join(PALETTE)} or none; got {name!r}")
    return f"var(--qr-{name},{PALETTE[name][0]})"


def number(value, form="{:.4g}"):
    """A number as words, with a real minus sign."""
    return form.format(value).replace("-", "\u2212")


def _coordinate(value):
    if not math.isfinite(value):
        raise ValueError(f"a coordinate must be finite; got {value!r}")
    # + 0.0 turns -0.0 into 0.0
    return f"{round(float(value), 2) + 0.0:g}"


def _attributes(given):
    """name="value" pairs; a trailing _ or an inner _ of a Python name becomes nothing or a dash."""
    pairs = []
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, str):
            text = escape(value, quote=True)
        elif isinstance(value, (tuple, list)):
            text = " ".join(_coordinate(each) for each in value)
        else:
            text = _coordinate(value)
        pairs.append(f'{name.rstrip("_").replace("_", "-")}="{text}"')
    return " ".join(pairs)


# how often a drawing with ids was put on this page: a page is one process
_SHOWN = Counter()


class Figure:
    """A drawing of width x height units with alternative text.

    Args:
        width, height: of the drawing, in units; one unit is one CSS pixel at full size.
        alt: what the figure shows, in words, for who cannot see it.
        max_width: the widest it grows on a page, in pixels; width when None.

    Draw on a narrow canvas (up to about 440 units): on a telephone 350 pixels show it all.
    """

    def __init__(self, width, height, alt, *, max_width=None):
        if not alt.strip():
            raise ValueError("a figure must have alt text; got an empty one: say what it shows")
        self.width, self.height, self.alt = width, height, alt
        self.max_width = width if max_width is None else max_width
        self._parts = []
        # what its ids start with, where it has some
        self._own = None

    def add(self, tag, content=None, **attributes):
        """Any SVG element; `content` is markup, not plain text."""
        head = f"{tag} {_attributes(attributes)}".rstrip()
        self._parts.append(f"<{head}/>" if content is None else f"<{head}>{content}</{tag}>")

    @contextmanager
    def group(self, **attributes):
        """Everything drawn inside the with-block, as one group."""
        self._parts.append(f"<g {_attributes(attributes)}>")
        yield self
        self._parts.append("</g>")

    def _shape(self, tag, geometry, *, color, width, fill="none", fill_opacity=None, dash=None):
        look = {
            "fill": ink(fill),
            "fill_opacity": fill_opacity,
            "stroke": ink(color),
            "stroke_width": width,
            "stroke_dasharray": dash,
        }
        self.add(tag, **geometry | look)

    def line(self, x1, y1, x2, y2, *, color="ink", width=1.5, dash=None):
        ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        self._shape("line", ends, color=color, width=width, dash=dash)

    def arrow(self, x1, y1, x2, y2, *, color="ink", width=2, dash=None, head=9):
        """A line with a head at (x2, y2); nothing when it has no length."""
        length = math.hypot(x2 - x1, y2 - y1)
        if length == 0:
            return
        head = min(head, length)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - head * ux, y2 - head * uy
        self.line(x1, y1, bx, by, color=color, width=width, dash=dash)
        half = 0.42 * head
        corners = (x2, y2, bx - half * uy, by + half * ux, bx + half * uy, by - half * ux)
        self.add("polygon", points=corners, fill=ink(color))

    def circle(self, x, y, r, *, color="ink", width=1.5, **look):
        """look: fill, fill_opacity, dash."""
        self._shape("circle", {"cx": x, "cy": y, "r": r}, color=color, width=width, **look)

    def rect(self, x, y, w, h, *, r=None, color="ink", width=1.5, **look):
        """A box w wide and h high, its corners rounded by r; look: fill, fill_opacity, dash."""
        box = {"x": x, "y": y, "width": w, "height": h, "rx": r}
        self._shape("rect", box, color=color, width=width, **look)

    def path(self, d, *, color="ink", width=1.5, **look):
        """Any path in SVG's path language; look: fill, fill_opacity, dash."""
        self._shape("path", {"d": d}, color=color, width=width, **look)

    def polyline(self, points, *, color="ink", width=2, **look):
        """A line through points [(x, y), ...]; look: fill, fill_opacity, dash."""
        flat = [value for point in points for value in point]
        self._shape("polyline", {"points": flat}, color=color, width=width, **look)

    def text(self, x, y, words, *, color="ink", size=14, anchor="middle", bold=False, halo=False):
        """Words with their middle at height y. *x* sets a variable in italics.

        Args:
            anchor: "start", "middle" or "end": which part of the words stands at x.
            halo: a rim in the page's colour, for a label that crosses a line.
        """
        self.add(
            "text",
            re.sub(r"\*([^*]+)\*", r'<tspan font-style="italic">\1</tspan>', escape(words, False)),
            x=x,
            y=y,
            dy="0.35em",
            fill=ink(color),
            font_size=size,
            font_weight="600" if bold else None,
            text_anchor=anchor,
            stroke=ink("paper") if halo else None,
            stroke_width=4 if halo else None,
            paint_order="stroke" if halo else None,
        )

    def brackets(self, x, y, w, h, *, color="ink", lip=6):
        """The two square brackets of a matrix around the box (x, y, w, h)."""
        for edge, inward in ((x, lip), (x + w, -lip)):
            corners = [(edge + inward, y), (edge, y), (edge, y + h), (edge + inward, y + h)]
            self.polyline(corners, color=color, width=1.5)

    def matrix(
        self, x, y, A, *, cell=40, color="blue", text="{:.4g}", size=None, top=None, decades=3
    ):
        """A heat map of A [m, n] with its top left corner at (x, y).

        The depth of the tint is log10|a|, over `decades` below the largest entry; a zero has none.
        Without text a negative entry carries a minus, so that the sign is never told by colour.

        Args:
            A: anything with shape [m, n].
            cell: the side of a cell, in units.
            color: a palette name, or a name for each entry [m, n]; "none" leaves the cell blank.
            text: how to print an entry: a format, a function of the entry, or None for no text.
            size: of the text; a third of the cell when None.
            top: the magnitude of the deepest tint; max|A| when None. Give it in every frame of a
                stepper, so that tints can be compared.
        """
        A = [[float(a) for a in row] for row in A]
        magnitudes = [abs(a) for row in A for a in row if math.isfinite(a)]
        top = max(magnitudes, default=0.0) if top is None else top
        for i, row in enumerate(A):
            for j, a in enumerate(row):
                name = color if isinstance(color, str) else color[i][j]
                if name == "none":
                    continue
                left, high = x + j * cell, y + i * cell
                self.rect(
                    left + 1,
                    high + 1,
                    cell - 2,
                    cell - 2,
                    r=3,
                    color=name if a else "faint",
                    width=1,
                    fill=name,
                    fill_opacity=tint(a, top, decades),
                )
                middle = (left + cell / 2, high + cell / 2)
                if text is not None:
                    words = text(a) if callable(text) else number(a, text)
                    self.text(*middle, words, size=size or cell / 3)
                elif a < 0:
                    reach = cell / 5
                    self.line(middle[0] - reach, middle[1], middle[0] + reach, middle[1], width=1)

    def _element(self, inside, **more):
        attributes = {
            "xmlns": "http://www.w3.org/2000/svg",
            "class": "qr-fig",
            "viewBox": f"0 0 {_coordinate(self.width)} {_coordinate(self.height)}",
            "role": "img",
            "aria_label": self.alt,
            "font_family": _FONT,
            "stroke_linejoin": "round",
        }
        return f"<svg {_attributes(attributes | more)}>{inside}</svg>"

    def body(self):
        """The figure as inline SVG without its style sheet: for a page that has it already."""
        width = f"width:100%;max-width:{_coordinate(self.max_width)}px;height:auto"
        inside = "".join(self._parts)
        if self._own:
            # a page may show the same drawing again, and an id stands once on a page
            _SHOWN[self._own] += 1
            if (times := _SHOWN[self._own]) > 1:
                inside = inside.replace(f"{self._own}-", f"{self._own}-{times}-")
        return self._element(inside, style=f"{width};display:block;margin:auto")

    def _repr_html_(self):
        return f"<style>{theme_css()}</style>{self.body()}"

    @property
    def svg(self):
        """The figure as a file of its own: with its size, its style sheet and its words."""
        head = f"<title>{escape(self.alt)}</title><style>{theme_css()}</style>"
        return self._element(head + "".join(self._parts), width=self.width, height=self.height)

    def save(self, path):
        """Write the figure as an .svg file that follows the system's light or dark mode."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)


def tint(a, top, decades=3):
    """How deep a cell is filled, 0 to 0.5: linear in log10|a| over `decades` below `top`."""
    if not math.isfinite(a) or a == 0 or top == 0:
        return 0.0
    # half is the most that leaves ink legible on every colour
    return 0.5 * min(1.0, max(0.08, 1 + math.log10(abs(a) / top) / decades))


@contextmanager
def matplotlib_style(**more):
    """Draw inside this block: transparent paper, palette colours, text kept as text.

    Lines take blue, orange, green, pink in turn, each with its own dash, so that they differ
    without colour. `more` is any of matplotlib's rcParams.
    """
    import matplotlib as mpl
    from cycler import cycler

    light = {name: pair[0] for name, pair in PALETTE.items()}
    cycle = cycler(color=[light[name] for name in ("blue", "orange", "green", "pink", "muted")])
    cycle += cycler(linestyle=["-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1))])
    rc = {
        "figure.figsize": (4.4, 3.2),
        "figure.dpi": 100,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "axes.prop_cycle": cycle,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": light["faint"],
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "font.size": 10,
        "axes.titlesize": 11,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "lines.linewidth": 2,
        "svg.fonttype": "none",
        "figure.constrained_layout.use": True,
    }
    rc |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), light["ink"])
    rc |= dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), light["ink"])
    rc |= dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), light["muted"])
    with mpl.rc_context(rc | more):
        yield light


def from_matplotlib(figure, alt, *, max_width=None):
    """A matplotlib figure, drawn inside matplotlib_style(), as a Figure in theme colours.

    Colours must be palette colours (the dict that matplotlib_style() yields): a colour that cannot
    follow the page is an error. Ids are made unique to the figure. The matplotlib figure is closed.

    Args:
        max_width: the widest it grows on a page, in pixels; 96 for each of its inches when None.
    """
    import matplotlib as mpl
    from matplotlib import pyplot

    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": alt}):
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=none)
    pyplot.close(figure)
    text = out.getvalue()
    width, height = (float(each) for each in re.search(r'viewBox="0 0 (\S+) (\S+)"', text).groups())
    inner = re.search(r"<svg[^>]*>(.*)</svg>", text, re.DOTALL).group(1)
    # its style sheet would reach every element of the page; the group below says the same
    inner = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", inner, flags=re.DOTALL
    )

    names = {pair[0]: name for name, pair in PALETTE.items()} | {"#000000": "ink"}
    for colour in set(re.findall(r"#[0-9a-fA-F]{6}\b", inner)):
        if colour.lower() not in names:
            raise ValueError(
                f"a plot's colours must be palette colours, which can follow the page; "
                f"got {colour}; use the dict that matplotlib_style() yields"
            )
        inner = inner.replace(colour, ink(names[colour.lower()]))
    # the page's own font, set once on the svg, instead of a list of families on every word
    inner = re.sub(r"font-family: [^;\"]*;? ?", "", inner)
    inner = re.sub(r"font: ((?:italic|oblique) )?((?:bold|\d+) )?([\d.]+px) [^;\"]*", _font, inner)

    own = "q" + hashlib.sha256(inner.encode() + alt.encode()).hexdigest()[:10]
    used = {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', inner)}
    inner = re.sub(r' id="([^"]+)"', lambda m: f' id="{own}-{m[1]}"' if m[1] in used else "", inner)
    inner = re.sub(r'(?:xlink:)?href="#', f'href="#{own}-', inner).replace("url(#", f"url(#{own}-")

    plot = Figure(width, height, alt, max_width=width * 4 / 3 if max_width is None else max_width)
    plot._own = own
    # black fill is what matplotlib leaves unsaid
    with plot.group(fill=ink("ink"), stroke_linejoin="round", stroke_linecap="butt"):
        plot._parts.append(re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*", " ", inner)).strip())
    return plot


def _font(match):
    style, weight, size = match.groups()
    slant = f"font-style: {style.strip()}; " if style else ""
    return slant + (f"font-weight: {weight.strip()}; " if weight else "") + f"font-size: {size}"
