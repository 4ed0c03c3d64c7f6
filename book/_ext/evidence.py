"""The directive `pages-of-this-run`: every page with its time and the kinds of evidence on it.

The kinds are read off the pages as they came out of the run: what they call measured on a device,
compiled for a target, or predicted for a device.
"""

import re

from docutils import nodes
from docutils.parsers.rst import Directive
from myst_nb.sphinx_ import NbMetadataCollector

# kind: how a page says it; the device or target is kept
KINDS = {
    "measured": re.compile(
        r"measured on (?:an? |one )?(?:NVIDIA )?([A-Z]+\d+\w*|Intel|AMD)\b", re.I
    ),
    "compiled": re.compile(r"compiled for (sm_\d+a?)\b", re.I),
    "predicted": re.compile(r"predicted for (?:an? )?(?:NVIDIA )?([A-Z]+\d+\w*)\b", re.I),
}
JOINED = {"measured": "measured on", "compiled": "compiled for", "predicted": "predicted for"}


class Pages(nodes.General, nodes.Element):
    """Stands for the table until all pages have run."""


class PagesOfThisRun(Directive):
    def run(self):
        return [Pages()]


def evidence(text):
    """[(kind, on what)] that a page says, markup and all."""
    # words of two cells or two lines of a drawing are no sentence
    text = re.sub(r"</(?:td|th|tr|p|li|div|text)>", ". ", text)
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))
    return sorted({(kind, word) for kind, said in KINDS.items() for word in said.findall(plain)})


def in_order(env, docname):
    """All pages as the table of contents has them."""
    yield docname
    for each in env.toctree_includes.get(docname, ()):
        yield from in_order(env, each)


def fill_in(app, doctree, docname):
    for place in doctree.findall(Pages):
        ran = NbMetadataCollector.get_doc_data(app.env)
        rows = []
        for page in in_order(app.env, app.config.root_doc):
            title = app.env.titles[page].astext()
            uri = app.builder.get_relative_uri(docname, page)
            link = nodes.reference("", title, internal=True, refuri=uri)
            badges = []
            # this page has a badge of every kind, as a legend
            said = [] if page == docname else evidence(app.env.get_doctree(page).astext())
            for kind, word in said:
                badge = nodes.inline(
                    "", f"{JOINED[kind]} {word}", classes=["qr-badge", f"qr-{kind}"]
                )
                badges += [badge, nodes.Text(" ")]
            rows.append(([link], [nodes.Text(took(ran.get(page, {}).get("exec_data")))], badges))
        place.replace_self(table(["Page", "Seconds", "Evidence on it"], rows))


def took(data):
    """The seconds of a page, from what MyST-NB keeps of its run."""
    if not data:
        return "no code"
    return f"{data['runtime']:.1f}" if data["succeeded"] else "failed"


def table(heads, rows):
    """A table of docutils from lists of nodes."""
    group = nodes.tgroup(cols=len(heads))
    group += [nodes.colspec(colwidth=1) for _ in heads]

    def row(cells):
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *c)) for c in cells))

    group += nodes.thead("", row([[nodes.Text(head)] for head in heads]))
    group += nodes.tbody("", *(row(cells) for cells in rows))
    return nodes.table("", group, classes=["colwidths-auto"])


def setup(app):
    app.add_node(Pages)
    app.add_directive("pages-of-this-run", PagesOfThisRun)
    # after the builder has resolved what links to what
    app.connect("doctree-resolved", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
