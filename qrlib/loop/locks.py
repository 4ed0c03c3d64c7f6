"""fcntl, with which files are locked, or an error that says where it is."""

try:
    import fcntl
except ModuleNotFoundError as missing:
    raise ImportError(
        "qrlib.loop needs a system that locks files with fcntl, Linux or macOS; got one that does "
        "not: on Windows run it in WSL2 (wsl --install, then the commands for Linux)"
    ) from missing

__all__ = ("fcntl",)
