"""README.md shows the package as it is."""

import re

import qrlib
from qrlib.teach import readme


def test_table_and_pictures_are_up_to_date():
    text = readme.README.read_text(encoding="utf-8")
    assert text == readme.with_table(text), "run python -m qrlib.teach.readme"
    for file, figure in readme.pictures().items():
        assert f"](book/_static/{file.name})" in text
        assert file.read_text(encoding="utf-8") == figure.svg, "run python -m qrlib.teach.readme"


def test_table_names_every_stage():
    assert all(f"`{name}`" in readme.table() for name in qrlib.STAGES)


def test_python_in_the_readme_runs(capsys):
    blocks = re.findall(
        r"```python\n(.*?)```", readme.README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert blocks
    for block in blocks:
        exec(block, {})
    assert "passed" in capsys.readouterr().out
