"""A lab that shows a widget builds at once: no answer goes back to it, as nobody turns it."""

from nbclient.output_widget import OutputWidget


def setup(app):
    # nbclient would send what the widget printed back to the kernel, beside its own wait on the
    # same socket; the wake-up can get lost then, and the cell lasts until its timeout
    OutputWidget.sync_state = lambda self: None
    return {"parallel_read_safe": True, "parallel_write_safe": True}
