"""What a worker process of the GPU benchmarks makes calls of, in a module that imports no PyTorch: such processes start
quickly."""

import os
import time

import redblue as rb


class Made:
    """Calls that end well, with a refusal, with a crash, and never."""

    def right(self, x):
        return x + 1

    def refuse(self):
        raise rb.RedblueError("flash does not fit")

    def crash(self):
        os._exit(3)

    def hang(self):
        time.sleep(60)
