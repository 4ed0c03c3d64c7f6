"""The benchmark: gate first, then time, then a table and JSON. `python -m qrlib.bench --help`

    cases      which matrices; for each run a variant of them that nobody has seen before
    clock      one call timed by two clocks, on a cold cache
    judge      what was returned: certified, and looked at for what a certificate cannot see
    measure    the protocol: stages interleaved, all outputs held, medians
    results    rows with their provenance, as a table and as JSON; `load` needs no torch
    chart      rows as bars, in a terminal, as SVG or PNG
    sweep      many sizes, and what must hold of the time against the size
    q          Q formed, beside torch.linalg.qr, and what must hold of that
    gpus       a batch sharded over several GPUs, beside one
    verbs      what is timed besides stages, and what is asked of it
    profile    where the time of a GPU goes, kernel by kernel
    roles      what each kernel is for, and what it has to do
    starts     every kernel start looked at
    ahead      kernels compiled by many processes before they are timed

A time is only given for a result that passed. Otherwise the row says what failed.
"""

from qrlib.bench.results import Results, load

__all__ = ["Results", "load"]
