"""Functions that worker processes of the GPU benchmarks call, without PyTorch, so that processes start quickly."""

import os
import time

import redblue as rb


class Made:
    """Calls that succeed, are refused, crash, or never end."""

    def right(self, x):
        return x + 1

    def refuse(self):
        raise rb.RedblueError("flash does not fit")

    def crash(self):
        os._exit(3)

    def hang(self):
        time.sleep(60)
