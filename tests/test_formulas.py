"""Every formula of the book has a form that needs no script, and that form says the same."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
import yaml
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "book" / "_ext"))
from formulas_at_rest import expand, mathml  # noqa: E402

CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
MACROS = CONFIG["sphinx"]["config"]["mathjax3_config"]["tex"]["macros"]
EXTENSIONS = CONFIG["parse"]["myst_enable_extensions"]
PAGES = sorted([*ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*.ipynb")])
# what a directive has inside is text of the page, but for these
CODE = {"code-cell", "code-block", "literalinclude"}
COMMAND = re.compile(r"\\(?:begin|end)\{\w+\}|\\\\\s*\[.*?\]|\\[A-Za-z]+|\\.")


def formulas(text):
    """[(TeX, "inline" or "block")] of a page of Markdown."""
    parser = create_md_parser(MdParserConfig(enable_extensions=EXTENSIONS), RendererHTML)

    def of(tokens):
        for token in tokens:
            name = re.match(r"\{([\w:-]+)\}", token.info.strip())
            if token.type.startswith(("math", "amsmath")):
                yield token.content, "inline" if token.type == "math_inline" else "block"
            elif token.type == "myst_role" and token.meta["name"] == "math":
                yield token.content, "inline"
            elif name and name[1] == "math":
                yield token.content, "block"
            elif name and token.type in ("fence", "colon_fence") and name[1] not in CODE:
                yield from of(parser.parse(token.content))
            yield from of(token.children or ())

    return list(of(parser.parse(text)))


def written(path):
    """The Markdown of a page or a notebook."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def check(tex, display):
    """Fail where the MathML of a formula is not well made, or lacks a digit or a letter of it."""
    root = ET.fromstring(mathml(tex, MACROS, display))
    for each in root.iter():
        # letters, numbers, signs and words hold text alone
        assert not (each.tag in ("mi", "mn", "mo", "mtext") and len(each)), tex
    said, wanted = "".join(root.itertext()), COMMAND.sub(" ", tex)
    # an index may come before or after a power
    assert sorted(re.findall(r"\d", said)) == sorted(re.findall(r"\d", wanted)), (tex, said)
    # some commands are letters there
    assert Counter(re.findall(r"[A-Za-z]", wanted)) <= Counter(said), (tex, said)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_formula_of_a_page_can_be_read_without_scripts(path):
    text = written(path)
    found = formulas(text)
    # the search for them is no less thorough than the page
    assert sum(display == "block" for _, display in found) >= len(re.findall(r"^\$\$.", text))
    for tex, display in found:
        check(tex, display)


def test_formulas_are_found_wherever_a_page_has_them():
    page = """
A line with $a$, {math}`b`, and a price of \\$5; `$code$` is none.

$$
c
$$ (eq-c)

:::{note}
> - $d$
:::

````{prf:theorem}
```{math}
:label: eq-e
e
```
````

```{code-cell} python
"$f$"
```

\\begin{align}
g
\\end{align}
"""
    found = [re.sub(r"\\\w+\{align\}|:label:.*|\s", "", tex) for tex, _ in formulas(page)]
    assert found == list("abcdeg")


@pytest.mark.parametrize(
    "tex, said",
    [
        (r"\norm{\abs{x}}_1", "‖|x|‖1"),
        (r"\eps x", "εx"),
        (r"\abs x", "|x|"),
        (r"\texttt{log\_m}", "log_m"),
        (r"\text{5\$}", "5$"),
        (r"\begin{aligned}a &= b \\[1ex] c &= d\end{aligned}", "a=bc=d"),
    ],
)
def test_macros_and_columns_are_read(tex, said):
    assert "".join(ET.fromstring(mathml(tex, MACROS)).itertext()) == said


@pytest.mark.parametrize(
    "tex, fault",
    [
        (r"\unheard{x}", r"of which \\unheard is left"),
        (r"a & b", "of which & is left"),
        (r"\text{as \unheard}", r"of which \\unheard is left"),
        (r"\text{if $x$ is}", r"of which \$ is left"),
        (r"\left( x", "must have a form that needs no script"),
        (r"\norm", "must be followed by what it takes"),
        (r"\norm{x", "every brace must be closed"),
    ],
)
def test_what_cannot_be_read_without_scripts_is_named(tex, fault):
    with pytest.raises(ValueError, match=fault):
        mathml(tex, MACROS)


def test_a_macro_of_itself_is_named():
    with pytest.raises(ValueError, match=r"must not use itself; got \\loop"):
        expand(r"\loop", {"loop": r"a \loop"})
