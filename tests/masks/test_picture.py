"""Masks by name, the census of their tiles, their pictures, and the command `redblue mask`."""

import json
import re
import shlex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from redblue import Mask, RedblueError
from redblue.cli.main import app
from redblue.cli.mask import EPILOG, describe
from redblue.masks.names import parse
from redblue.masks.picture import chart, even_edge, shaded
from support.examples import examples
from support.mask_oracle import compositions

SIZES = st.integers(1, 20)


def run(*arguments: str):
    return CliRunner().invoke(app, ["mask", *arguments])


# The census ---------------------------------------------------------------------------------------


def test_a_million_tokens_cost_what_their_tiles_cost():
    n = 1_000_000
    mask = Mask.sliding_window(256, 0) & Mask.documents([n // 8] * 8)
    description = describe(mask, n, n)
    assert description["tile"] == [4096, 4096]
    assert description["planes"][0]["nnz"] == 8 * Mask.sliding_window(256, 0).nnz(n // 8, n // 8)
    tiles = description["planes"][0]["tiles"]
    assert tiles["all"] == 245**2 == tiles["empty"] + tiles["partial"]


# Pictures -----------------------------------------------------------------------------------------


@examples(50)
@given(st.data(), SIZES, SIZES)
def test_pictures_of_few_pairs_show_each(data, n_q, n_k):
    mask, dense = data.draw(compositions(n_q, n_k, most=2))
    drawn = np.zeros((n_q, n_k), int)
    for box in chart(mask, n_q, n_k).to_dict()["data"]["values"]:
        drawn[box["query"] : box["query_end"], box["key"] : box["key_end"]] += 1
    assert np.array_equal(drawn, dense)


def test_pictures_of_many_pairs_show_tiles():
    values = chart(Mask.causal(), 1000, 500, tile=(100, 250)).to_dict()["data"]["values"]
    kinds = {(box["query"], box["key"]): (box["kind"], box["key_end"]) for box in values}
    assert kinds[0, 0] == ("partial", 250)
    assert kinds[500, 0] == ("full", 500), "adjacent full tiles are drawn as one"
    assert (900, 0) not in kinds
    assert (0, 250) not in kinds
    assert len(chart(Mask.full(), 10**6, 10**6).to_dict()["data"]["values"]) <= 64


def test_planes_stand_beside_each_other():
    mask = Mask.per_head([Mask.causal(), Mask.full()])
    assert len(mask.plot(8, 8).to_dict()["concat"]) == 2
    with pytest.raises(RedblueError, match=r"has 13 planes, and a picture shows at most 12: plot mask.plane\(i\)"):
        Mask.key_lengths(range(13)).plot(20, 20)
    with pytest.raises(RedblueError, match="more than can be drawn"):
        Mask.causal().plot(10**6, 10**6, tile=(64, 64))
    with pytest.raises(RedblueError, match="any sizes: give n_q and n_k"):
        Mask.causal().plot()


def test_text_pictures():
    assert shaded(Mask.causal(), 4, 4) == "█   \n██  \n███ \n████"
    assert shaded(Mask.causal(), 96, 96, 2, 2) == "▓ \n█▓"
    assert shaded(Mask.full(), 0, 3) == ""


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("full", Mask.full()),
        ("causal-bottom-right", Mask.causal("bottom-right")),
        ("window:3", Mask.sliding_window(3)),
        ("window:3,2", Mask.sliding_window(3, 2)),
        ("prefix:4", Mask.prefix(4)),
        ("documents:3,0,5", Mask.documents([3, 0, 5])),
        ("dilated:2,3", Mask.dilated(2, 3)),
        ("strided:4", Mask.strided(4)),
        ("global:0,5", Mask.global_tokens([0, 5])),
        ("butterfly:4", Mask.butterfly(4)),
        ("butterfly:4,8", Mask.butterfly((4, 8))),
        ("bigbird:4", Mask.bigbird(4)),
        ("bigbird:4,5,1,2,7", Mask.bigbird(4, 5, 1, 2, 7)),
        ("n_of_m:2,4", Mask.n_of_m(2, 4)),
        ("random:.5,16", Mask.random_blocks(0.5, block=16)),
        ("random:0.5,16,3", Mask.random_blocks(0.5, 3, 16)),
        ("~causal", ~Mask.causal()),
        ("causal & ~n_of_m:1,3|prefix:2", Mask.causal() & ~Mask.n_of_m(1, 3) | Mask.prefix(2)),
        ("causal&~(n_of_m:1,3 | prefix:2)", Mask.causal() & ~(Mask.n_of_m(1, 3) | Mask.prefix(2))),
        (" ( ( causal ) ) ", Mask.causal()),
    ],
)
def test_masks_by_name(text, mask):
    assert parse(text) == mask


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "mask must be full, causal"),
        ("causl", r"unknown mask 'causl'; nearest: causal, .* random:DENSITY,BLOCK\[,SEED\]"),
        ("causal:3", "got 'causal:3'"),
        ("window:", "got 'window:'"),
        ("window:1,2,3", "got 'window:1,2,3'"),
        ("window:-1", "left must be a whole number of at least 0, got -1"),
        ("window:1.5", "left must be a whole number of at least [01], got 1.5"),
        ("strided:0", "stride must be a whole number of at least 1, got 0"),
        ("documents:" + "9" * 19, "may have at most 18 digits"),
        ("causal &", "got 'causal &'"),
        ("(causal", r"got '\(causal'"),
        ("causal) | full", r"got 'causal\) \| full'"),
        ("causal causal", "unknown mask 'causal causal'; nearest: causal"),
        ("& full", "got '& full'"),
        ("csr:", "got 'csr:'"),
    ],
)
def test_names_that_mean_nothing_are_refused(text, says):
    with pytest.raises(RedblueError, match=says):
        parse(text)


