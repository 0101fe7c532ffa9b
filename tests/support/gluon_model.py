"""A model of the Gluon operations that the Hopper kernel uses: it runs the kernel's own source on the CPU.

Each partition of the warps is a thread; only one runs at a time. Whenever a partition reaches a barrier, a copy or a
product, the next partition to run is drawn at random. Copies by TMA arrive at random times. A product in flight reads
its operands when the kernel waits for it. The model raises ModelError if all partitions wait for each other, if a copy
overwrites a tile that a product in flight reads, or if a barrier gets more arrivals than it expects. Shared memory
starts as NaN, so that tiles that are read too early show in the results.
"""

import ast
import itertools
import math
import random
import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

# Bands of the tests: query i attends keys i + first .. i + end - 1; None: without limit
BANDS = [
    (None, None),
    (None, 1),
    (None, 71),
    (None, -20),
    (-40, None),
    (30, None),
    (-50, 11),
    (-3, -1),
    (5, 9),
    (250, 260),
]


class ModelError(Exception):
    """The barriers do not order the partitions."""


class Tile(torch.Tensor):
    """A tensor in registers."""

    @property
    def type(self):
        return SimpleNamespace(layout=None)


class Int(int):
    """An integer of the kernel, which has `to`."""

    def to(self, dtype):
        return self

    def __add__(self, x):
        return _whole(int.__add__(self, x))

    def __sub__(self, x):
        return _whole(int.__sub__(self, x))

    def __mul__(self, x):
        return _whole(int.__mul__(self, x))

    def __floordiv__(self, x):
        assert int(self) >= 0, "integers are divided towards 0 in kernels"
        return _whole(int.__floordiv__(self, x))

    def __mod__(self, x):
        assert int(self) >= 0, "remainders are negative in kernels"
        return _whole(int.__mod__(self, x))

    __radd__, __rmul__ = __add__, __mul__


def _whole(x):
    return x if x is NotImplemented else Int(x)


class Pointer:
    def __init__(self, base, offset=0):
        self.base, self.offset = base, offset  # the base is one-dimensional
        self.dtype = SimpleNamespace(element_ty=base.dtype)

    def __add__(self, offset):
        return Pointer(self.base, self.offset + offset)

    def __getitem__(self, key):
        return Pointer(self.base, self.offset[key])


class Shared:
    """A tensor in shared memory, or a view of it."""

    def __init__(self, data):
        self.data = data
        self.shape, self.dtype = list(data.shape), data.dtype

    def index(self, i):
        assert 0 <= i < self.shape[0]
        return Shared(self.data[i])

    def reshape(self, shape):
        return Shared(self.data.view(shape))

    def permute(self, order):
        return Shared(self.data.permute(order))

    def slice(self, start, length):
        return Shared(self.data[start : start + length])

    def store(self, value):
        self.data.copy_(value)

    def load(self, layout):
        return self.data.clone()

    @property
    def key(self):
        return self.data.data_ptr()


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
        threads = [threading.Thread(target=self._run, args=(i, *each)) for i, each in enumerate(partitions)]
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
                if any(isinstance(x, Shared) and _inside(x, to) for x in (product.a, product.b)):
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

    def copy(self, descriptor, at, barrier, to):
        self.step()
        self._check_unread(to)
        self.copies.append((descriptor.read(at), to, barrier))

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

    def copy_back(self, descriptor, at, source):
        self.step()
        descriptor.write(at, source.data)


def _always():
    return True


def _inside(x, y):
    size = y.data.numel() * y.data.element_size()
    return y.key <= x.key < y.key + size


class Map:
    """A TMA map: it reads a box of a tensor, with zeros outside."""

    def __init__(self, descriptor):
        base = torch.as_strided(descriptor.base, descriptor.shape, descriptor.strides)
        self.base, self.block_shape, self.layout, self.dtype = base, list(descriptor.block_shape), None, base.dtype
        self.block_type = SimpleNamespace(nbytes=torch.Size(self.block_shape).numel() * base.element_size())

    def read(self, at):
        box = torch.zeros(self.block_shape, dtype=self.dtype)
        there, inside = self._overlap(at)
        box[there] = self.base[inside]
        return box

    def write(self, at, box):
        there, inside = self._overlap(at)
        self.base[inside] = box[there]

    def _overlap(self, at):
        """The part of a box that lies in the tensor, as indices of the box and of the tensor."""
        spans = [
            (max(0, i), max(0, i, min(i + edge, size)))
            for i, edge, size in zip(at, self.block_shape, self.base.shape, strict=True)
        ]
        there = tuple(slice(low - i, high - i) for (low, high), i in zip(spans, at, strict=True))
        return there, tuple(slice(*span) for span in spans)


