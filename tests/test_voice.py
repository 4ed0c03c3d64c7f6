"""One voice, one path: the parts of a chapter, who follows whom, words and symbols, the sources."""

import json
import re
from pathlib import Path

import pybtex.database
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
CHAPTERS = [
    each["file"].partition("/")[2]
    for part in TOC["parts"]
    if part.get("numbered")
    for each in part["chapters"]
]
# the last part of a chapter is the way to the next, which the last one does not have
FOLLOWED = dict(zip(CHAPTERS, CHAPTERS[1:]))

# in the order in which a reader meets them; the certificate may stand elsewhere
TEMPLATE = (
    r":::\{admonition\} Before you start\n:class: note$",
    r"^[-*]? ?\*\*Time:\*\*",
    r"^[-*]? ?\*\*You need:\*\*",
    r"^[-*]? ?\*\*Hardware:\*\*",
    r"^When you have worked through this chapter you can$",
    r"^1\. \*\w",
    r":::\{admonition\} The question\n:class: important$",
    r"^## The picture",
    r"^## The ladder",
    r"^## Exercises",
    r"^```\{exercise-start\}",
    r"^```\{solution-start\}",
    r"^## What changed in qrlib",
)
# words of every day, which mean what they say: a program is one, a mirror was explained
EVERYDAY = {"block", "program", "reflector", "T"}
# no address is known of them
NOWHERE = {"Story2026", "Puglisi1992"}


