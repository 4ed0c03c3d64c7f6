"""Open every page of the built book in Chromium and say what a reader would trip over.

    python tests/browser/check_site.py _build/html

Each page is opened in light and dark, 1280 and 390 pixels wide, from a server on 127.0.0.1 while no
other host can be reached. A problem is one line: page, where, what. Exit status 1 if there is one.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, product
from pathlib import Path
from queue import Empty
from urllib.parse import unquote, urlsplit

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Error, sync_playwright

THEMES = ("light", "dark")
# the look beside the themes, in which a page may not run scripts
UNTHEMED = "no script"
WIDTHS = (1280, 390)
HEIGHT = 900
# milliseconds, for a page on a busy machine
TIMEOUT = 120_000
# a browser for each core; more than four of them would want more memory than a small machine has
WORKERS = min(os.cpu_count() or 1, 4)

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_ARGS = [
    # no name resolves, so nothing comes from elsewhere; the attempt is still seen as a request
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def find_chromium():
    """Path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


class Page(HTMLParser):
    """What one html file offers (ids) and what it asks for (links, and resources it loads).

    repeated: ids that stand more than once, which no page may have.
    """

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.resources, self.repeated = set(), [], [], []
        self.redirects = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if a.get("id") in self.ids:
            self.repeated.append(a["id"])
        self.ids.update(filter(None, (a.get("id"), a.get("name") if tag == "a" else None)))
        if tag in ("a", "area") and a.get("href"):
            self.links.append(a["href"])
        elif tag == "link" and a.get("href") and a.get("rel") != "canonical":
            self.resources.append(a["href"])
        elif tag in ("img", "script", "iframe", "source", "video", "audio", "embed", "input"):
            self.resources += filter(None, (a.get("src"), a.get("poster")))
            self.resources += [c.split()[0] for c in a.get("srcset", "").split(",") if c.strip()]
        elif tag == "object" and a.get("data"):
            self.resources.append(a["data"])
        elif tag == "meta" and (a.get("http-equiv") or "").lower() == "refresh":
            self.redirects = True
            self.links.append(a["content"].partition("url=")[2])

    handle_startendtag = handle_starttag


def read_site(site):
    """{path within the site: Page} of every page; the theme's own fragments are no pages."""
    site = Path(site)
    files = (p for p in sorted(site.rglob("*.html")) if "_static" not in p.relative_to(site).parts)
    return {p.relative_to(site).as_posix(): Page(p.read_text("utf-8")) for p in files}


