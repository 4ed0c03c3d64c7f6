"""QR on GPUs, stage by stage: `geqrf`, what applies its result, and the certificate.

Names are imported when they are first used, so `import qrlib` needs NumPy and nothing else.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "QR": "qrlib.compact",
    "unpack_v": "qrlib.compact",
    "unpack_r": "qrlib.compact",
    "geqrf": "qrlib.api",
    "householder_product": "qrlib.api",
    "ormqr": "qrlib.api",
    "qr": "qrlib.api",
    "orthogonalize": "qrlib.api",
    "lstsq": "qrlib.least_squares",
    "foreach": "qrlib.foreach",
    "plan": "qrlib.replay",
    "certify": "qrlib.certificate",
    "Certificate": "qrlib.certificate",
    "STAGES": "qrlib.stages",
    "stage": "qrlib.stages",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(
            f"module 'qrlib' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    home = import_module(_HOME[name])
    # foreach is a module itself
    return home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)


def __dir__():
    return sorted({*globals(), *__all__})
