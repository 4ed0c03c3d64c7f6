"""The rules of the house that a program can check."""

import ast
import contextlib
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from qrlib.stages import STAGES

ROOT = Path(__file__).resolve().parent.parent
TOP = {
    ".ci",
    ".github",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "_config.yml",
    "_toc.yml",
    "book",
    "notebooks",
    "pyproject.toml",
    "qrlib",
    "requirements.txt",
    "tests",
}
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def tracked():
    """Paths of the repository's files; a tarball without .git has nothing to say about them."""
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(git, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def in_toc(entry):
    """Every page that a table of contents names."""
    if isinstance(entry, list):
        return [page for each in entry for page in in_toc(each)]
    if isinstance(entry, dict):
        pages = [value for key, value in entry.items() if key in ("file", "root")]
        return pages + [page for value in entry.values() for page in in_toc(value)]
    return []


def pins(text):
    """{name: version} of what is pinned with ==."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[._]", "-", name).lower(): version for name, version in found}


def test_top_level_holds_what_it_may():
    assert {name.split("/")[0] for name in tracked()} <= TOP


def test_no_file_names_a_place_on_one_machine():
    place = re.compile(r"(?<![\w.~}])/(?:home|root|tmp|work|Users|mnt)/\w")
    found = []
    for name in tracked():
        found += [
            f"{name}: {line.strip()}" for line in read(name).splitlines() if place.search(line)
        ]
    assert not found


def test_text_is_tidy():
    found = []
    for name in tracked():
        # a drawing is written by a program
        if name.endswith(".svg"):
            continue
        text = read(name)
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            found.append(f"{name}: not one newline at its end")
        lines = enumerate(text.split("\n"), 1)
        found += [f"{name}:{k}: blanks at its end" for k, line in lines if line != line.rstrip()]
    assert not found


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "book/intro.md"])
def test_commands_in_the_text_exist(document):
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^|&& )make ([a-z]+)", read(document), re.MULTILINE))
    assert named
    assert named <= targets


def test_make_alone_lists_every_command():
    makefile = read("Makefile")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
    described = re.findall(r"^([a-z]+):.*## \w", makefile, re.MULTILINE)
    assert sorted(phony) == sorted(described)


def test_table_of_contents_names_pages_that_exist():
    pages = in_toc(yaml.safe_load(read("_toc.yml")))
    missing = [p for p in pages if not any((ROOT / f"{p}{e}").is_file() for e in (".md", ".ipynb"))]
    assert not missing
    assert len(pages) == len(set(pages))


def test_every_page_is_in_the_table_of_contents():
    pages = set(in_toc(yaml.safe_load(read("_toc.yml"))))
    files = [p for p in tracked() if re.fullmatch(r"(book|notebooks)/[^/]+\.(md|ipynb)", p)]
    assert {p.rpartition(".")[0] for p in files} <= pages


def test_chapters_have_labs_and_follow_the_ladder():
    pages = in_toc(yaml.safe_load(read("_toc.yml")))
    labs = [p.partition("/")[2] for p in pages if p.startswith("notebooks/")]
    chapters = [p.partition("/")[2] for p in pages if p.startswith("book/")]
    assert labs == [c for c in chapters if c in labs]
    # stages are explained from the first on, without a gap
    explained = [c for c in chapters if c in STAGES]
    assert explained and tuple(explained) == STAGES[: len(explained)]
    assert set(explained) <= set(labs)


def test_requirements_are_pinned():
    lines = [line for line in read("requirements.txt").splitlines() if line and line[0] != "#"]
    assert len(pins("\n".join(lines))) == len(lines)


def test_pins_install_on_the_oldest_python_promised():
    # Debian 12 has 3.11.2, and a package may ask for 3.11.5
    pinned = pins(read("requirements.txt"))
    seen = 0
    for package in metadata.distributions():
        name = re.sub(r"[._]", "-", package.metadata["Name"]).lower()
        if package.version.partition("+")[0] == pinned.get(name):
            seen += 1
            assert SpecifierSet(package.metadata.get("Requires-Python", "")).contains("3.11.2"), (
                name
            )
    if not seen:
        pytest.skip("nothing here is installed from requirements.txt")


def test_pre_commit_uses_the_pinned_versions():
    required = pins(read("requirements.txt"))
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    tools = {tool for hook in hooks for tool in hook["additional_dependencies"]}
    used = pins("\n".join(tools))
    assert len(used) == len(tools)
    assert used["ruff"] == required["ruff"]
    assert all(version == required.get(name, version) for name, version in used.items())


def test_extras_admit_the_pinned_versions():
    required = pins(read("requirements.txt"))
    project = tomllib.loads(read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"].values()
    for needs in map(Requirement, [*project["dependencies"], *chain(*extras)]):
        version = required[needs.name.replace("_", "-").lower()]
        assert needs.specifier.contains(version, prereleases=True), needs


def test_tests_of_a_group_are_run_by_one_worker(tmp_path):
    """What is dear is made once for a group; there is no word of it where groups do not hold."""
    (tmp_path / "test_group.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.mark.xdist_group('one')\n"
        "@pytest.mark.parametrize('k', range(6))\n"
        "def test_it(k):\n"
        "    pathlib.Path(os.environ['PYTEST_XDIST_WORKER']).touch()\n"
    )
    arguments = ["-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=tmp_path, check=True)
    assert len(list(tmp_path.glob("gw*"))) == 1


def test_tests_give_the_builder_of_the_interpreter_back():
    """monkeypatch.setattr would leave a method of its class as an attribute of its own."""
    for path in sorted(ROOT.glob("tests/**/*.py")):
        found = re.search(r"setattr\(\s*(\w+\.)*(interpreter_)?builder\b", path.read_text("utf-8"))
        assert not found, f"{path.name}: use monkeypatch.setitem(vars(builder), name, function)"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_are_stored_without_results(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    assert notebook.metadata.kernelspec.name == "python3"
    # as Jupyter would save it, so that opening a lab changes nothing
    assert text == nbformat.writes(notebook) + "\n"


def test_import_is_light():
    code = (
        "import sys, qrlib; qrlib.STAGES; qrlib.stage('s01_mirror');"
        "heavy = {'torch', 'triton', 'matplotlib', 'IPython'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    # pytest's own import hooks and path must not help
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def unknown_names(text):
    """What a file asks of a module of ours that has no such name, wherever in it that stands."""
    tree, modules, unknown = ast.parse(text), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {
                one.asname: importlib.import_module(one.name)
                for one in node.names
                if one.asname and one.name.startswith("qrlib")
            }
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qrlib"):
            try:
                home = importlib.import_module(node.module)
            except ImportError:  # a kernel, where there is no Triton
                continue
            for one in node.names:
                # a submodule is an attribute once it has been imported
                with contextlib.suppress(ImportError):
                    importlib.import_module(f"{node.module}.{one.name}")
                if not hasattr(home, one.name):
                    unknown.append(f"line {node.lineno}: {node.module}.{one.name}")
                elif inspect.ismodule(module := getattr(home, one.name)):
                    modules[one.asname or one.name] = module
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    # a name that is also assigned may mean something else
    known = modules.keys() - {name.id for name in names if not isinstance(name.ctx, ast.Load)}
    known -= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in known and not hasattr(modules[name], node.attr):
                unknown.append(f"line {node.lineno}: {name}.{node.attr}")
    return unknown


def test_unknown_names_are_found():
    text = "def f():\n    from qrlib import model as m\n    return m.{}\n"
    assert unknown_names(text.format("geqrf")) == []
    assert unknown_names(text.format("geqrg")) == ["line 3: m.geqrg"]
    assert unknown_names("from qrlib.model import geqrf, geqrg") == ["line 1: qrlib.model.geqrg"]


def test_modules_have_the_names_asked_of_them():
    """A name is changed in one place, and a reader of it forgotten in another."""
    sources = [name for name in tracked() if name.endswith(".py")]
    found = {name: unknown_names(read(name)) for name in sources}
    assert {name: unknown for name, unknown in found.items() if unknown} == {}
