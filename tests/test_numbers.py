"""No result is typed by hand: a time, a rate, a factor, a share or an error in a text has a source.

A result is a number, in figures or in words, before a unit: ns to seconds; flops or bytes a second;
percent; "times" or "fold" before faster, slower, longer, ...; eps; or 3e-7 where an error is spoken
of. Minutes and hours are how long it takes to read. A sentence that holds one must say where it is
from, in that sentence: a citation, a link to another site, or a comment

    <!-- given: ... -->       an assumption, a definition, a number of the task
    <!-- computed: ... -->    it follows from what stands beside it, and how

What was measured has no such excuse: a cell reads it from a file and prints it. So the strings of
cells are read too, and those of the figures; there the comment is one of Python's, on the line
before: `# given: ...`.
"""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|sixteen|twenty|thirty|"
    "forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|dozen"
)
NUMBER = rf"(?<![\w.^])(?:\d(?:[\d.,]*\d)?(?:e[-+]?\d+)? ?|(?:{WORDS})[- ])"
FACTOR = (
    r"(?:faster|slower|quicker|shorter|longer|better|worse|(?:as|so) (?:fast|slow|long|accurate)"
    r"|the (?:time|speed))\b"
)
RESULTS = {
    "time": rf"{NUMBER}(?:ns|us|ms|s|(?:nano|micro|milli)?seconds?)(?![\w/^])",
    "rate": rf"{NUMBER}[KMGTP]?(?:flops?|B|bytes|operations) ?(?:/ ?s|a second|per second)\b",
    "share": rf"{NUMBER}(?:%|per ?cent\b)",
    "factor": rf"(?:{NUMBER}(?:times|x|fold)|(?<!\w)(?:twice|half)) {FACTOR}",
    "fold": rf"{NUMBER}fold\b|(?<!\w)(?:{WORDS})fold\b",
    "error": rf"{NUMBER}(?:[mn] ?\*? ?)?eps(?!\w)",
    "small": r"(?<![\w.])\d[\d.]*e-\d+",
}
RESULTS = {kind: re.compile(found, re.IGNORECASE) for kind, found in RESULTS.items()}
# only where an error is spoken of is 3e-7 one, and not the size of an input
OF_AN_ERROR = re.compile(r"error|residual|differ|accura|orthogonal|wrong by", re.IGNORECASE)
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
# three words at least
EXCUSE = re.compile(r"\s*(?:given|computed): *\S+\s+\S+\s+\S+")
SOURCE = re.compile(r"\{cite(?::\w+)?\}|https?://")


def plain(text):
    """What a reader sees of a sentence: no comment, no target of a link, units in letters."""
    text = re.sub(r"\]\([^)]*\)", "]", COMMENT.sub("", text))
    text = re.sub(r"\{[\w:]+\}`[^`]*`", "", text)
    text = re.sub(r"\\mu\b ?|[\u00b5\u03bc]", "u", text).replace("\u2212", "-")
    # a letter in a formula is a variable and no unit
    text = re.sub(r"\$[^$]*\$", lambda m: re.sub(r"(?<![\\\w{])s\b", "variable", m[0]), text)
    text = re.sub(r"\\(?:text|mathrm|[,;! %])", " ", text)
    text = text.replace("\\eps", "eps").replace("\\times", "\u00d7").replace("\\cdot", "\u00d7")
    text = re.sub(r"\s+", " ", re.sub(r"[$*_~{}`]", " ", text))
    text = re.sub(r"(\d) ?\u00d7 ?10 ?\^ ?(-?\d+)", r"\1e\2", text)
    return text.replace("\u00d7", "x")


def results(sentence):
    """[(kind, words)] of the results in a sentence that says of none where it is from."""
    return [] if sourced(sentence) else found(sentence)


def found(sentence):
    said = plain(sentence)
    return [
        (kind, match[0].strip())
        for kind, pattern in RESULTS.items()
        if kind != "small" or OF_AN_ERROR.search(said)
        for match in pattern.finditer(said)
    ]


