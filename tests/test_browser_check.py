"""The browser check sees what it is there to see: faults are planted in small pages."""

from concurrent.futures.process import BrokenProcessPool

import pytest
from browser import check_site

from qrlib.teach.explorer import Explorer
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure

CHROMIUM = check_site.find_chromium()
needs_chromium = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    # the site is opened once, by one worker
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium (Debian: apt-get install chromium)"),
]

FOLLOWS_THEME = """<script>
document.documentElement.dataset.theme = localStorage.getItem("theme") || "light"
</script>
<style>
html { background: #fff; color: #111 }
html[data-theme=dark] { background: #121212; color: #eee }
body { margin: 1em }
a { color: inherit }
svg { max-width: 100% }
</style>"""
PALE = '<p style="color: #fff; background: #eee">White on nearly white.</p>'
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


WAYS = '<nav aria-label="Main"><a href="other.html">Another page</a></nav>'


def page(article, head=FOLLOWS_THEME, ways=WAYS):
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A page</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,">{head}</head>'
        f'<body><main><article><h1 id="top">A page</h1>{article}</article></main>'
        f"{ways}</body></html>"
    )


def stepper(*readouts):
    frames = []
    for k, readout in enumerate(readouts):
        figure = Figure(200, 100, alt=f"Arrow {k}.")
        figure.arrow(20, 50, 100 + 20 * k, 50, color="blue")
        frames.append(Frame(figure, readout))
    return Stepper(frames, label="Step", alt="An arrow that grows.")._repr_html_()


def explorer(say="{} by {}"):
    def draw(width, height):
        figure = Figure(200, 100, alt=f"A box of {width} by {height}.")
        figure.rect(10, 10, width, height, color="blue")
        return Frame(figure, say.format(width, height))

    axes = {"width": (20, 40, 80), "height": (20, 40)}
    return Explorer(draw, axes, "A box of two sizes.")._repr_html_()


GOOD = page(
    stepper("one", "two", "three")
    + explorer()
    + f'<img src="{PIXEL}" alt="A dot"><a href="#top">up</a> <a href="other.html#top">other</a>'
    + '<svg role="img" aria-label="A line" width="9" height="9"><path d="M0 0h9"/></svg>'
    + r"<p>On a disk it is <code>C:\tau</code>.</p>"
    + "<details><summary>More</summary>Hidden</details>"
    + '<div style="overflow-x: auto" tabindex="0"><div style="width: 2000px">wide</div></div>'
)

# page: (what is wrong on it, what the check has to say; a part of its line)
FAULTS = {
    "console": (page("<script>console.error('planted')</script>"), "console error: planted"),
    "throws": (page("<script>throw new Error('planted')</script>"), "script error: planted"),
    "elsewhere": (
        page("<script>fetch('https://example.org/data.json').catch(() => {})</script>"),
        "asks another host: https://example.org/data.json",
    ),
    "image": (page('<img src="none.png" alt="A dot">'), "request failed"),
    "alt": (page(f'<img src="{PIXEL}">'), "image without alt text"),
    "table": (page("<p>| a | b |\n| --- | --- |\n| 1 | 2 |</p>"), "a table that is still text"),
    "drawing": (page('<svg width="9" height="9"></svg>'), "drawing without a label"),
    "contrast": (page(PALE), "axe color-contrast"),
    "night": (
        page("<style>[data-theme=dark] p { background: #ddd }</style><p>Pale at night.</p>"),
        "[dark 1280]: axe color-contrast",
    ),
    "word": (
        page('<pre><i><span>def</span> <span style="color: #777">def</span></i></pre>'),
        "[dark 390]: axe color-contrast",
    ),
    "ground": (
        page('<pre><span>def</span> <b style="background: #999"><span>def</span></b></pre>'),
        "[dark 1280]: axe color-contrast",
    ),
    "placed": (
        page(
            '<pre><span>def</span><span style="position: absolute; top: 150px">def</span></pre>'
            '<p style="background: #999; height: 200px"></p>'
        ),
        "[dark 1280]: axe color-contrast",
    ),
    "small": (
        page(
            "<style>@media (min-width: 600px) { .small { display: none } }</style>"
            '<p class="small"><a href="#top" aria-label=""></a></p>'
        ),
        "[dark 390]: axe link-name",
    ),
    "folded": (
        page(f"<details><summary>More</summary>{PALE}</details>"),
        "axe color-contrast",
    ),
    "wide": (page('<div style="width: 1000px">wide</div>'), "[light 390]: scrolls sideways"),
    "theme": (page("no theme", head=""), "[dark]: the page is not dark"),
    "dead": (
        page(
            stepper("one", "two").partition("<script>")[0]
            + "</div><script>document.documentElement.className = 'qr-js'</script>"
        ),
        "stepper: Home shows frames [1], not the first",
    ),
    "hidden": (
        page(stepper("one", "two").partition("<script>")[0] + "</div>"),
        "stepper: the slider cannot be seen",
    ),
    "silent": (page(stepper("same", "same")), "stepper: frame 1 leaves the readout at 'same'"),
    "locked": (
        page(
            stepper("one", "two")
            + "<script>addEventListener('mousedown', e => e.preventDefault(), true)</script>"
        ),
        "stepper: dragged to the left end it shows frames [1]",
    ),
    "unscripted": (
        page(stepper("one", "two").replace(" hidden>", ">")),
        "[no script]: stepper shows frames [0, 1]",
    ),
    "tex": (
        page(r"<p>Since <span style='display: contents'>\(x > 0\)</span>, it is.</p>"),
        r"[no script]: TeX is shown: \(x",
    ),
    "command": (page(r"<p>Since \tau is 0, it is.</p>"), r"[no script]: TeX is shown: \tau is 0"),
    "lost": (
        page("no list", ways=f'<div style="visibility: hidden">{WAYS}</div>'),
        "[no script]: no list of pages within reach",
    ),
    "aside": (
        page("far away", ways=f'<div style="position: fixed; left: -75%">{WAYS}</div>'),
        "[no script]: no list of pages within reach",
    ),
    "stuck": (page(explorer("{} wide")), "explorer: slider 1 leaves the readout as it was"),
    "still": (
        page(explorer().replace('"slots":[[', '"slots":[],"none":[[')),
        "explorer: slider 0 leaves the drawing as it was",
    ),
    "unmoved": (
        page(explorer().replace('matches(".qr-dial")', 'matches(".none")')),
        "explorer: slider 0 leaves the readout as it was",
    ),
    "undialled": (
        page(explorer().partition("<script>")[0] + "</div>"),
        "explorer: slider 0 cannot be seen",
    ),
    "bare": ("<!doctype html><title>Nothing</title>", "no article on the page"),
}

