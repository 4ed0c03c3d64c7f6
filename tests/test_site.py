"""The site as a whole: poster, gallery, status, comparison, zip, print, addresses, citation.

A small book is built with the real configuration, once for all tests that need pages.
"""

import json
import os
import re
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import books
import numpy as np
import pytest
import yaml
from browser import check_site
from drawings import described_and_self_contained, texts, words_inside
from matplotlib import image
from test_house import in_toc, read

from qrlib.bench import results
from qrlib.stages import STAGES
from qrlib.teach import offline, origins, pictures
from qrlib.teach.figures import ladder, poster
from qrlib.teach.svg import from_matplotlib, matplotlib_style

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "book" / "_ext"))
CHROMIUM = check_site.find_chromium()
REPOSITORY, SITE = "https://github.com/OWNER/NAME", "https://owner.github.io/NAME/"


def chapters():
    parts = yaml.safe_load(read("_toc.yml"))["parts"]
    return [each["file"] for part in parts if part.get("numbered") for each in part["chapters"]]


# the poster


@pytest.mark.parametrize("wide", [True, False])
def test_poster_is_described_and_its_words_stand_inside(wide):
    drawn = poster.poster(wide)
    described_and_self_contained(drawn)
    words_inside(drawn)


@pytest.mark.parametrize("wide", [True, False])
def test_poster_has_every_rung_with_its_idea_its_picture_and_its_time(wide):
    drawn = poster.poster(wide)
    said = texts(drawn)
    ladder_of = results.load(ladder.DATA)
    for k, name in enumerate(STAGES, 1):
        assert f"{k}  {name}" in said
        assert ladder.idea(name)[0] in drawn.alt
        rows = [row for row in ladder_of.find(stage=name, precision="fp32") if row["ok"]]
        if rows:
            best = ladder.duration(min(row["median_us"] for row in rows))
            assert any(words.startswith(f"{best}, ") for words in said), name
            assert f"{best}, " in drawn.alt
    assert tuple(poster.PICTURES) == STAGES
    assert ladder_of.where() in drawn.alt


def test_a_faster_stage_has_a_shorter_bar():
    root = re.findall(r'<rect [^>]*width="([\d.]+)" height="12"[^>]*>', poster.poster().svg)
    _, found = poster.measured()
    # from the first rung upwards, and the library at the foot
    us = [found[name]["median_us"] for name in (*STAGES, "torch") if name in found]
    assert len(root) == len(us) > 3
    assert np.argsort(us).tolist() == np.argsort([float(width) for width in root]).tolist()


def test_poster_on_disk_is_up_to_date():
    stored = pictures.POSTER.read_text(encoding="utf-8")
    assert stored == poster.poster().svg, "run python -m qrlib.teach.pictures"


def test_front_page_shows_the_poster_and_offers_it_for_print():
    intro = read("book/intro.md")
    assert "poster.Both()" in intro and "](_static/poster.svg)" in intro


def test_the_same_plot_again_has_ids_of_its_own():
    from matplotlib import pyplot

    with matplotlib_style():
        figure, axes = pyplot.subplots()
        axes.plot([1, 2], marker="o")
        plot = from_matplotlib(figure, "Two dots.")
    first, again = (check_site.Page(plot.body()) for _ in range(2))
    assert first.ids and len(first.ids) == len(again.ids) and not first.ids & again.ids
    for text in (plot.body(), plot.svg):
        asked = {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)}
        assert asked == check_site.Page(text).ids


# the gallery