def check_links(site):
    """Problems with links, anchors, ids and resources, as lines of text."""
    site = Path(site).resolve()
    pages = read_site(site)
    problems = []
    for name, page in pages.items():
        problems += [
            f"{name}: stands more than once: id {id}" for id in dict.fromkeys(page.repeated)
        ]
        asked = [(url, False) for url in page.links] + [(url, True) for url in page.resources]
        for url, loads in asked:
            parts = urlsplit(url)
            if parts.scheme in ("data", "mailto", "javascript"):
                continue
            if parts.scheme or parts.netloc:
                if loads:
                    problems.append(f"{name}: loads from another host: {url}")
                continue
            target = site / name
            if parts.path:
                target = (target.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_file() or site not in target.parents:
                problems.append(f"{name}: broken link: {url}")
                continue
            fragment = unquote(parts.fragment)
            there = pages.get(target.relative_to(site).as_posix())
            if fragment and there and fragment not in there.ids:
                problems.append(f"{name}: no such anchor: {url}")
    return problems


# what must be true of a page at one width and theme; returns lines of text
LOOK = """
() => {
  const problems = [];
  const short = e => e.outerHTML.slice(0, 100).replace(/\\s+/g, " ");
  const say = (what, e) => problems.push(`${what}: ${short(e)}`);
  const article = document.querySelector("main article, article, main");
  if (!article) return ["no article on the page"];
  const named = e => ["aria-label", "aria-labelledby"].some(a => (e.getAttribute(a) || "").trim());
  const hidden = e => e.closest("[aria-hidden=true], [role=presentation], [role=none]");
  for (const e of article.querySelectorAll("img"))
    if (!hidden(e) && !(e.getAttribute("alt") || "").trim()) say("image without alt text", e);
  for (const e of article.querySelectorAll("svg")) {
    if (e.parentElement.closest("svg, button, a") || hidden(e)) continue;
    const image = e.parentElement.closest("[role=img]") || e;
    if (!named(image) && !e.querySelector(":scope > title")) say("drawing without a label", e);
  }
  // of a cell's markdown the strict build says nothing
  for (const e of article.querySelectorAll("p"))
    if (/^\\s*\\|[^]*\\|\\s*:?-{3,}/.test(e.textContent)) say("a table that is still text", e);
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) {
    const wide = [...document.body.querySelectorAll("*")].filter(
      e => e.getBoundingClientRect().right > page.clientWidth + 1 && e.scrollWidth > 0);
    const who = wide.slice(0, 3).map(short).join(" | ");
    problems.push(`scrolls sideways: ${page.scrollWidth} px on ${page.clientWidth}: ${who}`);
  }
  return problems;
}
"""

# what decides whether a word can be told from what it stands on
LOOKS = (
    "color opacity fontSize fontWeight textShadow backgroundColor backgroundImage "
    "position visibility display filter mixBlendMode"
).split()
AXE = """
async looks => {
  const article = document.querySelector("main article, article, main");
  if (!article) return [];
  // a page has thousands of words in its code, and axe takes milliseconds for each: one that looks
  // like a word of the same block that has passed, and stands on the same, passes too
  const blocks = [...article.querySelectorAll("pre")];
  const look = word => {
    const block = word.closest("pre"), seen = [blocks.indexOf(block)];
    for (let e = word; e !== block; e = e.parentElement) {
      const style = getComputedStyle(e);
      // it may lie on anything
      if (style.position !== "static") return null;
      seen.push(...looks.map(each => style[each]));
    }
    return seen.join("|");
  };
  const rule = axe._audit.rules.find(each => each.id === "color-contrast");
  const check = axe._audit.checks["color-contrast"], passed = new Set();
  const { matches } = rule, { evaluate } = check;
  rule.matches = (word, ...rest) => {
    if (word.matches("pre span")) return true;
    // a drawing is a picture to axe, and it never says what a text in it stands on
    return !word.closest("svg") && matches.call(rule, word, ...rest);
  };
  check.evaluate = function (word, options, ...rest) {
    const kind = word.matches("pre span") && look(word);
    if (passed.has(kind)) return true;
    if (!matches.call(rule, word, ...rest)) return true;
    const verdict = evaluate.call(this, word, options, ...rest);
    if (kind && verdict === true) passed.add(kind);
    return verdict;
  };
  try {
    // the preload is for one rule about rotated screens, and asks for styles at wrong addresses
    const options = { resultTypes: ["violations"], preload: false };
    const { violations } = await axe.run(article, options);
    const why = n => n.failureSummary.split("\\n").slice(1).join("; ").trim();
    return violations.flatMap(v => v.nodes.slice(0, 3).map(
      n => `axe ${v.id} (${v.impact}): ${n.target.join(" ")}: ${why(n)}`));
  } finally {
    Object.assign(rule, { matches });
    Object.assign(check, { evaluate });
  }
}
"""

# what is folded is part of the page too
UNFOLD = """
() => {
  for (const e of document.querySelectorAll("details")) e.open = true;
  for (const e of document.querySelectorAll(".toggle-hidden > p.admonition-title")) e.click();
  // a half-faded colour has no contrast to speak of
  for (const a of document.getAnimations()) a.finish();
}
"""

# the theme waits after a resize, too, by a timer of the same page: one that is set later, and for
# longer, is over later on a busy machine as well
SETTLED = """
() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 400)))
"""

STEPPER = """
e => {
  const shown = [...e.querySelectorAll(".qr-frame")].map(f => f.getClientRects().length > 0);
  return {
    frames: shown.length,
    visible: shown.flatMap((on, k) => on ? [k] : []),
    readout: (e.querySelector("output")?.textContent || "").trim(),
    slider: !!e.querySelector("input[type=range]"),
  };
}
"""


def check_stepper(page, stepper):
    """Problems with one stepper when it is moved by arrow keys and by mouse."""
    look = partial(stepper.evaluate, STEPPER)
    first = look()
    if not first["slider"] or first["frames"] < 2:
        return [f"stepper without a slider or frames: {first}"]
    slider = stepper.query_selector("input[type=range]")
    if not slider.is_visible():
        return ["stepper: the slider cannot be seen"]
    slider.scroll_into_view_if_needed()

    problems = []
    slider.focus()
    page.keyboard.press("Home")
    at = look()
    if at["visible"] != [0]:
        problems.append(f"stepper: Home shows frames {at['visible']}, not the first")
    for k in range(1, first["frames"]):
        before, _ = at, page.keyboard.press("ArrowRight")
        at = look()
        if at["visible"] != [k]:
            problems.append(f"stepper: arrow key {k} shows frames {at['visible']}, not {k}")
            break
        if not at["readout"] or at["readout"] == before["readout"]:
            problems.append(f"stepper: frame {k} leaves the readout at {before['readout']!r}")
            break

    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] - 4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 4, middle, steps=2)
    page.mouse.up()
    dragged = look()
    if dragged["visible"] != [0] or dragged["readout"] == at["readout"]:
        problems.append(f"stepper: dragged to the left end it shows frames {dragged['visible']}")
    return problems