LINKS = {
    '<a href="nowhere.html">x</a>': "broken link: nowhere.html",
    '<a href="../outside.html">x</a>': "broken link: ../outside.html",
    '<img src="none.png" alt="x">': "broken link: none.png",
    '<a href="#nowhere">x</a>': "no such anchor: #nowhere",
    '<a href="other.html#nowhere">x</a>': "no such anchor: other.html#nowhere",
    '<script src="https://example.org/x.js"></script>': "loads from another host: https://exam",
    '<img srcset="//example.org/x.png 2x" alt="x">': "loads from another host: //example.org/x.png",
    '<p id="twice">x</p><p id="twice">y</p>': "stands more than once: id twice",
    '<p id="once">x</p><p id="another">y</p>': None,
    '<a href="https://example.org/">x</a>': None,
    '<a href="mailto:somebody@example.org">x</a>': None,
    '<a href="other.html#top">x</a>': None,
}


def write(folder, **pages):
    back = WAYS.replace("other", next(iter(pages), "other"))
    for name, text in {"other": page("Another", ways=back), **pages}.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """What the check says of a site with one good page and one for each fault."""
    faulty = {name: text for name, (text, _) in FAULTS.items()}
    site = write(tmp_path_factory.mktemp("site"), good=GOOD, **faulty)
    return check_site.check_pages(site, CHROMIUM)[0]


@pytest.mark.parametrize("fault", FAULTS)
class TestFaults:
    pytestmark = needs_chromium

    def test_is_reported(self, fault, reported):
        lines = [line for line in reported if line.startswith(f"{fault}.html ")]
        assert any(FAULTS[fault][1] in line for line in lines), lines


class TestGoodPage:
    pytestmark = needs_chromium

    def test_is_clean(self, reported):
        assert [line for line in reported if line.startswith(("good.html", "other.html"))] == []

    def test_main_counts_it(self, tmp_path, capsys):
        assert check_site.main([str(write(tmp_path, index=GOOD)), "--workers", "1"]) == 0
        assert "2 pages, 8 stepper runs, 0 problems" in capsys.readouterr().out

    def test_main_fails_on_a_broken_link(self, tmp_path, capsys):
        site = write(tmp_path, index=page('<a href="nowhere.html">x</a>'))
        assert check_site.main([str(site)]) == 1
        assert "index.html: broken link: nowhere.html" in capsys.readouterr().out


class TestProcesses:
    pytestmark = needs_chromium

    def test_report_page_by_page(self, reported):
        pages = [line.partition(" ")[0] for line in reported]
        assert pages == sorted(pages)

    @pytest.mark.parametrize(
        "end", ["exit 1", 'grep -q spawn_main "$check/cmdline" && kill -9 $id']
    )
    def test_one_that_ends_is_no_silent_pass(self, end, tmp_path):
        browser = tmp_path / "browser"
        # the browser is begun by Playwright's own process, and that by the one that checks
        find = "id=$(cut -d' ' -f4 /proc/$PPID/stat); check=/proc/$id"
        browser.write_text(f"#!/bin/sh\n{find}\n{end}\n")
        browser.chmod(0o755)
        with pytest.raises((check_site.Error, BrokenProcessPool)):
            check_site.check_pages(write(tmp_path, index=GOOD), str(browser))


@pytest.mark.parametrize("link", LINKS)
def test_links(link, tmp_path):
    problems = check_site.check_links(write(tmp_path, index=page(link)))
    expected = LINKS[link]
    if expected:
        assert len(problems) == 1 and problems[0].startswith(f"index.html: {expected}")
    else:
        assert problems == []


def test_says_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="Run `make book` first"):
        check_site.main([str(tmp_path)])
    monkeypatch.setattr(check_site.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="apt-get install chromium"):
        check_site.main([str(write(tmp_path, index=GOOD))])
