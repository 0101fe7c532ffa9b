"""Run the programs that meters need; an interrupt ends them, too."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def in_c_locale(env: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a program prints numbers with a decimal point, whatever the user's language."""
    return {**env, "LC_ALL": "C"}


def run(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command; return its exit status, standard output and standard error. An interrupt ends the command."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=dict(env)) as child:
        try:
            output, errors = child.communicate()
        except BaseException:
            child.kill()
            child.wait()  # on KeyboardInterrupt, Popen itself does not wait for the child to end
            raise
    return child.returncode, output, errors
