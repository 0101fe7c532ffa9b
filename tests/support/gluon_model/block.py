"""A block of the grid: its partitions, barriers, copies and products, in a random order."""

import random
import threading

from support.gluon_model.memory import Shared, Tile, inside


class ModelError(Exception):
    """The barriers do not order the partitions."""


class Barrier:
    def __init__(self):
        self.count = self.pending = self.bytes = self.phase = 0

    def settle(self):
        if self.pending < 0:
            raise ModelError("a barrier got more arrivals than it counts")
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count


class Barriers:
    def __init__(self, count):
        self.all = [Barrier() for _ in range(count)]

    def index(self, i):
        assert 0 <= i < len(self.all)
        return self.all[i]


class Product:
    """A product in flight, or its result once it was waited for."""

    def __init__(self, a, b, acc, use_acc):
        self.a, self.b, self.acc, self.use_acc = a, b, acc, use_acc

    def finish(self):
        a = self.a.data if isinstance(self.a, Shared) else self.a
        product = (a.float() @ self.b.data.float()).as_subclass(Tile)
        return self.acc + product if self.use_acc else product


class Block:
    """One block of the grid: its partitions, copies in flight, and products in flight of each partition."""

    def __init__(self, program, programs, seed):
        self.program, self.programs, self.random = program, programs, random.Random(seed)
        self.copies, self.waiting, self.products = [], {}, {}
        self.turn, self.error, self.running = threading.Condition(), None, None

    def run(self, partitions):
        threads = [threading.Thread(target=self._run, args=(i, *partition)) for i, partition in enumerate(partitions)]
        self.waiting = dict.fromkeys(range(len(threads)), _always)
        self.products = {i: [] for i in range(len(threads))}
        self.running = 0
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error:
            raise self.error

    def _run(self, i, function, arguments):
        try:
            with self.turn:
                self.turn.wait_for(lambda: self.running == i or self.error)
            if not self.error:
                function(*arguments)
        except BaseException as error:
            self.error = self.error or error
        with self.turn:
            del self.waiting[i]
            self._choose()

    def step(self, ready=lambda: True):
        """Let other partitions run until this partition is drawn again and `ready` holds."""
        with self.turn:
            me = self.running
            self.waiting[me] = ready
            self._choose()
            self.turn.wait_for(lambda: self.running == me or self.error)
        if self.error:
            raise self.error

    def _choose(self):
        while not self.error and self.waiting:
            able = [i for i, ready in self.waiting.items() if ready()]
            drawn = self.random.randrange(len(able) + len(self.copies)) if able or self.copies else None
            if drawn is None:
                self.error = ModelError("deadlock: every partition waits for another")
            elif drawn < len(able):
                self.running = able[drawn]
                break
            else:
                try:
                    self._arrive(*self.copies.pop(drawn - len(able)))
                except ModelError as error:
                    self.error = error
        self.turn.notify_all()

    def _arrive(self, source, to, barrier):
        self._check_unread(to)
        to.data.copy_(source)
        barrier.bytes -= source.numel() * source.element_size()
        barrier.settle()

    def _check_unread(self, to):
        for products in self.products.values():
            for product in products:
                if any(isinstance(x, Shared) and inside(x, to) for x in (product.a, product.b)):
                    raise ModelError("a copy overwrites a tile that a product in flight reads")

    # The operations of Gluon

    def expect(self, barrier, count):
        self.step()
        barrier.bytes += count
        barrier.pending -= 1
        barrier.settle()

    def arrive(self, barrier, count=1):
        self.step()
        barrier.pending -= count
        barrier.settle()

    def wait(self, barrier, parity):
        assert parity in (0, 1)
        self.step(lambda: barrier.phase & 1 != parity)

    def copy(self, descriptor, corner, barrier, to):
        self.step()
        self._check_unread(to)
        self.copies.append((descriptor.read(corner), to, barrier))

    def mma(self, a, b, acc, use_acc=True, is_async=False):
        assert is_async
        self.step()
        product = Product(a, b, acc, use_acc)
        self.products[self.running].append(product)
        return product

    def mma_wait(self, pending, deps):
        self.step()
        mine = self.products[self.running]
        done = mine[: len(mine) - pending]
        del mine[: len(mine) - pending]
        if not all(product in done for product in deps):
            raise ModelError("a product is used that was not waited for")
        results = tuple(product.finish() for product in deps)
        return results if len(results) > 1 else results[0]

    def copy_back(self, descriptor, corner, source):
        self.step()
        descriptor.write(corner, source.data)


def _always():
    return True
