"""`python -m qrlib.teach.labs`: the first code cell of every lab, with the address of _config.yml.

A lab is opened where nothing is installed, too: from a clone on a JupyterHub, or alone on Colab. So
its first cell brings what is missing and lets the doctor say what there is. It imports nothing of
the package itself, for a lab may have to turn on Triton's interpreter before.
"""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
# stands in the cell as long as _config.yml has no address
NOWHERE = "https://ADDRESS-OF-THIS-REPOSITORY"
ID = "install"

CELL = """\
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

# of _config.yml; python -m qrlib.teach.labs writes it here
ADDRESS = "git+https://ADDRESS-OF-THIS-REPOSITORY"
NEEDS = [
    "torch>=2.9",
    "triton>=3.6,<3.10; sys_platform == 'linux'",
    "ipywidgets>=8.1",
    "matplotlib>=3.9",
]


def there(name):
    # a mere folder of that name has no origin
    return getattr(find_spec(name), "origin", None) is not None


if not there("qrlib"):
    clone = Path("..").resolve()
    project = clone / "pyproject.toml"
    if project.is_file() and 'name = "qrlib"' in project.read_text("utf-8"):
        package = ["-e", str(clone)]
        # a Python that runs already does not see it otherwise
        sys.path.append(str(clone))
    elif "ADDRESS-OF-" not in ADDRESS:
        package = [ADDRESS]
    else:
        raise RuntimeError(
            "qrlib is not installed here, so it must come from a clone of its repository that this "
            "lab lies in, or from the address in ADDRESS, and there is neither; clone the "
            "repository and open the lab there, or write its address behind git+, as "
            "https://github.com/OWNER/NAME, and run this cell again"
        )
    # what is there stays, above all a torch that was built for the machine
    needs = [need for need in NEEDS if not there(need.split(">")[0])]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *package, *needs], check=True)

doctor = [sys.executable, "-m", "qrlib.doctor"]
found = subprocess.run(doctor, capture_output=True, text=True)
print(found.stdout or found.stderr)"""


def cell(address):
    """The source of the cell for a repository at an address, such as https://github.com/OWNER/NAME.

    address: "" where there is none.
    """
    return CELL.replace(NOWHERE, address or NOWHERE)


def address(config):
    """`repository: url` of the text of _config.yml.

    Raises:
        ValueError: it is neither empty nor an address that begins with https://.
    """
    # comes with what builds the book; nothing else here needs it
    import yaml

    url = yaml.safe_load(config)["repository"]["url"]
    if url and not re.fullmatch(r"https://[\w./-]+", str(url)):
        raise ValueError(
            "repository: url of _config.yml must be empty or an address such as "
            f"https://github.com/OWNER/NAME; got {url!r}"
        )
    return url


def with_cell(lab, source):
    """A lab, as json.loads gives it, with this source in its first code cell."""
    first = next(each for each in lab["cells"] if each["cell_type"] == "code")
    if first["id"] != ID:
        raise ValueError(
            f"the first code cell of a lab must have the id {ID!r}; got {first['id']!r}"
        )
    first["source"] = source.splitlines(keepends=True)
    return lab


def main():
    source = cell(address((ROOT / "_config.yml").read_text("utf-8")))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        lab = with_cell(json.loads(path.read_text("utf-8")), source)
        text = json.dumps(lab, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