def _allocate(dtype, shape, layout):
    if dtype == torch.int64:
        return Barrier() if len(shape) == 1 else Barriers(shape[0])
    return Shared(torch.full(shape, torch.nan if dtype.is_floating_point else -1, dtype=dtype))


def _store(pointer, value, mask):
    mask = mask.expand(value.shape)
    places = pointer.offset.expand(value.shape)[mask]
    assert places.numel() == 0 or (int(places.min()) >= 0 and int(places.max()) < pointer.base.numel())
    pointer.base[places] = value[mask].to(pointer.base.dtype)


def _atomic_add(pointer, x, sem=None):
    if isinstance(x, torch.Tensor):
        pointer.base.index_add_(0, pointer.offset, x)
        return None
    before = Int(pointer.base[pointer.offset])
    pointer.base[pointer.offset] += x
    return before


def _where(condition, x, y):
    return torch.where(condition, x, y) if isinstance(condition, torch.Tensor) else (x if condition else y)


def _init(barrier, count):
    barrier.count = barrier.pending = count


def _either(of_tensors, of_numbers):
    def function(x, y):
        if not isinstance(x, torch.Tensor) and not isinstance(y, torch.Tensor):
            return Int(of_numbers(x, y))
        return of_tensors(torch.as_tensor(x), torch.as_tensor(y))

    return function


def _namespace(block):
    gl = SimpleNamespace(
        constexpr=lambda x: x,
        int64=torch.int64,
        float32=torch.float32,
        atomic_add=_atomic_add,
        BlockedLayout=lambda *x: None,
        SwizzledSharedLayout=lambda *x: None,
        program_id=lambda axis: Int(block.program[axis]),
        num_programs=lambda axis: Int(block.programs[axis]),
        static_range=range,
        maximum=_either(torch.fmax, max),
        minimum=_either(torch.fmin, min),
        max=lambda x, axis: torch.where(x.isnan(), -torch.inf, x).amax(axis),
        sum=lambda x, axis: x.sum(axis),
        exp2=torch.exp2,
        log=torch.log,
        where=_where,
        cdiv=lambda x, y: Int(-(-x // y)),
        reshape=lambda x, shape: x.reshape(shape),
        permute=lambda x, order: x.permute(order),
        thread_barrier=lambda: None,  # a partition is one thread
        NVMMASharedLayout=SimpleNamespace(get_default_for=lambda *x: None),
        arange=lambda start, end, layout: torch.arange(start, end).as_subclass(Tile),
        zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype).as_subclass(Tile),
        full=lambda shape, x, dtype, layout: torch.full(shape, x, dtype=dtype).as_subclass(Tile),
        convert_layout=lambda x, layout: x,
        multiple_of=lambda x, count: x,
        inline_asm_elementwise=lambda text, constraints, arguments, **more: arguments[0],
        store=_store,
        allocate_shared_memory=_allocate,
        warp_specialize=lambda partitions, warps, registers: block.run(partitions),
        SliceLayout=lambda *x: None,
        NVMMADistributedLayout=lambda *x: None,
        DotOperandLayout=lambda *x: None,
    )
    return {
        "gl": gl,
        "Any": Any,
        "NamedTuple": NamedTuple,
        "range": lambda *x: map(Int, range(*x)),
        "fence_async_shared": lambda: None,
        "mbarrier": SimpleNamespace(
            MBarrierLayout=lambda: None, init=_init, expect=block.expect, arrive=block.arrive, wait=block.wait
        ),
        "tma": SimpleNamespace(
            async_copy_global_to_shared=block.copy,
            async_copy_shared_to_global=block.copy_back,
            store_wait=lambda pending: None,
        ),
        "warpgroup_mma": block.mma,
        "warpgroup_mma_wait": block.mma_wait,
    }


def run_kernel(source, name, grid, arguments, seed=0):
    """Run kernel `name` of the source on a grid: a number of blocks, or one for each axis.

    arguments: tensors, TMA descriptors and numbers, by their names.
    """
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    tree.body.insert(0, ast.fix_missing_locations(future))
    code = compile(tree, name, "exec")
    grid = grid if isinstance(grid, tuple) else (grid,)
    # One block after another; if blocks share work dynamically, later blocks find that all work has begun
    for number, program in enumerate(itertools.product(*map(range, grid))):
        block = Block(program, grid, seed * math.prod(grid) + number)
        namespace = _namespace(block)
        exec(code, namespace)
        namespace[name](**{parameter: _argument(x) for parameter, x in arguments.items()})


def _argument(x):
    if hasattr(x, "block_shape"):
        return Map(x)
    if isinstance(x, torch.Tensor):
        return Pointer(torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,)))
    return Int(x) if isinstance(x, int) and not isinstance(x, bool) else x
