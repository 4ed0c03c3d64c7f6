"""A second stream for launches that others need not wait for."""

from contextlib import contextmanager

import torch


class Branch:
    """Launches beside those of the current stream, where a CUDA graph is captured.

    Elsewhere they are in order: Python starts kernels too slowly for two to overlap.

    Args:
        wanted: False for launches in order, in a graph, too.
    """

    def __init__(self, wanted=True):
        self.stream, self._held = None, []
        if wanted and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self.stream = torch.cuda.Stream()
            # a stream belongs to the capture once it waits for one that does
            self.stream.wait_stream(torch.cuda.current_stream())

    @contextmanager
    def fork(self, *held):
        """What is launched in here waits for all that was launched before, and nobody for it.

        held: tensors made before that it reads; their memory is nobody else's until `join`.
        """
        if self.stream is None:
            yield
            return
        self._held += held
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self):
        """What is launched from now on waits for the branch."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            self._held.clear()
