"""Every formula as MathML too: MathJax needs scripts, and who reads without them a browser alone.

    mathml(r"\\norm{x}^2", config["macros"])    # '<math>...</math>'

A page carries both: the TeX, which no_script.css hides, and the MathML in <noscript>.
"""

import re
from contextlib import suppress
from html import escape, unescape

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

LOG = logging.getLogger(__name__)
# how a formula is written: its element, more anchors and a number if it has them, TeX, the end
WRITTEN = re.compile(
    r'(<(\w+)[^>]*>(?:\s*<span id="[^"]*"></span>)*(?:\s*<span class="eqno">.*?</span>)?)'
    r"(.*)(</\2>\s*)",
    re.DOTALL,
)
# what TeX asks to be escaped inside of words, where the converter keeps the backslash
ESCAPED = re.compile(r"\\([_%#$]|&amp;)")
# what the converter does not know: what it is told instead
RATHER = (
    (re.compile(r"\\(begin|end)\{aligned\}"), r"\\\1{split}"),
    # room between two lines
    (re.compile(r"\\\\\s*\[[^]]*\]"), r"\\\\ "),
    # a relation it is, in both ways of writing
    (re.compile(r"\\mathrel(?![A-Za-z])"), ""),
)
# TeX in words is not set; a dollar that is meant has a backslash
WITHIN = re.compile(r"(?<!\\)\$")
# what is left of TeX outside of words: a command, or a column
LEFT = re.compile(r"\\(?:[A-Za-z]+|.?)|&(?!#?\w+;)|&amp;")
# sidebars are opened by scripts; no_script.css lays them under the article
WAYS = """<noscript><nav class="qr-ways d-print-none" aria-label="Ways">
<a href="#pst-primary-sidebar">All pages</a>{contents}
</nav></noscript>
"""
CONTENTS = '\n<a href="#pst-secondary-sidebar">On this page</a>'


def group(tex, at):
    """(content, end) of the argument of a macro that starts at tex[at]."""
    while tex[at : at + 1].isspace():
        at += 1
    if tex[at : at + 1] != "{":
        one = re.compile(r"\\[A-Za-z]+|\\?[^\\]").match(tex, at)
        if not one:
            raise ValueError(f"a macro must be followed by what it takes; got {tex!r}")
        return one[0], one.end()
    depth = 0
    for brace in re.finditer(r"\\.|([{}])", tex[at:], re.DOTALL):
        depth += {"{": 1, "}": -1, None: 0}[brace[1]]
        if depth == 0:
            return tex[at + 1 : at + brace.start()], at + brace.end()
    raise ValueError(f"every brace must be closed; got {tex!r}")


def expand(tex, macros):
    """The formula `tex` without macros.

    Args:
        macros: {name: body} or {name: [body, number of arguments]}, as MathJax takes them.

    Raises:
        ValueError: an argument is missing, or a macro uses itself.
    """
    if not macros:
        return tex
    named = re.compile(rf"\\({'|'.join(map(re.escape, macros))})(?![A-Za-z])")
    for _ in range(1000):
        found = named.search(tex)
        if not found:
            return tex
        given = macros[found[1]]
        body, count = (given, 0) if isinstance(given, str) else given
        end, arguments = found.end(), []
        for _ in range(count):
            argument, end = group(tex, end)
            arguments.append(argument)
        body = re.sub(r"#(\d)", lambda m, a=arguments: a[int(m[1]) - 1], body)
        tex = tex[: found.start()] + body + tex[end:]
    raise ValueError(f"a macro must not use itself; got \\{found[1]}")


def mathml(tex, macros, display="inline"):
    """A formula of TeX as <math>, for display "inline" or "block".

    Raises:
        ValueError: a part of it has no translation.
    """
    fault = f"a formula must have a form that needs no script; got {tex!r}"
    plain = expand(tex, macros)
    for known, instead in RATHER:
        plain = known.sub(instead, plain)
    try:
        out = ESCAPED.sub(r"\1", convert(plain, display=display))
    # the converter has an error of its own for each kind of mistake
    except Exception as error:
        raise ValueError(f"{fault}: {error!r}") from error
    rest = re.sub(r"<mtext.*?</mtext>|<[^>]+>", _keep_tex, out)
    if left := WITHIN.search(plain) or LEFT.search(rest):
        raise ValueError(
            f"{fault}, of which {left[0]} is left: write it otherwise, or teach "
            "book/_ext/formulas_at_rest.py to"
        )
    # a page of html needs neither the name space nor the numbers of letters
    out = out.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "", 1)
    return re.sub(r"&#x(\w+);", lambda m: escape(chr(int(m[1], 16)), quote=False), out)


def _keep_tex(markup):
    """Of markup nothing is kept but a gap, of words the commands in them."""
    return " ".join(["", *re.findall(r"\\\w+", markup[0]), ""])


def both(visit, display, ends):
    """The visitor of a formula that writes what `visit` writes, and the MathML beside it."""

    def visit_both(self, node):
        start = len(self.body)
        with suppress(nodes.SkipNode):
            visit(self, node)
        written = "".join(self.body[start:])
        head, _, tex, tail = WRITTEN.fullmatch(written).groups()
        config = self.builder.config
        macros = (config.mathjax3_config or {}).get("tex", {}).get("macros", {})
        bare = unescape(tex).strip().removeprefix(ends[0]).removesuffix(ends[1])
        try:
            still = f"<noscript>{mathml(bare, macros, display)}</noscript>"
            self.body[start:] = [f'{head}<span class="qr-tex">{tex}</span>{still}{tail}']
        except ValueError as fault:
            LOG.warning(str(fault), location=node)
        raise nodes.SkipNode

    return visit_both


def wrap(app):
    """Write both forms wherever Sphinx, or MyST after it, would write the one for MathJax."""
    if app.builder.format != "html":
        return
    for renderers, display, ends in (
        (app.registry.html_inline_math_renderers, "inline", app.config.mathjax_inline),
        (app.registry.html_block_math_renderers, "block", app.config.mathjax_display),
    ):
        visit, depart = renderers["mathjax"]
        renderers["mathjax"] = (both(visit, display, ends), depart)


def on_page(app, pagename, templatename, context, doctree):
    """Every page has the style sheet; one with an article has the ways to the lists below it."""
    sheet = context["pathto"]("_static/no_script.css", resource=True)
    context["metatags"] = (
        context.get("metatags", "")
        + f'<noscript><link rel="stylesheet" href="{sheet}"></noscript>\n'
    )
    if body := context.get("body"):
        # the theme lists nothing where there is one title
        contents = CONTENTS if context.get("display_toc") else ""
        context["body"] = WAYS.format(contents=contents) + body


def setup(app):
    # after MyST, which has a visitor of its own
    app.connect("builder-inited", wrap, priority=900)
    app.connect("html-page-context", on_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