def test_every_chapter_hangs_in_the_gallery_with_its_own_picture():
    sections = re.split(r"^## ", read("book/gallery.md"), flags=re.MULTILINE)[1:]
    found = []
    for section in sections:
        title, page = re.match(r"\[(.+)\]\((\w+)\.md\)\n", section).groups()
        found.append(f"book/{page}")
        assert re.search(rf"^# {re.escape(title)}$", read(f"book/{page}.md"), re.MULTILINE), title
        module, call = re.search(
            r"import (\w+) as figures\n\nfigures\.(\w+)\(", section, re.MULTILINE
        ).groups()
        # the chapter draws with the same module, and so is the picture the chapter's own
        assert re.search(rf"from qrlib.teach.figures import {module}\b", read(f"book/{page}.md"))
        assert callable(getattr(import_module(f"qrlib.teach.figures.{module}"), call))
        sentence = section.split("\n\n")[1]
        assert len(sentence.split()) > 5 and sentence.endswith(".")
    missing = [page for page in chapters() if page not in found]
    assert found == chapters(), f"the gallery needs a picture and a sentence of {missing}, in order"


# the status page


def test_every_stored_file_says_where_it_is_from():
    files = {path.name for path in origins.DATA.glob("*.json")}
    assert files == {each.file for each in origins.origins()}
    shown = origins.Origins()._repr_html_()
    for each in origins.origins():
        assert each.file in shown and each.badge in shown and each.what and each.date and each.told
        if "provenance" in json.loads((origins.DATA / each.file).read_text("utf-8")):
            assert each.kind == "measured" and "commit " in each.told
    assert "Origins()" in read("book/status.md")


def test_numbers_without_an_origin_are_refused(tmp_path):
    (tmp_path / "found.json").write_text('{"us": [1, 2]}')
    with pytest.raises(ValueError, match=r"found.json must say where its numbers are from"):
        origins.Origins(tmp_path)


def test_evidence_is_told_apart():
    import evidence

    said = "<p><em>Measured on</em> an H200.</p><td>measured on NVIDIA H200</td><td>2026</td>"
    assert evidence.evidence(said) == [("measured", "H200")]
    assert evidence.evidence("*compiled for sm_100a*, predicted for a B200") == [
        ("compiled", "sm_100a"),
        ("predicted", "B200"),
    ]
    # to speak of measuring is no measurement
    assert not evidence.evidence("It is measured on a device, and compiled for GPUs.")


# the comparison


def test_every_mark_of_the_comparison_has_its_source():
    page = read("book/compare.md")
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("|")
    ]
    assert len(head) == 8 and len(rows) > 15
    pages = set(in_toc(yaml.safe_load(read("_toc.yml"))))
    for feature, ours, *theirs in rows:
        assert len(theirs) == 6, feature
        mark, link = re.fullmatch(r"\[?(yes|partly|no)\]?(?:\((.+)\))?", ours).groups()
        # what we claim can be seen on the page that is named
        assert (mark == "yes") == bool(link), feature
        if link:
            target = os.path.normpath(f"book/{link}").rpartition(".")[0]
            assert target in pages, feature
        for cell in theirs:
            source = r"https://github\.com/[\w-]+/[\w.-]+/blob/[0-9a-f]{40}/\S+"
            assert cell == "?" or re.fullmatch(rf"\[(yes|partly|no)\]\({source}\)", cell), feature


def test_comparison_says_what_we_lack():
    page = read("book/compare.md")
    lacking = re.findall(r"^\| ([^|]+) \| no \|", page, re.MULTILINE)
    told = page.partition("## What we lack")[2].lower()
    assert lacking
    for feature in lacking:
        assert f"**{feature.lower()}" in told, feature


# the citation


def test_citation_says_what_the_project_says_of_itself():
    cited = yaml.safe_load(read("CITATION.cff"))
    # what version 1.2.0 of the format requires
    assert cited["cff-version"] == "1.2.0"
    assert cited["message"] and cited["title"] and cited["authors"]
    assert cited["type"] in ("software", "dataset")
    project = tomllib.loads(read("pyproject.toml"))["project"]
    config = yaml.safe_load(read("_config.yml"))
    assert cited["title"] == config["title"]
    assert [each["name"] for each in cited["authors"]] == [config["author"]]
    assert f"Copyright (c) {config['copyright']} {config['author']}" in read("LICENSE")
    assert str(cited["version"]) == project["version"]
    assert cited["license"] == project["license"]
    assert cited["abstract"] == project["description"]
    assert cited["keywords"] == project["keywords"]
    version, when = re.search(r"^## (\S+), (.+)$", read("CHANGELOG.md"), re.MULTILINE).groups()
    assert version == project["version"]
    released = cited.get("date-released")
    assert (str(released) == when) if released else when == "not yet released"
    assert cited.get("repository-code", "") == config["repository"]["url"]