EXPLORER = """
e => ({
  readout: (e.querySelector("output")?.textContent || "").trim(),
  drawing: e.querySelector("svg")?.innerHTML || "",
})
"""


def check_explorer(page, explorer):
    """Problems with a figure of several sliders when each is moved by arrow keys and by mouse."""
    look = partial(explorer.evaluate, EXPLORER)
    dials = explorer.query_selector_all("input[type=range]")
    if not dials:
        return ["explorer without a slider"]
    problems = []
    for k, dial in enumerate(dials):
        if not dial.is_visible():
            return [f"explorer: slider {k} cannot be seen"]
        dial.scroll_into_view_if_needed()
        dial.focus()
        seen = [look()]
        box = dial.bounding_box()
        for move in ("Home", "ArrowRight", "drag"):
            if move == "drag":
                middle = box["y"] + box["height"] / 2
                page.mouse.move(box["x"] + 4, middle)
                page.mouse.down()
                page.mouse.move(box["x"] + box["width"] - 4, middle, steps=2)
                page.mouse.up()
            else:
                page.keyboard.press(move)
            seen.append(look())
        # the last choice may be the second one, which the arrow key has set already
        choices = int(dial.get_attribute("max")) + 1
        moves = (1, 2), (2, 3) if choices > 2 else (1, 3)
        for before, after in moves:
            for what in ("readout", "drawing"):
                if not seen[after][what] or seen[before][what] == seen[after][what]:
                    problems.append(f"explorer: slider {k} leaves the {what} as it was")
    return list(dict.fromkeys(problems))