def sourced(sentence):
    comments = COMMENT.findall(sentence)
    return bool(SOURCE.search(sentence)) or any(EXCUSE.match(each) for each in comments)


def prose(text):
    """Markdown without what is no sentence: its head, code and formulas that are set apart."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    kept, fence, drop = [], "", False
    for line in text.splitlines():
        mark, info = re.match(r"\s*(`{3,}|)(.*)", line).groups()
        if mark and not fence:
            fence, drop = mark, not re.match(r"\{(?!code-cell|literalinclude|math)", info)
        elif mark == fence and fence and not info:
            fence, drop = "", False
            continue
        kept.append("" if drop else line)
    return re.sub(r"\$\$.*?\$\$(?: \(\S+\))?", "", "\n".join(kept), flags=re.DOTALL)


def sentences(text):
    """The sentences of Markdown; lines of a table, items of a list and headings one by one."""
    # a comment may run over lines, which would be cut below
    text = COMMENT.sub(lambda m: re.sub(r"\s+", " ", m[0]), prose(text))
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|:#`]|\d+\. ))", text)
    return [each for block in blocks for each in re.split(r"(?<=[.!?])\s+(?=[A-Z*\[(`{$])", block)]


def strings(code):
    """What Python would show, line by line, with the comment before: literals, no docstrings."""
    lines = code.splitlines()
    try:
        tree = ast.parse(re.sub(r"^[%!].*$", "", code, flags=re.MULTILINE))
    except SyntaxError:
        return []
    said, apart = {}, {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            apart |= {id(each) for each in node.values}
            written = [getattr(each, "value", None) for each in node.values]
            # for what is computed, a mark that is no number
            value = "".join(each if isinstance(each, str) else "\u2026" for each in written)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            value = node.value
        else:
            continue
        if id(node) not in apart:
            said.setdefault(node.lineno, []).append(value)
        if isinstance(node, ast.JoinedStr):
            apart |= {
                id(each.format_spec) for each in node.values if getattr(each, "format_spec", None)
            }
    shown = []
    for line, words in said.items():
        before = lines[line - 2].strip() if line > 1 else ""
        comment = f" <!-- {before[1:]} -->" if before.startswith("#") else ""
        shown.append(" | ".join(words) + comment)
    return shown


CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)(.*?)^```$", re.DOTALL | re.MULTILINE)


def parts(path):
    """The sentences and the strings of a page, a lab, or a module of figures."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return strings(text)
    if path.suffix == ".md":
        return sentences(text) + [s for cell in CELL.finditer(text) for s in strings(cell[2])]
    cells = [(c["cell_type"], "".join(c["source"])) for c in json.loads(text)["cells"]]
    return [s for kind, text in cells for s in (strings if kind == "code" else sentences)(text)]