def test_labs_have_the_address_of_the_repository():
    address = yaml.safe_load(read("_config.yml"))["repository"]["url"]
    wanted = f"git+{address or 'https://ADDRESS-OF-THIS-REPOSITORY'}"
    for lab in sorted(ROOT.glob("notebooks/*.ipynb")):
        assert set(re.findall(r"git\+https?:[^\\\"' ]+", lab.read_text("utf-8"))) == {wanted}, lab


# the workflow


def test_workflow_builds_strictly_looks_and_publishes():
    flow = yaml.safe_load(read(".github/workflows/book.yml"))
    jobs = flow["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]), step
    commands = " ".join(step.get("run", "") for step in jobs["build"]["steps"])
    assert ".ci/run" in commands and "make zip" in commands
    assert re.findall(r"^make (\w+)", read(".ci/run"), re.MULTILINE) == [
        "lint",
        "test",
        "strict",
        "browser",
    ]
    # nothing is published that a stranger has sent, and nothing that has not been looked at
    assert jobs["publish"]["needs"] == "build"
    assert "pull_request" in jobs["publish"]["if"]
    assert flow["permissions"] == {"contents": "read"}
    for name in ("BOOK_REPOSITORY", "BOOK_SITE"):
        assert name in read(".github/workflows/book.yml") and name in read("book/_ext/addresses.py")


# a small book with the real configuration

INTRO = """
# A small book

The first sentence of it, for a card. $e^{i\\pi} = -1$ and [more](more.md).

$$
A = Q R
$$ (eq-small)

Since {eq}`eq-small`, $\\norm{A} = \\norm{R}$ in every norm that $Q$ keeps.
"""
MORE = (
    books.HEAD
    + """
# Householder walks

```{code-cell} python
:tags: [remove-input]

from qrlib.teach.figures import s01_mirror

s01_mirror.walk_stepper()
```

```{code-cell} python
:tags: [remove-input]

from qrlib.teach.figures import poster

poster.Both()
```

*Measured on* an H200, a long time ago.

```{exercise-start}
:label: ex-small
```
Is it so?

```{code-cell} python
:tags: [remove-input]

from qrlib.teach.hints import Hints

Hints("s01_mirror.1")
```

```{exercise-end}
```

```{solution-start} ex-small
:class: dropdown
```
It is so, indeed.
```{solution-end}
```

```{exercise} And so?
:label: ex-too
Is it so, too?
```

```{solution} ex-too
It is.
```

```{prf:proof}
By looking, $x$ is $x$.
```

```{prf:proof}
By looking again.
```
"""
)
STATUS = "# Status\n\n```{pages-of-this-run}\n```\n"
TOC = """
format: jb-book
root: book/intro
chapters:
  - file: book/more
  - file: notebooks/lab
  - file: book/status
"""


def build(folder, intro=INTRO, **environment):
    """The pages of a small book, built in `folder` with every warning an error."""
    (folder / "notebooks").mkdir(parents=True)
    books.begin(folder, TOC)
    for name, text in {"intro": intro, "more": MORE, "status": STATUS}.items():
        (folder / "book" / f"{name}.md").write_text(text)
    lab = json.loads((ROOT / "notebooks" / "s01_mirror.ipynb").read_text("utf-8"))
    lab["cells"] = [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# A lab"}]
    (folder / "notebooks" / "lab.ipynb").write_text(json.dumps(lab))
    done = books.build(folder, "-n", "-q", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "_build" / "html"


one_worker = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # built once, by one worker
    pytest.mark.xdist_group("site"),
]
in_browser = [
    *one_worker,
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium (Debian: apt-get install chromium)"),
]


def marked(marks):
    def put(test):
        for mark in marks:
            test = mark(test)
        return test

    return put


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The small book as the workflow builds it, with addresses."""
    folder = tmp_path_factory.mktemp("published") / "book"
    return build(folder, BOOK_REPOSITORY=REPOSITORY, BOOK_SITE=SITE)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The small book as it is built from a clone that knows of no address."""
    return build(tmp_path_factory.mktemp("local") / "book")


@pytest.fixture(scope="module")
def carried(local, tmp_path_factory):
    """The small book packed, carried elsewhere and unpacked: the folder of its pages."""
    file = tmp_path_factory.mktemp("carried") / "small.zip"
    offline.pack(local, file)
    with zipfile.ZipFile(file) as packed:
        packed.extractall(file.parent)
    return file.parent / "small"


def links(page):
    return check_site.Page(page.read_text("utf-8")).links


@marked(one_worker)
def test_published_pages_have_buttons_and_a_way_to_complain(published):
    chapter = links(published / "book/more.html")
    assert f"{REPOSITORY}/edit/main/book/more.md" in chapter
    issues = [link for link in chapter if link.startswith(f"{REPOSITORY}/issues/new?")]
    assert len(issues) == 2 and any("Householder+walks" in link for link in issues)
    assert not any("span" in link for link in issues)
    colab = "https://colab.research.google.com/github/OWNER/NAME/blob/main/notebooks/lab.ipynb"
    assert colab in links(published / "notebooks/lab.html")
    # it opens notebooks only
    assert not any("colab" in link for link in chapter)
    # where the workflow puts what the Makefile packs
    packed = re.search(r"^ZIP +:= _build/(\S+)$", read("Makefile"), re.MULTILINE)[1]
    assert f"{SITE}{packed}" in chapter


@marked(one_worker)
def test_published_pages_have_cards_with_a_picture_that_is_there(published):
    text = (published / "book/intro.html").read_text("utf-8")
    card = dict(re.findall(r'<meta (?:property|name)="([\w:]+)" content="([^"]*)"', text))
    assert card["og:title"] == "A small book"
    assert card["og:description"].startswith("The first sentence of it")
    assert card["og:url"] == f"{SITE}book/intro.html"
    assert card["og:image"].startswith(SITE)
    drawn = image.imread(published / card["og:image"].removeprefix(SITE))
    assert drawn.shape[:2] == (int(card["og:image:height"]), int(card["og:image:width"]))
    # the picture of the book is on it, upper right
    orange = np.abs(drawn[..., :3] - np.array([0xB0, 0x4A, 0x00]) / 255).max(-1) < 0.02
    assert orange[:300, 700:].sum() > 500
    # and lower right no logo of another project
    assert drawn[450:570, 900:, :3].min() > 0.99


@marked(one_worker)
def test_pages_without_an_address_have_no_button_that_leads_nowhere(local):
    for page in ("book/more.html", "notebooks/lab.html"):
        assert not [link for link in links(local / page) if "github" in link or "colab" in link]
        text = (local / page).read_text("utf-8")
        assert "og:image" not in text and "Say what is wrong" not in text
        assert "Take the book along" not in text


@marked(one_worker)
@pytest.mark.parametrize("site", ["local", "published"])
def test_built_pages_load_nothing_from_another_host(site, request):
    site = request.getfixturevalue(site)
    assert not check_site.check_links(site)
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    abroad = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//")
    assert styles and not any(abroad.search(text) for text in styles)


@marked(one_worker)
def test_status_has_the_time_and_the_evidence_of_every_page(local):
    text = (local / "book/status.html").read_text("utf-8")
    rows = re.findall(r"<tr.*?</tr>", text, re.DOTALL)[1:]
    cells = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in rows]
    shown = {re.search(r'href="([^"]+)"', page)[1]: (time, said) for page, time, said in cells}
    assert list(shown) == ["intro.html", "more.html", "../notebooks/lab.html", "#"]
    assert float(re.sub(r"<[^>]+>", "", shown["more.html"][0])) > 0
    assert "qr-measured" in shown["more.html"][1] and "measured on H200" in shown["more.html"][1]
    assert "no code" in shown["intro.html"][0] and "qr-badge" not in shown["intro.html"][1]


@marked(one_worker)
def test_the_zip_is_whole_and_the_same_again(local, carried, tmp_path):
    pages = {path.relative_to(local) for path in local.rglob("*.html")}
    assert pages == {path.relative_to(carried) for path in carried.rglob("*.html")}
    assert not check_site.check_links(carried)
    assert not (carried / "objects.inv").exists()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        offline.pack(local, tmp_path / name / "small.zip")
    again = [(tmp_path / name / "small.zip").read_bytes() for name in ("a", "b")]
    assert again[0] == again[1]


@marked(one_worker)
def test_every_formula_has_a_form_without_scripts(local):
    text = (local / "book/intro.html").read_text("utf-8")
    still = re.findall(r"<noscript>(<math .*?</math>)</noscript>", text)
    said = ["".join(re.findall(r">([^<>]+)<", each)) for each in still]
    assert said == ["eiπ=−1", "A=QR", "‖A‖=‖R‖", "Q"]
    assert [re.search(r'display="(\w+)"', each)[1] for each in still].index("block") == 1
    for page in local.rglob("*.html"):
        text = page.read_text("utf-8")
        counts = [text.count(f"<{each}") for each in ('span class="qr-tex"', "noscript><math ")]
        assert counts == [len(re.findall(r'<(?:span|div) class="math ', text))] * 2, page


@marked(one_worker)
def test_a_formula_without_such_a_form_stops_the_build(tmp_path):
    with pytest.raises(AssertionError, match=r"of which \\+unheard is left"):
        build(tmp_path / "book", intro="# A small book\n\nSo $\\unheard{x}$ it is.\n")


def test_nothing_is_packed_where_nothing_was_built(tmp_path):
    with pytest.raises(ValueError, match="run `make book`"):
        offline.pack(tmp_path, tmp_path / "empty.zip")


@pytest.fixture
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=check_site.CHROMIUM_ARGS
        )
        yield browser
        browser.close()