# what a reader without scripts must find, and must not
UNSCRIPTED = """
() => {
  const problems = [];
  const page = document.documentElement;
  const seen = e => {
    const box = e.getBoundingClientRect();
    const inside = box.left + scrollX >= 0 && box.right + scrollX <= page.clientWidth + 1;
    return e.checkVisibility({ visibilityProperty: true }) && box.width && box.height && inside;
  };
  const ways = [...document.querySelectorAll("nav a[href]")];
  if (!ways.some(a => a.pathname !== location.pathname && seen(a)))
    problems.push("no list of pages within reach");
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement: e } = texts.currentNode;
    const tex = data.match(/\\\\[A-Za-z()[\\]].{0,40}/);
    if (!tex || e.closest("pre, code, kbd, samp, script, style")) continue;
    // an element may have no box of its own, and words in it all the same
    const words = document.createRange();
    words.selectNode(texts.currentNode);
    if (words.getClientRects().length && getComputedStyle(e).visibility === "visible")
      problems.push(`TeX is shown: ${tex[0]}`);
  }
  return problems;
}
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class Site:
    """The built pages behind http on 127.0.0.1, for the length of a with block."""

    def __init__(self, folder):
        handler = partial(Quiet, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}/"

    def __exit__(self, *exception):
        self.server.shutdown()
        self.server.server_close()


def watch(page, base, heard):
    """Put into heard what the page does that nobody should see it do."""

    def request(r):
        if not r.url.startswith((base, "data:", "blob:", "about:")):
            heard.append(f"asks another host: {r.url}")

    def failed(r):
        if r.url.startswith(base):
            heard.append(f"request failed: {r.url} ({r.failure})")

    def response(r):
        if r.status >= 400:
            heard.append(f"request failed: {r.url} ({r.status})")

    page.on("request", request)
    page.on("requestfailed", failed)
    page.on("response", response)
    page.on("websocket", lambda w: heard.append(f"opens a socket: {w.url}"))
    page.on("pageerror", lambda e: heard.append(f"script error: {e}"))
    page.on("console", lambda m: m.type == "error" and heard.append(f"console error: {m.text}"))


# the formulas are set after the page has loaded
FORMULAS = """
timeout => Promise.race([
  Promise.resolve(window.MathJax?.startup?.promise).then(() => null),
  new Promise((_, no) => setTimeout(() => no(new Error("the formulas are not set")), timeout)),
])
"""


def open_page(page, url):
    page.goto(url, wait_until="load")
    page.evaluate(FORMULAS, TIMEOUT)
    page.evaluate(UNFOLD)


def check_pages(site, chromium, *, workers=WORKERS, shots=None):
    """What is wrong with the pages as a browser shows them; the pages and stepper runs seen."""
    pages = [name for name, page in read_site(site).items() if not page.redirects]
    looks = [*THEMES, UNTHEMED]
    jobs = list(product(pages, looks))
    # a process that is begun anew has no browser yet
    fresh = multiprocessing.get_context("spawn")
    with fresh.Manager() as manager, ProcessPoolExecutor(workers, fresh) as pool:
        queue = manager.Queue()
        # the long pages first, so that at the end nobody waits for one of them
        for job in sorted(jobs, key=lambda job: -(Path(site) / job[0]).stat().st_size):
            queue.put(job)
        shares = [pool.submit(check_some, site, chromium, queue, shots) for _ in range(workers)]
        # where a process has ended before its time there is an error here, and no result
        found = dict(chain(*(share.result() for share in shares)))
    problems = chain(*(found[job][0] for job in jobs))
    return list(problems), len(pages), sum(steppers for _, steppers in found.values())


def check_some(site, chromium, queue, shots=None):
    """[((page, look), (problems, stepper runs))] of what is in the queue until it is empty."""
    found = []
    with Site(site) as base, sync_playwright() as playwright, suppress(Empty):
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        tabs = {theme: open_tab(browser, theme, base) for theme in THEMES}
        size = {"width": WIDTHS[-1], "height": HEIGHT}
        still = browser.new_context(java_script_enabled=False, viewport=size).new_page()
        still.set_default_timeout(TIMEOUT)
        while True:
            name, look = queue.get_nowait()
            if look == UNTHEMED:
                result = check_without_script(still, base, name), 0
            else:
                result = check_in_theme(*tabs[look], base, name, look, shots)
            found.append(((name, look), result))
    return found


def open_tab(browser, theme, base):
    """(an empty tab in a theme, the list of what its pages do that nobody should see them do)."""
    context = browser.new_context(color_scheme=theme)
    # the theme keeps a reader's choice here
    context.add_init_script(
        f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')"
    )
    page, heard = context.new_page(), []
    page.set_default_timeout(TIMEOUT)
    watch(page, base, heard)
    return page, heard


def check_in_theme(page, heard, base, name, theme, shots=None):
    """(problems, stepper runs) of a page in one theme, wide and narrow."""
    problems, steppers = [], 0
    heard.clear()
    where = f"{name} [{theme}]"
    try:
        page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
        open_page(page, base + name)
        if page.evaluate("document.documentElement.dataset.theme") != theme:
            problems.append(f"{where}: the page is not {theme}")
        page.evaluate(AXE_SCRIPT)
        for width in WIDTHS:
            where = f"{name} [{theme} {width}]"
            page.set_viewport_size({"width": width, "height": HEIGHT})
            page.evaluate(SETTLED)
            found = page.evaluate(LOOK) + page.evaluate(AXE, LOOKS)
            for stepper in page.query_selector_all(".qr-stepper"):
                found += check_stepper(page, stepper)
                steppers += 1
            for explorer in page.query_selector_all(".qr-explorer"):
                found += check_explorer(page, explorer)
                steppers += 1
            problems += [f"{where}: {what}" for what in found]
            if shots:
                file = f"{name.removesuffix('.html')}-{theme}-{width}.png"
                page.screenshot(path=shots / file.replace("/", "-"), full_page=True)
    except Error as error:
        problems.append(f"{where}: {error.message.splitlines()[0]}")
    problems += [f"{name} [{theme}]: {what}" for what in dict.fromkeys(heard)]
    return problems, steppers


def check_without_script(page, base, name):
    """Problems of a narrow page that may not run scripts.

    Each stepper must stand at its last frame, the list of pages be there, and formulas be set.
    """
    try:
        page.goto(base + name, wait_until="load")
        found = page.evaluate(LOOK) + page.evaluate(UNSCRIPTED)
        for stepper in page.query_selector_all(".qr-stepper"):
            at = stepper.evaluate(STEPPER)
            if at["visible"] != [at["frames"] - 1] or not at["readout"]:
                found.append(f"stepper shows frames {at['visible']}")
    except Error as error:
        found = [error.message.splitlines()[0]]
    return [f"{name} [{UNTHEMED}]: {what}" for what in found]


def main(argv=None):
    parser = argparse.ArgumentParser(description="Check the built book in Chromium.")
    parser.add_argument("site", type=Path, help="folder of the built pages, such as _build/html")
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help="processes at once, each with a browser"
    )
    parser.add_argument("--shots", type=Path, help="folder for a picture of every page")
    args = parser.parse_args(argv)
    if not (args.site / "index.html").is_file():
        sys.exit(
            f"{args.site} must be the built book; it has no index.html. Run `make book` first."
        )
    chromium = find_chromium()
    if not chromium:
        sys.exit("Chromium is needed and is not there. On Debian: sudo apt-get install chromium")
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)

    problems = check_links(args.site)
    found, pages, steppers = check_pages(
        args.site, chromium, workers=args.workers, shots=args.shots
    )
    problems += found
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{pages} pages, {steppers} stepper runs, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
