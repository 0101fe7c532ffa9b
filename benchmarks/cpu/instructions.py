"""Count the instructions of the kernels' inner loops in the disassembly, for CPUs on which nothing can be timed.

Example: python -m benchmarks.cpu.instructions build/arm/core --objdump aarch64-linux-gnu-objdump

The inner loop of a product (cpp/attention/tile.h) computes a full tile of sums: rows x vectors multiply-adds for one
unit of A and B each. It must also load the vectors of B (Arm loads two per instruction) and a unit of A per row. The
column `least` counts these instructions. Instructions that access the stack are sums that did not fit in registers.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.options import parser_of

ROWS = 6  # kMR
# For each format: its name in mangled functions, and its multiply-add instructions on Arm and x86.
FORMATS = {
    "Float32": r"fmla\s.*\.4s|vf(n?)madd\w*ps",
    "Float64": r"fmla\s.*\.2d|vf(n?)madd\w*pd",
    "Bfloat16Pairs": r"bfdot|vdpbf16ps",
}
BRANCH = re.compile(r"(?:b\.?\w*|cbn?z|tbn?z|j\w+)\s+(?:.*\s)?(?:0x)?([0-9a-f]+) <")
STACK = re.compile(r"\[sp\b|\(%rsp\)")


@dataclass(frozen=True)
class Loop:
    """The inner loop of products of one instruction set and format: numbers of instructions."""

    instruction_set: str
    format: str
    multiply_adds: int
    instructions: int
    stack: int
    least: int

    @property
    def per_multiply_add(self) -> float:
        return self.instructions / self.multiply_adds


def functions(path: Path, objdump: str) -> dict[str, list[tuple[int, str]]]:
    """Disassemble an object file: mangled name -> (address, text) of its instructions."""
    run = subprocess.run([objdump, "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True)
    by_name: dict[str, list[tuple[int, str]]] = {}
    code: list[tuple[int, str]] = []
    for line in run.stdout.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            code = by_name.setdefault(head[1], [])
        elif instruction := re.match(r"\s+([0-9a-f]+):\t(.*)", line):
            code.append((int(instruction[1], 16), instruction[2]))
    return by_name


def innermost_loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """Return the instructions of each innermost loop, from the target of a backward branch to the branch."""
    places = {address: i for i, (address, _) in enumerate(code)}
    spans = []
    for i, (address, text) in enumerate(code):
        branch = BRANCH.match(text)
        if branch and int(branch[1], 16) <= address and int(branch[1], 16) in places:
            spans.append((places[int(branch[1], 16)], i))
    inner = [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    return [[text for _, text in code[first : last + 1]] for first, last in inner]


def loop_of(name: str, code: list[tuple[int, str]], arm: bool) -> Loop | None:
    """Return the full tile's loop if this function computes products of the widest tiles, else None."""
    known = re.search(rf"7redblue\d+([a-z0-9_]+?)6columnINS0_\d+({'|'.join(FORMATS)})ELi(\d)E", name)
    if not known:
        return None
    vectors, pattern = int(known[3]), re.compile(FORMATS[known[2]])
    full = [loop for loop in innermost_loops(code) if sum(bool(pattern.match(text)) for text in loop) == ROWS * vectors]
    if not full:
        return None
    shortest = min(full, key=len)
    loads = (vectors + 1) // 2 if arm else vectors
    stack = sum(bool(STACK.search(text)) for text in shortest)
    return Loop(known[1], known[2], ROWS * vectors, len(shortest), stack, ROWS * vectors + ROWS + loads)


def loops(folder: Path, objdump: str) -> list[Loop]:
    """Return the loops of every instruction set in a build folder, of the widest tiles of each format."""
    arm, best = "aarch64" in objdump, dict[tuple[str, str], Loop]()
    for path in sorted(folder.rglob("cpp/vector/sets/*.o")):
        for name, code in functions(path, objdump).items():
            if loop := loop_of(name, code, arm):
                key = (loop.instruction_set, loop.format)
                best[key] = max(best.get(key, loop), loop, key=lambda x: (x.multiply_adds, -x.instructions))
    return sorted(best.values(), key=lambda x: (x.instruction_set, x.format))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="a CMake build folder")
    parser.add_argument("--objdump", default="objdump", help="the disassembler (%(default)s)")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    if shutil.which(options.objdump) is None:
        parser.error(f"--objdump: there is no command {options.objdump}")
    all_loops = loops(options.folder, options.objdump)
    if not all_loops:
        sys.exit(f"{options.folder} holds no object files of instruction sets: build the core there first")
    print(f"{'':27}{'multiply-adds':>14}{'instructions':>14}{'of the stack':>14}{'per multiply-add':>18}{'least':>7}")
    for loop in all_loops:
        print(
            f"{loop.instruction_set:12}{loop.format:15}{loop.multiply_adds:14}{loop.instructions:14}{loop.stack:14}"
            f"{loop.per_multiply_add:18.2f}{loop.least / loop.multiply_adds:7.2f}"
        )
    if options.json:
        rows = ",\n".join(json.dumps(asdict(loop), separators=(",", ":")) for loop in all_loops)
        options.json.write_text(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    main()