def page(name):
    return (ROOT / "book" / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_has_the_parts_of_the_template_in_their_order(name):
    text, at = page(name), 0
    for part in TEMPLATE:
        found = re.compile(part, re.MULTILINE).search(text, at)
        assert found, f"{name}: {part} is missing, or stands before what it should follow"
        at = found.end()
    for part in (r"^## The certificate|certif", r"^:::\{admonition\} Takeaways\n:class: tip$"):
        assert re.search(part, text, re.MULTILINE), part


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_says_in_three_to_five_points_what_one_can_afterwards(name):
    box = page(name).partition("Before you start")[2].partition("\n:::")[0]
    points = re.findall(r"^(\d)\. \*\w", box, re.MULTILINE)
    assert points == [str(k + 1) for k in range(len(points))]
    assert 3 <= len(points) <= 5


@pytest.mark.parametrize(("name", "after"), FOLLOWED.items())
def test_a_chapter_ends_with_the_way_to_the_next(name, after):
    text = page(name)
    end = text[text.index("## What changed in qrlib") :]
    said = re.search(r"^Next: .*?(?:\n\n|\Z)", end, re.MULTILINE | re.DOTALL)
    assert said, "a paragraph that begins with Next: stands before the references"
    links = re.findall(r"\]\(([\w/.]+)\.md\)", said[0])
    assert links[0] == after


@pytest.mark.parametrize("path", sorted(ROOT.glob("book/*.md")), ids=lambda p: p.name)
def test_a_chapter_is_called_by_its_number(path):
    text = path.read_text("utf-8")
    called = re.findall(r"\[[Cc]hapter\s+(\d+)\]\((\w+)\.md\)", text)
    assert [pair for pair in called if CHAPTERS.index(pair[1]) + 1 != int(pair[0])] == []
    exercises = re.findall(r"\[[Ee]xercise\s+(\d+\.\d+)\]\(ex-([\w-]+)\)", text)
    assert [pair for pair in exercises if pair[0].replace(".", "-") != pair[1]] == []


def blank(text, pattern, keep=lambda m: ""):
    """The text with blanks for what matches, so that every other letter stays where it is."""

    def blanks(m):
        kept = keep(m)
        return kept if len(kept) == len(m[0]) else re.sub(r"[^\n]", " ", m[0])

    return re.sub(pattern, blanks, text, flags=re.MULTILINE | re.DOTALL)


def prose(text):
    """What is said in sentences up to the exercises: no code, formulas, headings or labels."""
    text = re.sub(r"^## Exercises.*", lambda m: " " * len(m[0]), text, flags=re.M | re.S)
    text = blank(text, r"\A---\n.*?\n---\n")
    text = blank(text, r"^(`{3,})\{.*?^\1$")
    text = blank(text, r"^:::\{admonition\} (?:Takeaways|The question)\n.*?^:::$")
    text = blank(text, r"\$\$.*?\$\$|\$[^$\n]*\$|<!--.*?-->")
    text = blank(text, r"^#[^\n]*|^\([\w-]+\)=$|^:::\S*[^\n]*|^:[a-z]+:[^\n]*")
    text = blank(text, r"(\{[\w:]+\}`[^`]*`)|`[^`]*`", lambda m: m[1] or "")
    return blank(text, r"(?<=\])\([^)]*\)")


def glossary():
    """[[name, other name, ...], ...] of the words explained in the glossary."""
    inside = page("glossary").partition("```{glossary}\n:sorted:\n")[2].partition("\n```")[0]
    entries = re.split(r"\n\n", inside.strip("\n"))
    return [re.findall(r"^(\S.*)$", entry, re.MULTILINE) for entry in entries]


def unlinked(text):
    """[(word, where)]: words of the glossary with no link in the paragraph of their first use.

    A link in the box on top, or in an earlier paragraph, is as good.
    """
    said = prose(text)
    box = said.index("When you have worked through this chapter you can")
    start = said.index("\n\n", said.index("\n\n", box) + 2)
    plain = blank(said, r"\{[\w:]+\}`[^`]*`")
    links = {}
    for link in re.finditer(r"\{term\}`(?:[^`<]*<([^`>]*)>|([^`]*))`", said):
        word = " ".join((link[1] or link[2]).lower().split())
        links.setdefault(word, link.start())
    found = []
    for names in glossary():
        if names[0] in EVERYDAY:
            continue
        words = "|".join(
            re.escape(name).replace(r"\ ", r"\s+") for name in sorted(names, key=len, reverse=True)
        )
        flags = 0 if min(map(len, names)) < 4 else re.IGNORECASE
        first = re.compile(rf"(?<![\w.-])(?:{words})(?:e?s)?(?![\w-])", flags).search(plain, start)
        if first:
            end = said.find("\n\n", first.start())
            linked = min(links.get(name.lower(), len(said)) for name in names)
            if linked > end:
                found.append((first[0], first.start()))
    return found


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_word_of_the_glossary_is_linked_where_a_chapter_first_uses_it(name):
    text = page(name)
    missing = [f"line {text.count(chr(10), 0, at) + 1}: {word}" for word, at in unlinked(text)]
    assert not missing, "write {term}`word`, or {term}`words <word>`"


def test_an_unlinked_word_is_found():
    head = "# A\n\nWhen you have worked through this chapter you can\n\n1. *see* a warp.\n\n"
    assert [
        word for word, _ in unlinked(head + "Two warps wait. A {term}`warp`.\n\nA wave.\n")
    ] == ["wave"]
    assert [word for word, _ in unlinked(head + "Two warps wait.\n\nA {term}`warp`.\n")] == [
        "warps"
    ]
    assert unlinked(head + "`warp` and $warp$.\n\n```{code}\nwarp\n```\n") == []


def test_every_source_can_be_found():
    entries = re.split(r"\n(?=@)", (ROOT / "book" / "references.bib").read_text("utf-8"))
    keys = [re.match(r"\s*@\w+\{(\w+),", entry)[1] for entry in entries]
    assert len(keys) == len(set(keys))
    lost = {k for k, e in zip(keys, entries) if not re.search(r"doi\s*= |https?://", e)}
    assert lost == NOWHERE
    dois = [d for e in entries for d in re.findall(r"doi\s*= \{(.*?)\}", e)]
    assert all(re.fullmatch(r"10\.\d{4,5}/\S+", doi) for doi in dois)


def test_every_source_is_cited_and_every_citation_has_one():
    text = "\n".join(p.read_text("utf-8") for p in ROOT.glob("book/*.md"))
    cited = {
        key.strip()
        for names in re.findall(r"\{cite(?::\w+)?\}`([^`]*)`", text)
        for key in names.split(",")
    }
    bib = (ROOT / "book" / "references.bib").read_text("utf-8")
    assert cited == set(re.findall(r"^@\w+\{(\w+),", bib, re.MULTILINE))


def rows(heading):
    """The rows of the table under a heading of the notation, cells stripped."""
    under = page("notation").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = [line for line in under.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_symbol_of_the_notation_is_used():
    formulas = " ".join(
        m for name in CHAPTERS for m in re.findall(r"\$\$.*?\$\$|\$[^$\n]+\$", page(name), re.S)
    )
    code = "\n".join(p.read_text("utf-8") for p in ROOT.glob("qrlib/**/*.py"))
    seen = 0
    for text, names, *_ in rows("Letters") + rows("Time"):
        for symbol in re.split(r"[,;]\\? ", text.strip("$").replace(r"\ ", " ")):
            seen += 1
            pattern = rf"(?<![A-Za-z\\]){re.escape(symbol)}(?![A-Za-z])"
            assert re.search(pattern, formulas), symbol
        for name in names.strip("`").split():
            assert re.search(rf"\b{name}\b", code), name
    assert seen > 30


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_theorem_has_a_number_and_a_proof_has_a_theorem(name):
    text = page(name)
    stated = re.findall(r"^:::\{prf:(?!proof)\w+\}[^\n]*\n([^\n]*)", text, re.MULTILINE)
    assert [label for label in stated if not label.startswith(":label: ")] == []
    # what is proven stands before its proof, and not in the air
    before = re.findall(r"^:::\{prf:(\w+)\}", text, re.MULTILINE)
    assert [
        k for k, kind in enumerate(before) if kind == "proof" and before[k - 1] == "proof"
    ] == []
    assert before[:1] != ["proof"]


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_lab_says_at_once_what_it_takes_and_where_else_to_run(name):
    lab = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))
    kinds = [cell["cell_type"] for cell in lab["cells"]]
    first = "".join(lab["cells"][0]["source"])
    assert kinds[0] == "markdown" and f"](../book/{name}.md)" in first
    assert "make lab" in first and "GPU" in first
    assert "the first cell installs it" in " ".join(first.split()), "what if nothing is installed"
    said = "which part runs on macOS and Windows, and where the rest"
    assert "macOS" in first and "Windows" in first, said
    assert first.rstrip().endswith("."), "the last sentence ends"
    assert kinds[1] == "code" and '"-m", "qrlib.doctor"' in "".join(lab["cells"][1]["source"])


def test_the_bibliography_calls_a_source_as_the_text_does(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "book" / "_ext"))
    citations = pytest.importorskip("plain_citations")
    sources = pybtex.database.parse_file(str(ROOT / "book" / "references.bib"))
    style = citations.Style()
    said = dict(zip(sources.entries, style.labels(list(sources.entries.values()))))
    assert said["Puglisi1992"] == "Puglisi, 1992"
    assert said["SchreiberVanLoan1989"] == "Schreiber and Van Loan, 1989"
    assert said["vanDerSluis1969"] == "van der Sluis, 1969"
    assert said["Joffrain2006"] == "Joffrain et al., 2006"
    assert said["QrHarden2026"][:-1] == said["QrSecond2026"][:-1] == "Saroufim, 2026"
    assert said["Story2026"].endswith("Kernel, 2026")
    assert len(set(said.values())) == len(said)
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["sphinx"]["config"]
    assert config["bibtex_default_style"] == config["bibtex_reference_style"] == "author_year"