def heard_by(page):
    """What a page does that nobody should see it do, as it does it."""
    heard = []
    page.on("request", lambda r: r.url.startswith(("file:", "data:")) or heard.append(r.url))
    # what a page was still loading as the reader went on it gave up, which is no fault
    given_up = "net::ERR_ABORTED"
    page.on("requestfailed", lambda r: r.failure == given_up or heard.append(f"failed: {r.url}"))
    page.on("pageerror", lambda e: heard.append(f"error: {e}"))
    page.on("console", lambda m: m.type == "error" and heard.append(f"console: {m.text}"))
    return heard


@marked(in_browser)
def test_an_unpacked_zip_opens_from_the_disk(carried, browser):
    page = browser.new_page()
    page.goto((carried / "index.html").as_uri())
    page.wait_for_url("**/book/intro.html")
    heard = heard_by(page)
    check_site.open_page(page, (carried / "book/intro.html").as_uri())
    assert page.locator("mjx-container svg, mjx-container mjx-math").count() >= 2
    fonts = "[...document.fonts].filter(f => /^MJX/.test(f.family) && f.status == 'error').length"
    assert page.evaluate(fonts) == 0
    page.locator("article a", has_text="more").click()
    page.wait_for_url("**/book/more.html")
    check_site.open_page(page, page.url)
    (stepper,) = page.query_selector_all(".qr-stepper")
    assert not check_site.check_stepper(page, stepper)

    page.goto((carried / "search.html").as_uri() + "?q=householder")
    page.wait_for_selector("#search-results li a")
    assert "Householder walks" in page.locator("#search-results").inner_text()
    page.evaluate(check_site.SETTLED)
    assert not heard


