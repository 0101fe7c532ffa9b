"""Programs that meters run: none outlives an interrupt."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def run(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    """Its status, standard output and standard error."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=dict(env)) as child:
        try:
            said, errors = child.communicate()
        except BaseException:
            child.kill()
            child.wait()  # Popen itself would leave after an interrupt
            raise
    return child.returncode, said, errors
