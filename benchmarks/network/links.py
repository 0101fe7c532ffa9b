"""Network namespaces whose links have a given bandwidth and latency: one namespace per process, joined by a bridge.

They need Linux, root, and the commands `ip` and `tc`; a latency also needs `iptables`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

HUB = "rb-hub"
INTERFACE = "rb0"  # the interface of each process
# This congestion control may be chosen in a namespace on every Linux kernel.
SETTINGS = "net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_slow_start_after_idle=0"


@contextmanager
def namespaces(count: int, gbit: float, milliseconds: float) -> Iterator[list[str]]:
    """The names of `count` namespaces. Each sends and receives at most `gbit` Gbit/s; packets arrive after a delay."""
    commands = ("ip", "tc", "sysctl", *["iptables"] * bool(milliseconds))
    missing = [name for name in commands if shutil.which(name) is None] + ["root"] * bool(os.geteuid())
    if missing:
        raise SystemExit(f"network namespaces need these, which are missing here: {', '.join(missing)}")
    names = [f"rb-{i}" for i in range(count)]
    with ExitStack() as stack:
        stack.callback(_delete, [*names, HUB])
        _ip(f"netns add {HUB}")
        _ip(f"-n {HUB} link add bridge type bridge")
        _ip(f"-n {HUB} link set bridge up")
        for i, name in enumerate(names):
            _add(i, name, gbit)
        if milliseconds:
            stack.enter_context(_delayed(names, milliseconds))
        yield names


def _add(i: int, name: str, gbit: float) -> None:
    _ip(f"netns add {name}")
    _run(f"ip netns exec {name} sysctl -qw {SETTINGS}")
    _ip(f"-n {name} link set lo up")
    _ip(f"link add {INTERFACE} netns {name} type veth peer name port{i} netns {HUB}")
    _ip(f"-n {HUB} link set port{i} master bridge up")
    _ip(f"-n {name} addr add 10.77.0.{i + 1}/24 dev {INTERFACE}")
    _ip(f"-n {name} link set {INTERFACE} up")
    for where, device in ((name, INTERFACE), (HUB, f"port{i}")):
        _run(f"tc -n {where} qdisc add dev {device} root handle 1: tbf rate {gbit}gbit burst 256kb latency 1s")


@contextmanager
def _delayed(names: list[str], milliseconds: float) -> Iterator[None]:
    """A context in which packets that arrive in the namespaces are delayed."""
    for name in names:
        _run(f"ip netns exec {name} iptables -A INPUT -i {INTERFACE} -j NFQUEUE --queue-num 0")
    command = [sys.executable, "-m", "benchmarks.network.delay", str(milliseconds), *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if not process.stdout or process.stdout.readline() != "ready\n":
                raise SystemExit("packets cannot be delayed here: use --milliseconds 0")
            yield
        finally:
            process.kill()


def _delete(names: list[str]) -> None:
    for name in names:
        with suppress(subprocess.CalledProcessError):
            _ip(f"netns del {name}")


def enter(name: str) -> None:
    """Move the calling thread into a namespace."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {name}")


def inside(name: str, command: list[str]) -> list[str]:
    """Return a command that runs `command` in a namespace."""
    return ["ip", "netns", "exec", name, *command]


def _ip(words: str) -> None:
    _run(f"ip {words}")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
