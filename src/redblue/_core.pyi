"""The compiled core: instruction sets, and what this machine measurably does with them."""

class Isa:
    """One instruction set that redblue has code for."""

    @property
    def name(self) -> str: ...
    @property
    def supported(self) -> bool:
        """Whether this CPU and its operating system can run it."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector register."""

    @property
    def vector_registers(self) -> int:
        """Vector registers that a program may name."""

    @property
    def has_bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 pairs into fp32 sums."""

def list_isas() -> list[Isa]:
    """Every instruction set of this build, best first; the last one, "portable", runs anywhere."""

def choose_isa(isa: str = "") -> Isa:
    """The instruction set of that name; "" takes the one that REDBLUE_ISA names, else the best that this CPU can run.

    Raises ValueError, listing the names, for one that is unknown or that this CPU lacks.
    """

def multiply_add(a: float, b: float, c: float, dtype: str = "float32", isa: str = "") -> float:
    """a * b + c as the chains of `multiply_add_rate` compute it (bfloat16: a and b are rounded to it, c is fp32)."""

def multiply_add_rate(dtype: str = "float32", threads: int = 1, seconds: float = 0.05, isa: str = "") -> float:
    """Floating-point operations per second of independent multiply-adds (two operations each).

    On `threads` threads at once, the best of repetitions that take about `seconds` together.
    dtype: "float32", or "bfloat16" (products; sums in fp32).
    """

def read_rate(bytes_per_thread: int, threads: int = 1, seconds: float = 0.05, isa: str = "") -> float:
    """Bytes per second that `threads` threads read at once, all together, each over and over from a buffer of its own.

    The best of repetitions that take about `seconds` together; bytes_per_thread is rounded down to 1024.
    """
