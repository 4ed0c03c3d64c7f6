"""A book is built whose pages run at once: each has what its own cells printed."""

import os

import books
import pytest

PAGE = (
    books.HEAD
    + """# Page {name}

```{{code-cell}} python
from pathlib import Path
from time import {clock}, sleep
{code}
```
"""
)
# each of the two waits for the other to begin, and leaves a mark when it has ended
MEET = """
Path("{name}.begun").touch()
for _ in range(1200):
    sleep(0.1)
    if Path("{other}.begun").exists():
        break
print("{name} ", end="", flush=True)
# the rest of the line comes later
sleep(1)
print("met" if Path("{other}.begun").exists() else "was alone")
sleep({seconds})
Path("{name}.ended").touch()
"""
PAGES = {
    "alone": "print('after', sorted(path.name for path in Path().glob('*.ended')))",
    "broken": "raise RuntimeError('planted')",
    "one": MEET.format(name="one", other="two", seconds=0),
    "two": MEET.format(name="two", other="one", seconds=3),
}


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The folder of the book, and what its strict build said."""
    folder = tmp_path_factory.mktemp("ahead")
    rest = "".join(f"  - file: {name}\n" for name in list(PAGES)[1:])
    books.begin(folder, f"format: jb-book\nroot: alone\nchapters:\n{rest}")
    for name, code in PAGES.items():
        clock = "perf_counter" if name == "alone" else "time"
        (folder / f"{name}.md").write_text(PAGE.format(name=name, clock=clock, code=code))
    return folder, books.build(folder, "--keep-going")


def page(folder, name):
    return (folder / "_build" / "html" / f"{name}.html").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("ahead")
@pytest.mark.skipif(os.cpu_count() < 2, reason="on one core one page runs at a time")
class TestBuild:
    def test_pages_run_at_once(self, book):
        folder, _ = book
        assert "one met" in page(folder, "one")
        assert "two met" in page(folder, "two")

    def test_a_page_with_a_clock_waits_for_the_others(self, book):
        assert "after ['one.ended', 'two.ended']" in page(book[0], "alone").replace("&#39;", "'")

    def test_a_failed_cell_is_said_and_fails_the_build(self, book):
        folder, done = book
        assert done.returncode != 0
        assert "broken.md: WARNING" in done.stderr and "planted" in done.stderr
        assert "planted" in (folder / "_build/html/reports/broken.err.log").read_text()
