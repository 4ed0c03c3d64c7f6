"""The pages of all exercises and of all solutions are put together anew at every build."""

from pathlib import Path

from qrlib.teach.exercises.core import CHAPTERS
from qrlib.teach.exercises.pages import MARKS, in_place


def fill(app, docname, source):
    """Put what a page marks in its place, and build it again when a chapter has changed."""
    if not any(mark in source[0] for mark in MARKS):
        return
    book = Path(app.env.doc2path(docname)).parent
    source[0] = in_place(source[0], book)
    for name in CHAPTERS.values():
        app.env.note_dependency(str(book / f"{name}.md"))


def setup(app):
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