PATHS = sorted(
    path
    for places in ("README.md", "CHANGELOG.md", "book/*.md", "notebooks/*.ipynb")
    for path in ROOT.glob(places)
) + sorted(ROOT.glob("qrlib/teach/figures/*.py"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_result_is_typed_by_hand(path):
    typed = [(results(each), " ".join(each.split())) for each in parts(path) if results(each)]
    assert not typed, (
        "print it in a cell from book/data, cite a source in the sentence, or say "
        "<!-- given: ... --> or <!-- computed: ... --> there"
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_comment_says_where_a_result_is_from_and_nothing_else(path):
    marked = [each for each in parts(path) if re.search(r"<!--\s*(?:given|computed)\b", each)]
    assert [each for each in marked if not (sourced(each) and found(each))] == []


BAD = {
    "Stage 6 takes 4.87 ms on an H200.": "time",
    "One launch costs 10\u00a0\u00b5s, a node less.": "time",
    r"It is done in $18.4\,\mu s$ there.": "time",
    r"It is done in $18.4\ \mathrm{ms}$ there.": "time",
    "The batch needs forty microseconds.": "time",
    "- **Result:** 3 seconds for all of them": "time",
    "| 640 x 512 | 994542 us |": "time",
    "Copies run at 4.28 TB/s.": "rate",
    "Its products make 740 TFLOP/s.": "rate",
    "It does 3e12 operations a second.": "rate",
    "The GPU is idle for 60 % of it.": "share",
    "About thirty per cent are launches.": "share",
    "It is 42 times faster than the library.": "factor",
    r"A speed-up: $2.5\times$ faster.": "factor",
    "Replayed, it is twice as fast.": "factor",
    "The panel takes half the time.": "factor",
    "A tenfold gain, then.": "fold",
    "The worst factor residual is 0.03 m*eps.": "error",
    r"Orthogonality is $0.4\,m\,\eps$ at most.": "error",
    "The error is 3e-7 after that.": "small",
    r"It differs by $2 \cdot 10^{-6}$ from theirs.": "small",
    "As [chapter 4](roofline.md) says, 9 ms.": "time",
    "It takes 9 ms. <!-- given: -->": "time",
    "It takes 9 ms. <!-- measured: on an H200 -->": "time",
    "It takes 9 ms. Others agree {cite}`Higham2002`.": "time",
}
GOOD = [
    "Each entry is read three times, and 132 programs run.",
    "A panel of 512 x 16 in float32 holds 32768 bytes.",
    r"There are $4 s$ places, and $\kappa^2 \eps$ is small.",
    "The best widths are 32 and 64; 640 matrices.",
    "- **Time:** 60 minutes to read",
    "The library needs 419 ms {cite}`Story2026`, others less.",
    "It takes [419 ms](https://example.org/board) there.",
    "A launch of 10 us and four kernels. <!-- given: numbers of the exercise -->",
    "A wave more is twice the time. <!-- computed: two waves for one -->",
    "Multiply it by $10^{-30}$, or by 1e-30.",
    "A few per cent, hundreds of times, a quarter.",
    "```{code-cell} python\nprint(4, 'ms')\n```\n",
    "```\nstage 6   4.87 ms\n```\n",
    "$$\nt = 3\\,\\mathrm{ms}\n$$ (eq-t)\n",
]


@pytest.mark.parametrize(("sentence", "kind"), BAD.items())
def test_a_planted_result_is_found(sentence, kind):
    (first, *_) = [seen for each in sentences(sentence) for seen in results(each)]
    assert first[0] == kind


@pytest.mark.parametrize("sentence", GOOD)
def test_what_is_no_result_or_has_a_source_passes(sentence):
    assert [seen for each in sentences(sentence) for seen in results(each)] == []


PAGE = """---
title: It takes 1 ms
---

# A page

Nothing here.

```{exercise-start} Predict
:label: ex
```

A kernel runs for 5 ms.

```{exercise-end}
```

```{code-cell} python
:tags: [remove-input]

print("it took 6 ms", f"or {us:8.1%} of 7 us, {us} us")
# given: how the axis is drawn
axis("0 to 8 ms")
```
"""


def test_every_place_of_a_page_is_read(tmp_path):
    (page := tmp_path / "page.md").write_text(PAGE, "utf-8")
    found = [seen for each in parts(page) for seen in results(each)]
    assert found == [("time", "5 ms"), ("time", "6 ms"), ("time", "7 us")]

    cells = [("markdown", "It takes 5 ms."), ("code", "%run this\nshow('6 ms')\n'7 ms'")]
    lab = {"cells": [{"cell_type": kind, "source": [text]} for kind, text in cells]}
    (page := tmp_path / "lab.ipynb").write_text(json.dumps(lab), "utf-8")
    found = [seen for each in parts(page) for seen in results(each)]
    assert found == [("time", "5 ms"), ("time", "6 ms")]

    (page := tmp_path / "figure.py").write_text('"""Of 5 ms."""\n\nalt = "In 6 ms."\n', "utf-8")
    assert [seen for each in parts(page) for seen in results(each)] == [("time", "6 ms")]
