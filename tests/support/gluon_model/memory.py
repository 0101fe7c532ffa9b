"""Values in registers, tensors in shared and global memory, and TMA maps."""

from types import SimpleNamespace

import torch


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


def inside(x, y):
    size = y.data.numel() * y.data.element_size()
    return y.key <= x.key < y.key + size


class Map:
    """A TMA map: it reads a box of a tensor, with zeros outside."""

    def __init__(self, descriptor):
        base = torch.as_strided(descriptor.base, descriptor.shape, descriptor.strides)
        self.base, self.block_shape, self.layout, self.dtype = base, list(descriptor.block_shape), None, base.dtype
        self.block_type = SimpleNamespace(nbytes=torch.Size(self.block_shape).numel() * base.element_size())

    def read(self, corner):
        box = torch.zeros(self.block_shape, dtype=self.dtype)
        in_box, inside = self._overlap(corner)
        box[in_box] = self.base[inside]
        return box

    def write(self, corner, box):
        in_box, inside = self._overlap(corner)
        self.base[inside] = box[in_box]

    def _overlap(self, corner):
        """The part of a box that lies in the tensor, as indices of the box and of the tensor."""
        spans = [
            (max(0, i), max(0, i, min(i + edge, size)))
            for i, edge, size in zip(corner, self.block_shape, self.base.shape, strict=True)
        ]
        in_box = tuple(slice(low - i, high - i) for (low, high), i in zip(spans, corner, strict=True))
        return in_box, tuple(slice(*span) for span in spans)
