"""Delay the packets that network namespaces receive, for kernels without netem.

Usage: python -m benchmarks.network.delay MILLISECONDS NAMESPACE...

iptables puts every incoming packet into a queue (NFQUEUE). This program is notified of each packet, without its
payload, and accepts the packet after the delay. Packets that arrive within one tick are handled together, so delays
vary by a tick. The program prints "ready" once all queues are bound, and runs until it is stopped.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress

from benchmarks.network.links import enter

TICK_SECONDS = 0.00025
# On average, half a tick passes before a packet is noticed, and half a tick before it is released.
DELAY_OF_TICKS = 0.0004
NETLINK_NETFILTER, NFNL_SUBSYS_QUEUE = 12, 3
SOL_NETLINK, NETLINK_NO_ENOBUFS, SO_RCVBUFFORCE = 270, 5, 33
PACKET, CONFIG, VERDICT_BATCH = 0, 2, 3  # messages
CFG_CMD, CFG_PARAMS, CFG_QUEUE_MAXLEN, CFG_MASK, CFG_FLAGS = range(1, 6)  # attributes of CONFIG
BIND, COPY_META, FLAG_GSO, NF_ACCEPT, VERDICT_HEADER = 1, 1, 4, 1, 2
HEADERS = struct.Struct("=IHHIIBBH")  # the headers of netlink and of nfnetlink
PACKET_HEADER_AT = HEADERS.size + 4  # the first attribute of PACKET is its header, which begins with the number


class Queue:
    """The packets that wait in one namespace: (time of release, number of the last packet)."""

    def __init__(self, namespace: str) -> None:
        enter(namespace)
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        self.socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
        self.waiting: deque[tuple[float, int]] = deque()
        self._send(CONFIG, (CFG_CMD, struct.pack(">BBH", BIND, 0, socket.AF_INET)))
        self._send(CONFIG, (CFG_PARAMS, struct.pack(">IB", 0, COPY_META)))
        self._send(CONFIG, (CFG_QUEUE_MAXLEN, struct.pack(">I", 1 << 17)))
        self._send(CONFIG, (CFG_MASK, struct.pack(">I", FLAG_GSO)), (CFG_FLAGS, struct.pack(">I", FLAG_GSO)))
        self.socket.setblocking(False)

    def _send(self, message: int, *attributes: tuple[int, bytes]) -> None:
        body = b"".join(struct.pack("=HH", 4 + len(x), kind) + x + bytes(-len(x) % 4) for kind, x in attributes)
        kind = NFNL_SUBSYS_QUEUE << 8 | message
        self.socket.send(HEADERS.pack(HEADERS.size + len(body), kind, 1, 0, 0, socket.AF_INET, 0, 0) + body)

    def update(self, seconds: float) -> None:
        """Receive notices of new packets, and release the packets that have waited for `seconds`."""
        last, now = None, time.monotonic()
        with suppress(BlockingIOError):
            while True:
                data = self.socket.recv(4096)
                if struct.unpack_from("=H", data, 4)[0] == NFNL_SUBSYS_QUEUE << 8 | PACKET:
                    last = struct.unpack_from(">I", data, PACKET_HEADER_AT)[0]
        if last is not None:
            self.waiting.append((now + seconds - DELAY_OF_TICKS, last))
        done = None
        while self.waiting and self.waiting[0][0] <= now:
            done = self.waiting.popleft()[1]
        if done is not None:
            self._send(VERDICT_BATCH, (VERDICT_HEADER, struct.pack(">II", NF_ACCEPT, done)))


def main(milliseconds: str, *namespaces: str) -> None:
    queues = [Queue(name) for name in namespaces]
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    print("ready", flush=True)
    while True:
        for queue in queues:
            queue.update(float(milliseconds) / 1000)
        time.sleep(TICK_SECONDS)


if __name__ == "__main__":
    if len(sys.argv) < 3 or "--help" in sys.argv:
        sys.exit(__doc__)
    main(*sys.argv[1:])
