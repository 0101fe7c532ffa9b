"""Network namespaces whose links have a given bandwidth and latency: one namespace per process, joined by a bridge.

They need Linux, root, and the commands `ip` and `tc`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HUB = "rb-hub"
INTERFACE = "rb0"  # of each process


@contextmanager
def namespaces(count: int, gbit: float, milliseconds: float) -> Iterator[list[str]]:
    """The names of `count` namespaces. Each sends and receives at most `gbit` Gbit/s; packets arrive after a delay."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None] + ["root"] * bool(os.geteuid())
    if missing:
        raise SystemExit(
            f"network namespaces need the commands ip and tc, and root; missing here: {', '.join(missing)}"
        )
    names = [f"rb-{i}" for i in range(count)]
    try:
        _ip("netns add", HUB)
        _ip(f"-n {HUB} link add bridge type bridge")
        _ip(f"-n {HUB} link set bridge up")
        for i, name in enumerate(names):
            _ip("netns add", name)
            _ip(f"-n {name} link set lo up")
            _ip(f"link add {INTERFACE} netns {name} type veth peer name port{i} netns {HUB}")
            _ip(f"-n {HUB} link set port{i} master bridge up")
            _ip(f"-n {name} addr add 10.77.0.{i + 1}/24 dev {INTERFACE}")
            _ip(f"-n {name} link set {INTERFACE} up")
            for where, device in ((name, INTERFACE), (HUB, f"port{i}")):
                _run(f"tc -n {where} qdisc add dev {device} root handle 1: tbf rate {gbit}gbit burst 256kb latency 1s")
            if milliseconds:
                _delay(name, milliseconds)
        yield names
    finally:
        for name in (*names, HUB):
            with suppress(subprocess.CalledProcessError):
                _ip("netns del", name)


def _delay(name: str, milliseconds: float) -> None:
    try:
        _run(f"tc -n {name} qdisc add dev {INTERFACE} parent 1: netem limit 100000 delay {milliseconds}ms")
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"this kernel cannot delay packets, so use --milliseconds 0 ({error.stderr.strip()} sch_netem)"
        ) from error


def inside(name: str, command: list[str]) -> list[str]:
    """The command that runs a command in a namespace."""
    return ["ip", "netns", "exec", name, *command]


def _ip(*words: str) -> None:
    _run(f"ip {' '.join(words)}")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