@marked(in_browser)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_first_visit_takes_the_theme_of_the_system_in_silence(local, browser, scheme):
    # nothing is remembered yet, of which the theme would complain
    page = browser.new_context(color_scheme=scheme).new_page()
    heard = heard_by(page)
    check_site.open_page(page, (local / "book/more.html").as_uri())
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert not heard


@marked(in_browser)
def test_a_page_shows_the_poster_that_fits(local, browser):
    page = browser.new_page()
    page.goto((local / "book/more.html").as_uri(), wait_until="load")
    for width, media, shown in (
        (1280, "screen", "wide"),
        (390, "screen", "narrow"),
        (390, "print", "wide"),
    ):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media=media)
        seen = {name: page.locator(f".qr-{name} svg").is_visible() for name in ("wide", "narrow")}
        assert seen == {"wide": shown == "wide", "narrow": shown == "narrow"}, (width, media)


@marked(in_browser)
@pytest.mark.parametrize("name", ["intro", "more", "status"])
def test_pages_without_scripts_are_whole(local, browser, name):
    size = {"width": check_site.WIDTHS[-1], "height": check_site.HEIGHT}
    page = browser.new_context(java_script_enabled=False, viewport=size).new_page()
    base = local.as_uri() + "/"
    assert check_site.check_without_script(page, base, f"book/{name}.html") == []


