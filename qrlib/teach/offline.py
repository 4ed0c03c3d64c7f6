"""`python -m qrlib.teach.offline SITE FILE.zip`: the built book as one file to carry away.

Unpacked anywhere it opens by a click on index.html: from the disk, without a server or a network.
"""

import sys
import zipfile
from pathlib import Path

# of no use to a reader: what the builder keeps for itself, and reports of failed cells
LEFT_OUT = (".buildinfo", ".doctrees", "objects.inv", "reports")
# of every entry: the same site gives the same file
WHEN = (1980, 1, 1, 0, 0, 0)


def pack(site, file):
    """Write the pages of `site` into the zip `file`, in a folder of the file's name.

    Raises:
        ValueError: there is no built book in `site`.
    """
    site, file = Path(site), Path(file)
    if not (site / "index.html").is_file():
        raise ValueError(f"{site} must be the built book; it has no index.html: run `make book`")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(site.rglob("*")):
            inside = path.relative_to(site)
            if path.is_file() and inside.parts[0] not in LEFT_OUT:
                entry = zipfile.ZipInfo(f"{file.stem}/{inside.as_posix()}", WHEN)
                entry.external_attr = 0o644 << 16
                packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)


if __name__ == "__main__":
    pack(*sys.argv[1:])
    print(f"Carry it away: {sys.argv[2]}, {Path(sys.argv[2]).stat().st_size / 1e6:.1f} MB")
