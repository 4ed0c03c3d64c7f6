"""A stage as one file, custom_kernel(data) -> (H, tau), that needs torch and triton and no qrlib.

The sources of the stage and of all that it imports stand in the file as they are, but for the name
of their package, and are imported from there: Triton finds the text of a kernel in them, and an
error its line. So there is no second copy of a stage to look after, and a result is the same bits.
"""

import ast
import hashlib
import re
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from qrlib import __version__
from qrlib.bench.results import ROOT
from qrlib.bench.results import _commit as commit_of
from qrlib.stages import ANYWHERE, POLICIES, STAGES

# what may be imported, beside the standard library
ALLOWED = ("torch", "triton")
# lines that bring in something else, and what stands in their place
INSTEAD = {
    "import numpy as np": "from types import SimpleNamespace\n\n"
    "# of tensors none is an array of NumPy's, whoever asks\n"
    "np = SimpleNamespace(ndarray=())",
    "from jaxtyping import Bool, Float, Int": "raise ModuleNotFoundError",
}
# around a source; none has these
QUOTES = 3 * "'"
FRAME = '''\
"""QR factorizations of a batch: custom_kernel(data) -> (H, tau), as torch.geqrf returns them.

{told}, in one file. It needs torch and triton.

{license}
"""

import importlib.abc
import importlib.util
import sys

VERSION = "{version}"

# module: its source
SOURCES = {{}}
{sources}

class Sources(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Imports what is in SOURCES."""

    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            package = any(other.startswith(name + ".") for other in SOURCES)
            return importlib.util.spec_from_loader(name, self, is_package=package)
        return None

    def is_package(self, name):
        return self.find_spec(name).submodule_search_locations is not None

    def get_filename(self, name):
        return f"{{__file__}}/{{name.replace('.', '/')}}.py"

    def get_source(self, name):
        return SOURCES[name]


sys.meta_path.insert(0, Sources())

from {module} import geqrf  # noqa: E402


def custom_kernel(data):
    """(H, tau) of data [B, n, n], float32; read."""
    H, tau = geqrf(data{options})
    return H, tau
'''


def bundle(stage, precision="fp32"):
    """The text of the file.

    Args:
        stage: one of STAGES for tensors. precision: "fp32" or "fast", which stages in POLICIES
            know.

    Raises:
        ValueError: another stage or precision, or one that needs what a file cannot have.
    """
    usable = [name for name in STAGES if name != ANYWHERE[0]]
    if stage not in usable:
        raise ValueError(f"stage must be one of {', '.join(usable)}; got {stage!r}")
    if precision not in ("fp32", *["fast"] * (stage in POLICIES)):
        raise ValueError(
            f"precision must be fp32, or fast for {' and '.join(POLICIES)}; got {precision!r} for "
            f"{stage}"
        )
    sources = modules(f"qrlib.stages.{stage}")
    _check(sources)
    # two such files may be in one process, and qrlib itself
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:8]
    root = f"qrlib_{stage.partition('_')[0]}_{digest}"
    commit, dirty = commit_of()
    at = f", commit {commit[:10]}{', changed since' if dirty else ''}" if commit else ""
    text = FRAME.format(
        told=f"qrlib {__version__}, stage {stage}, precision {precision}{at}",
        license=_license(),
        version=f"{__version__} {stage} {precision}",
        sources="".join(_entry(name, text, root) for name, text in sources.items()),
        module=f"{root}.stages.{stage}",
        options=f', policy="{precision}"' if stage in POLICIES else "",
    )
    return text


def modules(name):
    """{module: source} of a module of qrlib and of all that it imports; each after its own."""
    found = {"qrlib": "", "qrlib.stages": ""}

    def visit(name):
        if name in found or name in visiting:
            return
        visiting.add(name)
        text = _alone(Path(find_spec(name).origin).read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text)):
            for other in _imported(node):
                if other.partition(".")[0] == "qrlib":
                    visit(other)
        found[name] = text

    visiting = set()
    visit(name)
    return found


def _imported(node):
    """Names of the modules that an import statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    if node.module in ("qrlib", "qrlib.stages"):
        # in a file these are empty, but for their modules
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        if missing := [name for name in names if find_spec(name) is None]:
            raise ValueError(
                f"a file can have modules of qrlib only; got an import of {', '.join(missing)}"
            )
        return names
    return [node.module]


def _alone(text):
    """A source without what is to be replaced, INSTEAD."""
    lines = text.split("\n")
    for k, line in enumerate(lines):
        if other := INSTEAD.get(line.strip()):
            indent = line[: len(line) - len(line.lstrip())]
            lines[k] = indent + other.replace("\n", f"\n{indent}")
    return "\n".join(lines)


def _entry(name, text, root):
    """The lines that put a module into SOURCES."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if any(each.partition(".")[0] == "qrlib" for each in _imported(node)):
            for k in range(node.lineno - 1, node.end_lineno):
                lines[k] = re.sub(r"\bqrlib\b", root, lines[k])
    text = "\n".join(lines)
    if QUOTES in text:
        raise ValueError(f"{name} must do without {QUOTES}, which end a source in the file")
    named = name.replace("qrlib", root, 1)
    return f'\nSOURCES["{named}"] = r{QUOTES}\n{text}{QUOTES}[1:]\n'


def _check(sources):
    """Raises ValueError where modules import what a file cannot rely on."""
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            for other in _imported(node):
                top = other.partition(".")[0]
                if top not in (*ALLOWED, "qrlib") and top not in sys.stdlib_module_names:
                    raise ValueError(
                        f"a file may import {', '.join(ALLOWED)} and the standard library; {name} "
                        f"imports {other}; say in INSTEAD what is to stand for it"
                    )


def _license():
    """The text of the licence, of a checkout or of an installed package."""
    file = ROOT / "LICENSE"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    known = metadata.files("qrlib") or ()
    return next(each.read_text() for each in known if each.name == "LICENSE").strip()