@marked(in_browser)
def test_lists_of_pages_are_within_reach_without_scripts(local, browser):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((local / "book/more.html").as_uri())
    for width in (1280, 1000, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.locator("nav.bd-docs-nav a[href='status.html']").is_visible(), width
        # what a script would open is no button without it
        assert not page.locator(".sidebar-toggle").first.is_visible()
        assert page.locator(".qr-ways").is_visible() == (width < 1200)
    page.locator(".qr-ways a", has_text="All pages").click()
    at = page.locator("#pst-primary-sidebar").bounding_box()
    assert at["x"] >= 0 and at["x"] + at["width"] <= 390 and 0 <= at["y"] < 900


@marked(in_browser)
def test_the_search_shows_a_formula_once(local, browser):
    with check_site.Site(local) as base:
        page = browser.new_page()
        page.goto(f"{base}search.html?q=sentence")
        shown = page.locator("#search-results .context").first.inner_text()
    assert "e^{i\\pi} = -1" in shown and "eiπ" not in shown


@marked(in_browser)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_prints_with_everything_open_and_nothing_to_click(local, browser, theme):
    context = browser.new_context(color_scheme=theme)
    context.add_init_script(f"localStorage.setItem('mode', '{theme}')")
    context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    page = context.new_page()
    page.goto((local / "book/more.html").as_uri(), wait_until="load")
    page.evaluate(check_site.FORMULAS, check_site.TIMEOUT)
    # away from the last frame, which is the one for paper
    page.locator("input[type=range]").first.focus()
    page.keyboard.press("Home")
    before = page.evaluate("document.documentElement.dataset.theme")
    assert before == theme

    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    (stepper,) = page.locator(".qr-stepper").all()
    at = stepper.evaluate(check_site.STEPPER)
    assert at["visible"] == [at["frames"] - 1]
    for gone in (
        ".bd-sidebar-primary",
        ".bd-header-article",
        ".prev-next-footer",
        "input[type=range]",
        ".qr-stepper button",
        ".copybtn",
    ):
        assert not any(each.is_visible() for each in page.locator(gone).all()), gone
    assert page.get_by_text("Is it so?").is_visible()
    hints = page.locator(".qr-hints details p").all()
    assert hints and all(hint.is_visible() for hint in hints)
    # nobody has asked for it, so paper says where it is
    assert not page.get_by_text("It is so, indeed.").is_visible()
    folded = page.locator(".solution.dropdown")
    assert folded.locator(".admonition-title").is_visible()
    told = folded.evaluate("e => getComputedStyle(e, '::after').content")
    assert "page of all solutions" in told
    # on the page of all solutions they are not folded
    assert page.get_by_text("It is.", exact=True).is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert not any(hint.is_visible() for hint in hints)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    context.close()
