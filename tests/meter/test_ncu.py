"""ncu's CSV, written by its documented format (not recorded on a device), and refusals."""

import pytest

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.meter import ncu

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
DRAM, CROSSBAR = ncu.METRICS["L2/DRAM"], ncu.METRICS["shared memory and L1/L2"]


def row(number, kernel, name, unit, value):
    return (
        f'"{number}","4711","python3.11","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(64, 2, 1)","0","9.0",'
        f'"Command line profiler metrics","{name}","{unit}","{value}"'
    )


OUTPUT = "\n".join(
    [
        "==PROF== Connected to process 4711 (/usr/bin/python3.11)",
        '==PROF== Profiling "forward_kernel" - 0: 0%....50%....100% - 4 passes',
        "something that the program printed, 1,2",
        HEAD,
        row(0, "forward_kernel(float*, int)", DRAM[0][0], "byte", "1,048,576"),
        row(0, "forward_kernel(float*, int)", DRAM[1][0], "byte", "2,048"),
        row(1, "merge", DRAM[0][0], "Kbyte", "1.5"),
        row(1, "merge", DRAM[1][0], "byte", "0"),
        row(1, "merge", CROSSBAR[0][0], "byte", "n/a"),
        row(1, "merge", "gpu__time_duration.sum", "nsecond", "5"),
        "",
    ]
)


def test_all_kernels_together():
    (moved,) = ncu.read(OUTPUT, ["L2/DRAM"]).values()
    assert moved == ncu.Moved(1_048_576 + 1_500, 2_048, ("forward_kernel(float*, int)", "merge"))
    shared = ncu.METRICS["registers/shared memory"]
    text = "\n".join([HEAD, row(0, "k", shared[0][0], "", "10"), row(0, "k", shared[1][0], "", "3")])
    (moved,) = ncu.read(text, ["registers/shared memory"]).values()
    assert (moved.bytes_read, moved.bytes_written) == (1_280, 384)


@pytest.mark.parametrize(
    ("output", "boundary", "said"),
    [
        (OUTPUT, "shared memory and L1/L2", "reports 'n/a' for l1tex__m_xbar2l1tex_read_bytes.sum: this GPU"),
        (OUTPUT, "registers/shared memory", "did not report l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum, l1"),
        (OUTPUT.replace("Kbyte", "Kword"), "L2/DRAM", "in 'Kword', which is not known: byte, Kbyte"),
        ("==WARNING== No kernels were profiled.\n", "L2/DRAM", "profiled no kernel: the function must launch one"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "L2/DRAM", "NVreg_RestrictProfilingToAdmin"),
        ("==PROF== Connected\n==ERROR== Unknown metric\n", "L2/DRAM", "failed with status 0. It said: Unknown metric"),
    ],
)
def test_what_is_no_measurement(output, boundary, said):
    with pytest.raises(RedblueError, match=said):
        ncu.read(output, [boundary])


def test_each_of_several_calls():
    first, second = ncu.read_each(OUTPUT, [1, 1], ["L2/DRAM"])
    assert first["L2/DRAM"] == ncu.Moved(1_048_576, 2_048, ("forward_kernel(float*, int)",))
    assert second["L2/DRAM"] == ncu.Moved(1_500, 0, ("merge",))
    (both,) = ncu.read_each(OUTPUT, [2], ["L2/DRAM"])
    assert both == ncu.read(OUTPUT, ["L2/DRAM"])
    with pytest.raises(RedblueError, match="profiled 2 kernels of the 3 that were launched"):
        ncu.read_each(OUTPUT, [1, 2], ["L2/DRAM"])
    child = "cannot find the function 'math:nope'"
    with pytest.raises(RedblueError, match=rf"It said: The application failed \| {child}"):
        ncu.read(f"==ERROR== The application failed\n{child}", ["L2/DRAM"], 1)
    with pytest.raises(RedblueError, match="failed with status 9"):
        ncu.read_each("Killed", [1], ["L2/DRAM"], 9)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """An ncu on PATH that prints this answer and runs nothing."""

    def put(output, status=0):
        (tmp_path / "output").write_text(output + "\n")
        path = tmp_path / "ncu"
        path.write_text(
            '#!/bin/sh\n[ "$1" = --version ] && echo "Version 2025.1.0.0 (build 1)" && exit\n'
            f'echo "$@" > {tmp_path}/arguments; echo "$LC_ALL" > {tmp_path}/locale\n'
            f'while read -r l; do echo "$l"; done < {tmp_path}/output\nexit {status}\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return tmp_path

    return put


def test_a_callable_under_ncu(fake, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")  # where ncu would print a decimal comma
    folder = fake(OUTPUT)
    measurement = rb.measure_callable("json:dumps", [1], using="ncu", boundary="L2/DRAM")
    assert (measurement.bytes_read, measurement.bytes_written) == (1_050_076, 2_048)
    assert (measurement.kernel, measurement.tool, measurement.boundary) == ("json:dumps", "ncu 2025.1.0.0", "L2/DRAM")
    arguments = (folder / "arguments").read_text()
    assert "--profile-from-start off" in arguments
    assert (folder / "locale").read_text() == "C\n"
    assert "dram__bytes_read.sum,dram__bytes_write.sum" in arguments
    with pytest.raises(RedblueError, match=r"ncu measures registers/shared memory, .*; got boundary 'L7'"):
        rb.measure_callable("json:dumps", [1], using="ncu", boundary="L7")


def test_refusals(fake, tmp_path, monkeypatch):
    fake("Killed", status=9)
    with pytest.raises(RedblueError, match=r"failed with status 9. It said: Killed"):
        rb.measure_callable("json:dumps", [1], using="ncu")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(ncu, "PLACES", ("/nowhere/ncu", "/no/ncu"))
    with pytest.raises(RedblueError, match="which is neither on PATH nor at /nowhere/ncu nor at /no/ncu: install"):
        rb.measure(rb.Problem(8, 8, 4), using="ncu")
