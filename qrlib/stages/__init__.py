"""The ladder: what a stage imports is what stays the same; what it defines is what is new.

A stage is a module with `geqrf(A, ...) -> QR` for `A` of shape [B, m, n]. A name in STAGES is all
it takes to be tested, benchmarked, and required to have a chapter and a lab.
"""

from importlib import import_module

ANYWHERE = ("s01_mirror", "s02_unblocked", "s03_blocked", "s04_recursive")
# float32 on an NVIDIA GPU, or through Triton's interpreter
TRITON = ("s05_panel", "s06_update", "s07_whole", "s08_cholesky", "s09_mixed", "s10_blackwell")
STAGES = ANYWHERE + TRITON
# whose geqrf takes policy="fp32" or "fast"
POLICIES = ("s09_mixed", "s10_blackwell")


def stage(name):
    """The module of a stage, imported when it is asked for.

    Args:
        name: one of STAGES.

    Raises:
        ValueError: no such stage.
        RuntimeError: its backend is not installed; the message says how to install it.
    """
    if name not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}; got {name!r}")
    try:
        return import_module(f"qrlib.stages.{name}")
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("qrlib"):
            raise
        raise RuntimeError(
            f"stage {name} needs {missing.name}, which is not installed here; "
            f"run `pip install {missing.name}` (README.md says how to get the small CPU build "
            f"of torch), or use stage 's01_mirror', which needs NumPy only"
        ) from missing
