"""Functions that run on older CPUs contain no newer instructions; checked in the object files of this build."""

import re
import shutil
import subprocess

import pytest

from support.compiled import compiled

# Registers that only newer instruction sets have. No function outside of the set's namespace may use them.
NEWER = {"avx512": re.compile(r"%zmm|%k[1-7]|%[xy]mm(1[6-9]|2\d|3[01])"), "avx2": re.compile(r"%ymm")}


def objects():
    return compiled("a[vm]x*")


def namespace(mangled):
    """Return the namespace of a mangled name, such as avx512 for _ZN7redblue6avx512...; names follow their lengths."""
    match = re.match(r"_Z+N[KVO]*7redblue(\d+)a[vm]x", mangled)
    return mangled[match.end(1) :][: int(match[1])] if match else ""


def violations(listing):
    """List functions of a disassembly that use newer registers outside the namespace of a newer instruction set.

    The mangled name's own namespace counts: a std:: template on a newer set's type is built for all CPUs.
    """
    functions, name = set(), ""
    for line in listing.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            name = head[1]
        space = namespace(name)
        if (NEWER["avx512"].search(line) and not space.startswith(("avx512", "amx"))) or (
            NEWER["avx2"].search(line) and not space
        ):
            functions.add(name)
    return functions


@pytest.mark.skipif(not objects() or not shutil.which("objdump"), reason="no object files of a build, or no objdump")
@pytest.mark.parametrize("path", objects(), ids=lambda path: path.stem)
@pytest.mark.thorough
def test_shared_functions_are_built_for_the_oldest_cpu(path):
    run = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True, check=True)
    assert "redblue" in run.stdout
    assert not violations(run.stdout)


def test_the_check_sees_a_violation():
    shared = "0000 <_ZNSt6vectorIN7redblue6avx5125PanelEE3fooEv>:\n   0:\tvmovups (%rdi),%zmm0\n"
    allowed = "0000 <_ZN7redblue6avx5127ForwardE>:\n   0:\tvmovups (%rdi),%zmm0\n"
    older = "0000 <_ZN7redblue4avx27ForwardE>:\n   0:\tvmovups (%rdi),%zmm0\n"
    assert violations(shared)
    assert not violations(allowed)
    assert violations(older)
