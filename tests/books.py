"""Small books of a test, with the configuration and the extensions of the real one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# what a page with cells begins with
HEAD = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


def begin(folder, toc):
    """All that a book has but its pages; toc: the text of its table of contents."""
    for name in ("_static", "_ext", "references.bib"):
        source, target = ROOT / "book" / name, folder / "book" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    shutil.copy(ROOT / "_config.yml", folder)
    (folder / "_toc.yml").write_text(toc)


def build(folder, *options, **environment):
    """What a build says that takes every warning for an error, and knows of no address."""
    kept = {k: v for k, v in os.environ.items() if k not in ("BOOK_REPOSITORY", "BOOK_SITE")}
    return subprocess.run(
        [Path(sys.executable).parent / "jupyter-book", "build", folder, "-W", *options],
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
