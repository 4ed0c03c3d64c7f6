"""A bibliography with the labels of the text, [Puglisi, 1992], and without withdrawn ARIA roles."""

from collections import Counter

from pybtex.plugin import register_plugin
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style as Plain


def label(entry):
    """Who and when: one name, two names, or the first and et al.; the title where nobody signs."""
    people = [
        str(Text(" ").join([*person.rich_prelast_names, *person.rich_last_names]))
        for person in entry.persons.get("author", [])
    ]
    if len(people) > 2:
        people = [f"{people[0]} et al."]
    who = " and ".join(people) or str(Text.from_latex(entry.fields["title"]))
    return f"{who}, {entry.fields['year']}"


class Style(Plain):
    """Pybtex' plain entries with labels of author and year; a letter tells equal ones apart."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.format_labels = self.labels

    def labels(self, entries):
        labels = [label(entry) for entry in entries]
        often, seen = Counter(labels), Counter()
        for each in labels:
            yield each + (chr(ord("a") + seen[each]) if often[each] > 1 else "")
            seen[each] += 1


def drop_roles(app, pagename, templatename, context, doctree):
    """Take docutils' list and biblioentry roles off the page; screen readers reject the pair."""
    if body := context.get("body"):
        body = body.replace(
            '<div role="list" class="citation-list">', '<div class="citation-list">'
        )
        context["body"] = body.replace(' role="doc-biblioentry"', "")


def setup(app):
    register_plugin("pybtex.style.formatting", "author_year", Style)
    app.connect("html-page-context", drop_roles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
