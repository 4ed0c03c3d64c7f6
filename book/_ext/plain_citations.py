"""A bibliography without the roles that ARIA has withdrawn: a citation is plain text with an id."""


def drop_roles(app, pagename, templatename, context, doctree):
    """Take docutils' list and biblioentry roles off the page; screen readers reject the pair."""
    if body := context.get("body"):
        body = body.replace(
            '<div role="list" class="citation-list">', '<div class="citation-list">'
        )
        context["body"] = body.replace(' role="doc-biblioentry"', "")


def setup(app):
    app.connect("html-page-context", drop_roles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
