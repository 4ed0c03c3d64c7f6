"""An id stands once on a page: frames of exercises, solutions and proofs keep none in common."""

from docutils import nodes

# what sphinx-exercise and sphinx-proof give to every frame of a page alike; nothing links to them
SHARED = {"exercise-content", "solution-content", "proof-content", "proof"}


def drop(app, doctree, docname):
    """Take the shared ids off; a section with a title has its id from there, and keeps it."""
    for kind in (nodes.section, nodes.admonition):
        for frame in doctree.findall(kind):
            if frame.children and isinstance(frame.children[0], nodes.title):
                continue
            # sphinx-proof's style sheet asks for this one; book.css asks for the class
            if "proof" in frame["ids"]:
                frame["classes"].append("qr-proof")
            frame["ids"] = [each for each in frame["ids"] if each not in SHARED]


def setup(app):
    app.connect("doctree-resolved", drop)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