def test_masks_from_files(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.random.default_rng(0).random((6, 9)) < 0.4
    sparse.save_npz(tmp_path / "graph.npz", sparse.csr_array(dense))
    for name in ("a(1)&b.npy", "a.npy"):
        np.save(tmp_path / name, dense)
    np.savez(tmp_path / "short.npz", indptr=np.array([0, 1]), indices=np.array([0]), shape=np.array([2, 3]))
    np.savez(tmp_path / "none.npz", a=dense)
    (tmp_path / "broken.npz").write_bytes((tmp_path / "graph.npz").read_bytes()[:100])
    assert np.array_equal(parse(f"csr:{tmp_path}/graph.npz").to_dense(), dense)
    assert parse(f"dense:{tmp_path}/a(1)&b.npy") == Mask.from_dense(dense)
    assert (
        parse(f"csr:{tmp_path}/graph.npz & causal")
        == Mask.from_csr(*Mask.from_dense(dense).to_csr(), 9) & Mask.causal()
    )
    for kind, square in (("csc", dense[:, :6]), ("bsr", np.eye(6, dtype=bool))):  # the shape alone tells nothing
        sparse.save_npz(tmp_path / f"{kind}.npz", sparse.csr_array(square).asformat(kind))
    for name, says in (
        ("csc.npz", r"must hold a CSR matrix, but its format is 'csc': save matrix.tocsr\(\) instead"),
        ("bsr.npz", "but its format is 'bsr'"),
        ("short.npz", r"shape in .* must be \(length of indptr - 1, n_k\), got \[2, 3\]"),
        ("none.npz", "must hold the arrays indptr, indices, shape"),
        ("a.npy", "must hold the arrays"),
        ("broken.npz", "cannot read"),
        ("missing.npz", "cannot read"),
    ):
        with pytest.raises(RedblueError, match=says):
            parse(f"csr:{tmp_path}/{name}")


# The command --------------------------------------------------------------------------------------


def test_the_command_says_what_a_mask_keeps(tmp_path):
    result = run("causal & documents:100,28", "--tile", "32", "--picture", str(tmp_path / "m.svg"))
    assert result.exit_code == 0, result.output
    assert "Mask.causal() & Mask.documents([100, 28])" in result.output
    assert "█" in result.output
    assert (tmp_path / "m.svg").read_text().startswith("<svg")
    printed = json.loads(run("causal & documents:100,28", "--tile", "32,64", "--json").output)
    assert (printed["n_q"], printed["n_k"], printed["tile"], printed["lead"]) == (128, 128, [32, 64], [])
    (plane,) = printed["planes"]
    assert plane["nnz"] == 100 * 101 // 2 + 28 * 29 // 2
    assert plane["density"] == plane["nnz"] / 128**2
    assert plane["tiles"]["empty"] + plane["tiles"]["full"] + plane["tiles"]["partial"] == plane["tiles"]["all"] == 8
    assert plane["queries_without_keys"] == plane["keys_without_queries"] == 0


def test_the_command_shows_every_plane(tmp_path):
    np.save(tmp_path / "heads.npy", np.array([np.tri(9, 8), np.zeros((9, 8))], bool))
    printed = json.loads(run(f"dense:{tmp_path}/heads.npy", "--json").output)
    assert printed["lead"] == [2]
    assert [plane["nnz"] for plane in printed["planes"]] == [44, 0]
    assert [plane["queries_without_keys"] for plane in printed["planes"]] == [0, 9]
    assert run(f"dense:{tmp_path}/heads.npy").exit_code == 0


def test_examples_of_the_help_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"redblue mask (.*?)\. ", EPILOG)
    assert len(examples) == 2
    for example in examples:
        result = run(*shlex.split(example))
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("causl", "--n", "8"), "mask must be full"),
        (("causal",), "any sizes: give n_q and n_k"),
        (("causal", "--n", "0"), "n_q must be a whole number of at least 1, got 0"),
        (("causal", "--n", "8", "--tile", "0"), "tile must be a whole number of at least 1, got 0"),
        (("causal", "--n", "8", "--tile", "1,2,3"), "tile must be QUERIES[,KEYS]"),
        (("documents:3,4", "--n", "8"), "for n_q = 7, but n_q = 8 was given"),
        (("causal", "--n", "8", "--picture", "m.pdf"), "must end in .svg, .png, .html"),
    ],
)
def test_the_command_refuses_bad_input(arguments, says):
    result = run(*arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, RedblueError)
    assert says in str(result.exception)


@pytest.mark.parametrize(
    ("edge", "even"), [(1, 1), (77, 77), (511, 511), (1000, 1024), (1025, 1152), (208_334, 212_992)]
)
def test_edges_of_large_tiles_are_even(edge, even):
    assert even_edge(edge) == even


def test_a_picture_at_ten_million_queries_cuts_no_block(monkeypatch):
    """Evaluating cut blocks pair by pair took minutes and 6 GB."""
    from redblue.masks.patterns import tiling

    monkeypatch.setattr(tiling, "MAX_WORDS", 0)
    monkeypatch.setattr(tiling, "MAX_TESTED", 0)
    assert len(shaded(Mask.butterfly(65_536), 10_000_000, 10_000_000).splitlines()) == 24


def test_a_mask_of_a_billion_queries_is_refused_before_it_is_listed(monkeypatch):
    from redblue.base import estimates

    monkeypatch.setattr(estimates, "available_bytes", lambda: 1 << 30)
    with pytest.raises(RedblueError, match=r"listing a mask of n_q = 1,000,000,000 .* runs needs about .*GB of memory"):
        shaded(Mask.sliding_window(3) | Mask.sliding_window(9, 9), 1_000_000_000, 1_000_000_000)
