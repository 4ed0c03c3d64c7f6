"""Pages run several at once, ahead of the one that Sphinx reads, which takes what its run has left.

A page that looks at the clock runs when no other does, after all of them.
"""

import json
import os
import re
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from jupyter_client.connect import LocalPortCache
from myst_nb.core.execute import direct
from myst_nb.core.read import create_nb_reader

CORES = os.cpu_count() or 1
# a kernel wants half a gigabyte
AT_ONCE = min(CORES, 4)
THREADS = "OMP_NUM_THREADS"
# what keeps time, or stops what takes too long
CLOCK = re.compile(r"perf_counter|qrlib\.(bench\.(clock|measure)|loop\.runner|teach\.contract)\b")
# a line that a kernel sends in two parts is one all the same; MyST-NB would put them on two
run_now = partial(direct.single_nb_execution, coalesce_streams=True)


def identity(notebook, how):
    """What a run of `notebook` depends on: its cells, and `how` it is run."""
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    return json.dumps([cells, notebook.metadata, how], sort_keys=True)


def read(env, docname):
    """The notebook of a page, or None where it has no cells to run."""
    path = env.doc2path(docname)
    text = Path(path).read_text("utf-8")
    reader = create_nb_reader(path, env.myst_config, env.mystnb_config, text)
    return reader and reader.read(text)


def work(queue):
    """Run one after the other what is in the queue, until it is empty."""
    while True:
        try:
            notebook, how, result = queue.get_nowait()
        except Empty:
            return
        try:
            result.set_result(run_now(notebook, **how))
        # whoever takes the result has to hear of it
        except BaseException as error:
            result.set_exception(error)


def begin(app, env, docnames):
    """Begin to run the pages that are about to be read, and put the pages with a clock last."""
    direct.single_nb_execution = run_now
    if AT_ONCE < 2 or env.mystnb_config.execution_mode != "force":
        return
    notebooks = {name: notebook for name in docnames if (notebook := read(env, name))}
    clocked = {
        name
        for name, notebook in notebooks.items()
        if any(cell.cell_type == "code" and CLOCK.search(cell.source) for cell in notebook.cells)
    }
    docnames.sort(key=lambda name: name in clocked)
    runs, queue = {}, SimpleQueue()
    for name in docnames:
        if name in clocked or name not in notebooks:
            continue
        notebook, config = notebooks[name], env.mystnb_config
        how = {
            "cwd": str(Path(env.doc2path(name)).parent),
            "allow_errors": config.execution_allow_errors,
            "timeout": config.execution_timeout,
            "meta_override": True,
        }
        result = runs[identity(notebook, how)] = Future()
        queue.put((notebook, how, result))

    # several with a thread for each core would only wait for one another
    shared = THREADS not in os.environ
    os.environ.setdefault(THREADS, str(CORES // AT_ONCE))

    def take(notebook, **how):
        result = runs.pop(identity(notebook, how), None)
        if not result:
            if shared:
                os.environ.pop(THREADS, None)
            return run_now(notebook, **how)
        notebook.update(result.result().nb)
        return result.result()

    direct.single_nb_execution = take
    # there is one list of the ports that are given away, as long as it is not begun by two at once
    LocalPortCache.instance()
    for _ in range(AT_ONCE):
        # a build that is broken off waits for none of them
        Thread(target=work, args=[queue], daemon=True).start()


def setup(app):
    app.connect("env-before-read-docs", begin)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
