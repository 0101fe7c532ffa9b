"""The benchmark of paged caches on tiny calls: its counts, checks and output. Its times mean nothing."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from benchmarks.common.failures import Red, Refused
from benchmarks.common.journal import Journal
from benchmarks.common.other_process import Other
from benchmarks.common.results import Figure, Limit, Row, read, write
from benchmarks.common.timing import Spread
from benchmarks.cpu.paged import __main__ as main
from benchmarks.cpu.paged import contenders, measures, others, page
from benchmarks.cpu.paged.calls import HEADS_OUTSIDE, ROWS_OUTSIDE, Call, attended, inputs, newest, sequence
from benchmarks.cpu.paged.gate import gate
from benchmarks.cpu.paged.gathered import gathered
from benchmarks.cpu.paged.grid import measures as grid
from benchmarks.cpu.paged.huge_pages import huge_bytes
from benchmarks.cpu.paged.measures import Measure, Settings, peer_figures, roof_figures

SETTINGS = Settings(rounds=1, seconds=1e-3)
GQA = Call((33, 33), heads=4, kv_heads=2, d=8, page=4)
CALLS = {
    "one query": GQA,
    "whole pages": replace(GQA, lengths=(32, 32)),
    "heads outside": replace(GQA, layout=HEADS_OUTSIDE),
    "skewed": replace(GQA, lengths=(61, 5, 9)),
    "chunk": replace(GQA, n_q=5, lengths=(40, 7)),
    "tree": replace(GQA, n_q=4, tree=True, dtype="bfloat16"),
    "one head": replace(GQA, n_q=2, kv_heads=4, dtype="float16"),
    "MLA": replace(GQA, heads=8, kv_heads=1, d=12, d_v=8),
    "MLA, heads outside": replace(GQA, heads=8, kv_heads=1, d=12, d_v=8, n_q=3, layout=HEADS_OUTSIDE),
    "shared": replace(GQA, shared=16),
}


def at(*lengths, **rest):
    return replace(GQA, lengths=lengths, **rest)


@pytest.mark.parametrize("name", CALLS)
def test_every_contender_is_right(name):
    call = CALLS[name]
    x = inputs(call)
    known = gate(call, x)
    with torch.no_grad():
        assert not known.check("redblue", [contenders.redblue(call, x)()])
        for peer, make in contenders.MAKERS.items():
            if peer == contenders.TRANSFORMERS:
                pytest.importorskip("transformers")
            if peer != contenders.CONTIGUOUS or call.even:
                assert not known.check(peer, [make(call, x._replace(k=x.k.contiguous(), v=x.v.contiguous()))()]), peer


def test_a_wrong_result_of_redblue_ends_the_run_and_one_of_a_peer_is_noted():
    x = inputs(GQA)
    known = gate(GQA, x)
    out = contenders.redblue(GQA, x._replace(table=x.table.flip(0)))()
    with pytest.raises(Red, match="too far"):
        known.check("redblue", [out])
    assert "too far" in known.check("vLLM", [out])
    assert "too far" in known.check("vLLM", [torch.full_like(out, torch.nan)])


def test_inputs_lie_in_pages_of_their_own():
    call = CALLS["skewed"]
    x = inputs(call)
    used = [page for row, n in zip(x.table, call.lengths, strict=True) for page in row[: -(-n // call.page)].tolist()]
    assert sorted(used) == list(range(len(x.k)))
    assert used != sorted(used)
    assert sequence(x.k, x, 1)[4].equal(x.k[x.table[1, 1].item(), 0])


def test_a_shared_prefix_is_in_the_same_pages():
    call = CALLS["shared"]
    x = inputs(call)
    assert x.table[0, :4].equal(x.table[1, :4])
    assert not set(x.table[0, 4:].tolist()) & set(x.table[1, 4:].tolist())


@pytest.mark.parametrize("name", CALLS)
def test_bytes_and_flops_are_those_of_the_distinct_keys_and_the_attended_pairs(name):
    call = CALLS[name]
    x = inputs(call)
    slots = {(int(x.table[b, j // call.page]), j % call.page) for b, n in enumerate(call.lengths) for j in range(n)}
    words = call.d if call.d_v else 2 * call.d
    assert call.bytes == len(slots) * call.kv_heads * words * x.k.element_size()
    pairs = sum(int(attended(call, n).sum()) for n in call.lengths)
    assert call.flops == 2 * call.heads * pairs * (call.d + (call.d_v or call.d))


def test_a_tree_attends_its_ancestors():
    assert newest(CALLS["tree"]).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]


def test_both_layouts_have_one_shape():
    rows, heads = (inputs(replace(GQA, layout=layout)).k for layout in (ROWS_OUTSIDE, HEADS_OUTSIDE))
    assert rows.shape == heads.shape
    assert rows.is_contiguous()
    assert heads.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(
    "measure",
    [
        Measure("decoding", {"": GQA}, measures.compared),
        Measure("decoding", {"": CALLS["heads outside"]}, measures.compared),
        Measure("MLA", {"": CALLS["MLA"]}, measures.compared),
        Measure("skewed", {"skewed": at(60, 4), "balanced": at(32, 32)}, measures.skewed),
        Measure("scaling", {"": GQA}, measures.scaling),
        Measure("prefix", {"": CALLS["shared"]}, measures.sharing),
        Measure(
            "layouts", {name: replace(GQA, layout=name) for name in (ROWS_OUTSIDE, HEADS_OUTSIDE)}, measures.layouts
        ),
    ],
    ids=lambda measure: measure.title,
)
def test_every_measure_gives_figures_that_are_kept(measure, tmp_path):
    pytest.importorskip("transformers")
    with torch.no_grad():
        row = measure.run(measure, SETTINGS)
    assert row.figures
    assert not row.note
    assert all(len(rates) == 1 and rates[0] > 0 for rates in row.rates.values())
    facts = {"cpu": "a CPU", "isa": "avx2", "threads": 2, "date": "2026-11-23"}
    write(tmp_path / "paged.json", facts, [row])
    kept_facts, kept = read(tmp_path / "paged.json")
    assert kept_facts == facts
    assert page.tables(kept).splitlines()[:2] == page.tables([row]).splitlines()[:2]
    assert measure.call.title in page.tables(kept)
    page.draw(facts, kept, tmp_path / "paged.svg")
    assert (tmp_path / "paged.svg").exists() == (measure.name == "decoding")


def test_a_run_continues_after_rows_of_the_same_core(tmp_path):
    timed = []

    def measured(row, _):
        timed.append(row.title)
        return row.row([], {"redblue": [1.0]}, "x")

    rows = [Measure("scaling", {"": replace(GQA, lengths=(n,))}, measured) for n in (8, 16, 24)]
    titles = [row.title for row in rows]
    facts = dict.fromkeys(main.FINGERPRINT, "same")

    def run(facts, resume, most=0):
        main.run(rows, SETTINGS, Journal(tmp_path / "rows.json", facts, titles, main.FINGERPRINT, resume), most)

    run(facts, False, most=2)
    run(facts, True)
    assert timed == titles
    run(facts, True)
    assert timed == titles
    run(facts | {"core": "other"}, True)
    assert timed == titles * 2


def test_peers_make_no_copies_that_fill_the_memory(monkeypatch):
    tried = []

    def sdpa(q, k, v, mask):
        tried.append(q.shape[1])
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        return (q @ k.mT).softmax(-1) @ v

    x = inputs(GQA)
    gathered(GQA, x, sdpa)
    assert set(tried) == {2, 4}
    tried.clear()
    monkeypatch.setattr("benchmarks.cpu.paged.gathered.MAX_BYTES", 100)
    gathered(GQA, x, sdpa)()
    assert set(tried) == {2}


def test_the_bar_is_that_of_the_faster_gather():
    rates = {"redblue": [6.0], contenders.TRANSFORMERS: [2.0], contenders.GATHERED: [4.0], "vLLM": [5.0]}
    figures = {figure.what: figure for figure in peer_figures(rates, {})}
    assert figures["over transformers"].limit == Limit()
    assert figures["over gather + SDPA"].limit == Limit(2)
    assert figures["over gather + SDPA"].met == "no"
    assert figures["over vLLM"].met == "must"


def test_the_roof_is_reads_where_they_decide_and_the_slower_one_elsewhere():
    rates = {"redblue": [4.0], contenders.READS: [5.0], contenders.PRODUCTS: [8.0]}
    (share,) = roof_figures(GQA, rates, {})
    assert share.value.median == 0.8
    assert share.met == "no"
    (time,) = roof_figures(replace(GQA, n_q=9), rates, {})
    assert time.value.median == 1.25
    assert time.at_most


def test_one_row_too_long_to_wait_for_is_refused():
    pytest.importorskip("transformers")
    big = at(*(65_536,) * 64, heads=32, d=128)
    with pytest.raises(Refused, match=r"\d GiB"):
        contenders.transformers(big, inputs(GQA))


def test_the_grid_covers_what_it_says_in_little_memory():
    rows = grid()
    titles = [row.title for row in rows]
    assert len(set(titles)) == len(titles)
    calls = [call for row in rows for call in row.calls.values()]
    assert {call.batch for call in calls} >= {1, 4, 8, 16, 64}
    assert {max(call.lengths) for call in calls} >= {512, 65_536}
    assert {(call.heads, call.kv_heads) for call in calls} == {(32, 8), (32, 32), (128, 1)}
    assert {call.d for call in calls} == {64, 128, 576}
    assert {call.n_q for call in calls} == {1, 4, 256}
    assert {call.page for call in calls} == {16, 32}
    assert max(sum(call.bytes for call in row.calls.values()) for row in rows) <= 1 << 30
    assert 5 <= sum(row.quick for row in rows) < len(rows) / 3


def test_a_table_says_where_a_figure_misses_its_bar():
    def figure(title, value, must, unit="x"):
        return Figure(title, Spread(value, value, value), Limit(must), unit)

    figures = [figure("of measured reads, DRAM", 0.5, 0.85, "%"), figure("over vLLM", 1.5, 1.2)]
    rows = [
        Row("decoding, fp32", "B 1", figures, {"redblue": [3.0]}, "GB/s"),
        Row("decoding, bf16", "B 2", [figure("over vLLM", 1.0, 1.2)], {"redblue": [4.0]}, "GB/s"),
        Row("scaling, bf16", "B 2", [figure("2 threads over 1", 1.95, 1.9)], {"redblue, 1": [2.0]}, "GB/s"),
    ]
    assert page.tables(rows).splitlines() == [
        "| decoding | of measured reads | over vLLM | speed of redblue |",
        "|---|---|---|---|",
        "| fp32, B 1 | **50% (DRAM)** (required 85%) | 1.50 | 3 GB/s |",
        "| bf16, B 2 | - | **1.00** (required 1.2) | 4 GB/s |",
        "",
        "| scaling | 2 threads over 1 | speed of redblue |",
        "|---|---|---|",
        "| bf16, B 2 | 1.95 | 2 GB/s |",
    ]


def test_a_peer_in_another_process_makes_the_calls_of_this_one():
    with torch.no_grad():
        assert not gate(GQA, inputs(GQA)).check("zentorch", [gathered(GQA, inputs(Call.from_json(GQA.to_json())))()])
    with pytest.raises(Refused, match="no tree masks"):
        others.make("vLLM", CALLS["tree"].to_json())


def test_a_process_that_ends_is_a_reason_to_omit_the_peer(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'Illegal instruction' >&2\n")
    broken.chmod(0o755)
    other = Other("vLLM", "benchmarks.cpu.paged.others", broken)
    row = measures.compared(Measure("decoding", {"": GQA}, measures.compared), replace(SETTINGS, others=[other]))
    assert "vLLM: its process ended: Illegal instruction" in row.note
    assert "vLLM" not in row.rates


def test_huge_pages_are_read_from_the_mappings_of_the_tensor():
    lines = [
        "1000-3000 rw-p 00000000 00:00 0 ",
        "Size:                  8 kB",
        "AnonHugePages:      2048 kB",
        "3000-5000 rw-p 00000000 00:00 0 ",
        "AnonHugePages:      4096 kB",
        "7000-9000 r--p 00000000 00:00 0    /usr/lib/some-library.so",
        "AnonHugePages:      6144 kB",
    ]
    assert huge_bytes(lines, 0x1800, 0x3000) == 2 << 20
    assert huge_bytes(lines, 0x2FFF, 0x3001) == 6 << 20
    assert huge_bytes(lines, 0x5000, 0x7000) == 0
