"""Users' schedules: registered ones work wherever built-in ones do; wrong ones are refused by name."""

import functools
import types
from dataclasses import replace

import numpy as np
import pytest

import redblue as rb
from redblue import schedules
from redblue.base.style import LOOKS
from redblue.lab import counts
from redblue.lab.registration import fingerprint
from redblue.machine import CapacityError, Counting, MachineError, exp, log, maximum
from redblue.problem import DIRECTIONS
from redblue.schedules import Cost, Pass
from redblue.studies import sweep
from support.examples import nightly
from support.own_schedule import Tiles, cost, forward, own

PROBLEM = rb.Problem(n_q=512, n_k=16, d=64)


@pytest.fixture
def registered():
    """The schedule, registered for the test."""
    yield rb.register_schedule(own())
    rb.unregister_schedule("own_rows")


@pytest.fixture(autouse=True)
def nothing_stays():
    before = dict(schedules.SCHEDULES), dict(LOOKS)
    yield
    assert (dict(schedules.SCHEDULES), dict(LOOKS)) == before


def test_it_is_counted_bounded_planned_listed_traced_simulated_and_drawn(registered, tmp_path):
    assert registered.name in rb.list_schedules()
    assert registered.name in rb.list_schedules("forward")
    assert registered.name not in rb.list_schedules("backward")
    counted, ran = (count(registered.name, PROBLEM, words=700) for count in (rb.count, counts.run))
    assert (counted.reads, counted.writes, counted.peak) == (ran.reads, ran.writes, ran.peak)
    assert rb.lower_bound(PROBLEM, words=700).words <= counted.words < rb.count("flash", PROBLEM, words=700).words
    assert counts.check(registered.name, PROBLEM, words=700).error < 1e-12
    assert rb.count(registered.name, replace(PROBLEM, mask=rb.Mask.causal()), words=700, index="csr").index_words > 0

    small = rb.Problem(4, 3, 2)
    assert rb.trace(registered.name, small, words=30).verdict.peak <= 33
    level = rb.CacheLevel("L1", 4096, 64, 8)
    assert rb.simulate(registered.name, small, [level], words=30).levels[0].words > 0

    points = sweep.make_sweep({"n_q": 512, "n_k": 16, "d": 64, "words": [700, 1400]})
    picture = sweep.draw(points, sweep.run(points, jobs=1), tmp_path / "own.svg").read_text()
    assert registered.name in picture
    assert LOOKS[registered.name].light in picture


def test_a_plan_marks_it(registered):
    chosen = rb.plan(PROBLEM, memory=memory_of(8192))
    assert (chosen.levels[0].schedule, chosen.levels[0].own) == (registered.name, True)
    assert "own_rows (your own)" in str(chosen)
    rb.unregister_schedule(registered.name)
    builtin = rb.plan(PROBLEM, memory=memory_of(8192))
    rb.register_schedule(registered)
    assert builtin.levels[0].schedule != registered.name
    assert not builtin.levels[0].own
    assert "your own" not in str(builtin)


def memory_of(capacity_bytes):
    """A machine with one cache."""
    machine = rb.memory("t4")
    return replace(machine, levels=(replace(machine.levels[0], capacity_bytes=capacity_bytes), *machine.levels[1:]))


def test_worker_processes_and_journals_know_it(registered, tmp_path):
    axes = {"n_q": 64, "n_k": 8, "d": [8, 16, 32], "words": 200, "schedule": "own_rows"}
    alone = sweep.run(axes, jobs=1)
    assert all(row["status"] == "fits" for row in alone)
    points = sweep.make_sweep(axes)
    other = sweep.make_sweep(axes | {"schedule": "flash"})
    assert "own" in points.identity
    assert "own" not in other.identity


def test_the_identity_of_a_sweep_changes_with_the_program():
    """A journal of an older version of the program is then not continued."""
    programs = []
    for factor in ("0.5", "0.25"):
        names = {}
        exec(f"def run(m, problem, t, q, k, v, out, lse):\n    return {factor}", names)
        programs.append(names["run"])
    assert programs[0].__code__.co_code == programs[1].__code__.co_code  # they differ in a constant only
    assert len({fingerprint(own(run=program)) for program in (*programs, forward)}) == 3
    assert fingerprint(own()) == fingerprint(own())


def test_the_fingerprint_follows_partial_functions_objects_and_closed_forms():
    """inspect knows no source file of a functools.partial or an object, which hid their changes."""

    def defined(text):
        names = {}
        exec(text, names)
        return names

    def scaled(factor, m, problem, t, q, k, v, out, lse):
        return factor

    classes = [defined(f"class P:\n    def __call__(self, m):\n        return {x}")["P"] for x in ("0.5", "0.25")]
    programs = [functools.partial(scaled, 2), functools.partial(scaled, 3), *(one() for one in classes)]
    closed = [defined(f"def cost(p, t):\n    return {x}")["cost"] for x in ("0.5", "0.25")]
    prints = [fingerprint(own(run=program)) for program in programs] + [fingerprint(own(closed=one)) for one in closed]
    prints += [fingerprint(own(search=closed[0])), fingerprint(own(lookups=closed[1], closed=closed[0]))]
    assert len(set(prints)) == len(prints)
    assert fingerprint(own(run=functools.partial(scaled, 2))) == prints[0]
    assert fingerprint(own(run=functools.partial(scaled, factor=object))) != prints[0]
    twice = [fingerprint(own(run=functools.partial(scaled, forward))) for _ in range(2)]
    assert twice[0] == twice[1]


@pytest.mark.thorough
def test_a_sweep_in_other_processes(registered, monkeypatch):
    monkeypatch.setattr("redblue.base.parallel.ALONE_SECONDS", 0)
    axes = {"n_q": 64, "n_k": 8, "d": [8, 16, 32, 64], "words": 400, "schedule": "own_rows"}
    assert sweep.run(axes, jobs=2) == sweep.run(axes, jobs=1)


def test_a_name_is_registered_once():
    with pytest.raises(rb.RedblueError, match="'flash' belongs to a built-in schedule"):
        rb.register_schedule(own("flash"))
    with pytest.raises(rb.RedblueError, match="belongs to a built-in"):
        rb.register_schedule(own("flash"), replace=True)
    first = rb.register_schedule(own())
    with pytest.raises(rb.RedblueError, match=r"is registered: give another name, replace=True, or call unregister"):
        rb.register_schedule(own())
    assert rb.register_schedule(own(title="newer"), replace=True) is not first
    assert schedules.get("own_rows").title == "newer"
    rb.unregister_schedule("own_rows")
    with pytest.raises(rb.UnknownName, match="schedule of your own"):
        rb.unregister_schedule("own_rows")
    with pytest.raises(rb.RedblueError, match="'flash' is a built-in schedule"):
        rb.unregister_schedule("flash")


def test_several_have_looks_of_their_own():
    names = [f"own_{i}" for i in range(5)]
    try:
        for name in names:
            rb.register_schedule(own(name))
        looks = [LOOKS[name] for name in names]
        assert len(set(looks[:3])) == 3
        assert looks[3] == looks[4]  # no more examples are left
    finally:
        for name in names:
            rb.unregister_schedule(name)


# Programs and closed forms that are wrong ----------------------------------------------------------


def program(**replaced):
    """The program with other helpers, which replace helpers of the same names."""
    return types.FunctionType(forward.__code__, {**forward.__globals__, **replaced}, "forward")


def no_row_maximum(m, problem, t, q, k, v, out, lse):
    pairs = problem.mask.on(problem.n_q, problem.n_k)
    for i in schedules.blocks(problem.n_q, t.rows):
        m.cols_of(pairs, i)
        q_i, k_all, v_all = m.load(q[i]), m.load(k[range(problem.n_k)]), m.load(v[range(problem.n_k)])
        s = m.new("s", q_i @ k_all.T * problem.d**-0.5)
        s[...] = exp(m.where(pairs, i, range(problem.n_k), s, -np.inf))
        total = m.new("total", s.sum(axis=1))
        s /= maximum(total, 1e-300)[:, None]
        out_i = m.new("out_i", s @ v_all)
        total[...] = log(total)
        m.store(out[i], out_i)
        m.store(lse[i], total)
        m.free(q_i, k_all, v_all, s, total, out_i)


def whole_cost(p, t):
    r = np.minimum(t.rows, p.n_q)
    reads = p.n_q * p.d + -(-p.n_q // r) * p.n_k * (p.d + p.d_v)
    peak = r * (p.d + p.n_k + 1 + p.d_v) + p.n_k * (p.d + p.d_v)
    return Cost(reads, p.n_q * (p.d_v + 1), peak, 2 * p.n_q * p.n_k * (p.d + p.d_v))


def unmasked(m, problem, t, *arrays):
    return forward(Unmasking(m), problem, t, *arrays)


class Unmasking:
    """A machine that forgets the mask."""

    def __init__(self, machine):
        self.machine = machine

    def __getattr__(self, name):
        return getattr(self.machine, name)

    def where(self, pairs, rows, cols, value, otherwise):
        return value


def without(**changes):
    """The closed form with some fields changed."""
    return lambda p, t: replace(
        cost(p, t), **{name: change(getattr(cost(p, t), name)) for name, change in changes.items()}
    )


def unmasked_program(m, problem, t, q, k, v, out, lse):
    unmasked(m, problem, t, q, k, v, out, lse)


def honest_on_small_problems(p, t):
    """A closed form that understates the reads of problems larger than the problems that run with numbers."""
    return replace(cost(p, t), reads=np.where(p.n_q > 100, cost(p, t).reads // 4, cost(p, t).reads)[()])


def honest_with_numbers(m, problem, t, q, k, v, out, lse):
    """A program that loads nothing on the machine that only counts."""
    if isinstance(m, Counting):
        m.load = lambda region: m.zeros("not loaded", *region.shape)
    forward(m, problem, t, q, k, v, out, lse)


def reading_nothing_when_large(p, t):
    return replace(cost(p, t), reads=np.where(p.n_q > 100, 0, cost(p, t).reads)[()])


def storing_nothing(m, problem, t, q, k, v, out, lse):
    m.cols_of(problem.mask.on(problem.n_q, problem.n_k), range(problem.n_q))


def raising(m, problem, t, q, k, v, out, lse):
    raise KeyError("a bug")


def keeping(m, problem, t, q, k, v, out, lse):
    forward(m, problem, t, q, k, v, out, lse)
    m.zeros("left over", 10_000)


def no_lookup(m, problem, t, q, k, v, out, lse):
    m.cols_of, kept = lambda pairs, rows: None, m.cols_of
    forward(m, problem, t, q, k, v, out, lse)
    m.cols_of = kept


WRONG_PROGRAMS = {
    "a capacity exceeded": ({"run": keeping}, CapacityError, "needs 10000 words, but 0 of the cache's"),
    "an understated peak": ({"closed": without(peak=lambda x: x - 1)}, CapacityError, "1 too many"),
    "an overstated peak": ({"closed": without(peak=lambda x: x + 1)}, rb.RedblueError, "states peak = "),
    "wrong reads": (
        {"closed": without(reads=lambda x: x + 1)},
        rb.RedblueError,
        "states reads = ",
    ),
    "wrong writes": (
        {"closed": without(writes=lambda x: 2 * x)},
        rb.RedblueError,
        "states writes = ",
    ),
    "wrong flops": ({"closed": without(flops=lambda x: x // 2)}, rb.RedblueError, "states flops = "),
    "a fraction": ({"closed": without(reads=lambda x: x / 1)}, rb.RedblueError, "Cost of whole numbers"),
    "no cost": ({"closed": lambda p, t: 12}, rb.RedblueError, "must return a redblue.schedules.Cost"),
    "a wrong result": ({"run": program(exp=lambda x: exp(x * 0.5))}, rb.RedblueError, "differs from the float64"),
    "a mask forgotten": ({"run": unmasked_program}, rb.RedblueError, r"Mask.causal\(.*differs from the float64"),
    "outputs missing": ({"run": storing_nothing}, MachineError, "words were never stored"),
    "an error": ({"run": raising}, rb.RedblueError, "run raised KeyError: 'a bug'"),
    "a cost without arrays": (
        {"closed": lambda p, t: cost(p, Tiles(min(t.rows, p.n_q), t.cols))},
        rb.RedblueError,
        "search raised ValueError: .* needs a cost that takes arrays of edges",
    ),
    "a search too large": (
        {"search": lambda p, words, multiple: Tiles(p.n_q, p.n_k)},
        rb.RedblueError,
        "returns tiles that hold",
    ),
    "a search for nothing": (
        {"search": lambda p, words, multiple: None},
        rb.RedblueError,
        "these tiles fit, but the search",
    ),
    "no look-up": ({"run": no_lookup}, rb.RedblueError, "never looks up the mask"),
    "undeclared look-ups": (
        {"lookups": lambda p, t: ()},
        MachineError,
        "looks up the mask by rows, which its pass does not",
    ),
    "wrong look-ups": (
        {"lookups": lambda p, t: 2 * own().passes["forward"].sweeps(p, t)},
        rb.RedblueError,
        r"sweeps state \d+ words of a CSR index",
    ),
    "a closed form of small problems": (
        {"closed": honest_on_small_problems},
        rb.RedblueError,
        "n_q=211, .* states reads = ",
    ),
    "a program for the counting machine": ({"run": honest_with_numbers}, rb.RedblueError, "n_q=211, .* has 0$"),
    "fewer words than any schedule": (
        {"run": honest_with_numbers, "closed": reading_nothing_when_large},
        rb.RedblueError,
        r"n_q=211, .* 4,431 words, fewer than the [\d,]+ that any schedule must move",
    ),
    "overflow": ({"run": no_row_maximum, "closed": whole_cost}, rb.RedblueError, "overflows on large scores"),
}


@pytest.mark.parametrize("case", WRONG_PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_program_is_refused(case):
    parts, error, message = WRONG_PROGRAMS[case]
    with pytest.raises(error, match=message) as refusal:
        rb.register_schedule(own(**parts))
    assert str(refusal.value).startswith("own_rows forward (n_q=")
    assert "own_rows" not in rb.list_schedules()


def test_an_unsafe_one_may_be_registered_as_such():
    schedule = own(run=no_row_maximum, closed=whole_cost, safe=False)
    with np.errstate(all="ignore"):
        rb.register_schedule(schedule)
    assert schedule.name in rb.list_schedules()
    rb.unregister_schedule(schedule.name)


WRONG_FIELDS = {
    "name": ({"name": "Own Rows"}, "name must be at most 40 lower-case letters"),
    "name of a wrong type": ({"name": 3}, "name must be"),
    "title": ({"title": " "}, "title of own_rows must be text"),
    "source": ({"source": None}, "source of own_rows must be text"),
    "safe": ({"safe": "yes"}, "safe of own_rows must be True or False"),
    "no passes": ({"passes": {}}, "passes of own_rows must map"),
    "a direction": ({"passes": {"sideways": None}}, "must be one of forward, backward, gradient_x, got 'sideways'"),
    "a function as a pass": ({"passes": {"forward": forward}}, "must be a redblue.schedules.Pass"),
    "no function": ({"run": None}, "run must be a function, got None"),
    "no closed form": ({"closed": 7}, "cost must be a function, got 7"),
    "tiles": ({"tile_type": dict}, "tile_type must be a NamedTuple with the edges rows and cols"),
    "arrays": ({"run": lambda m, p, t, queries: None}, "must name arrays among q, dq"),
    "no lse": ({"run": lambda m, p, t, q, k, v, out: None}, "takes the arrays k, lse, out, q, v; got k, out, q, v"),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_a_wrong_field_is_refused(case):
    parts, message = WRONG_FIELDS[case]
    with pytest.raises(rb.RedblueError, match=message):
        rb.register_schedule(own(**parts))


@pytest.mark.parametrize("value", [None, 3, "flash", forward, Pass, [own()]])
def test_what_is_no_schedule_is_refused(value):
    with pytest.raises(rb.RedblueError, match="schedule must be a Schedule"):
        rb.register_schedule(value)
    with pytest.raises(rb.RedblueError):
        rb.unregister_schedule(value)
    with pytest.raises(rb.RedblueError, match="replace must be True or False"):
        rb.register_schedule(own(), replace=value)


# Users register schedules of these directions only
PLAIN = [name for name in schedules.BUILT_IN if set(schedules.get(name).passes) <= set(DIRECTIONS)]


@pytest.mark.parametrize("name", ["flash", *(nightly(name) for name in PLAIN if name != "flash")])
def test_built_in_schedules_pass_the_same_verification(name):
    rb.register_schedule(replace(schedules.get(name), name="copy"))
    assert "copy" in rb.list_schedules()
    rb.unregister_schedule("copy")


def test_the_default_search_finds_what_flash_finds():
    flash = schedules.get("flash").passes["forward"]
    own_search = replace(schedules.get("flash"), passes={"forward": replace(flash, search=None)})
    for problem in (rb.Problem(300, 200, 16), rb.Problem(300, 200, 16, mask=rb.Mask.causal())):
        for words in (200, 1000, 5000):
            assert (
                own_search.words(problem, own_search.tiles(problem, words))
                == rb.count("flash", problem, words=words).words
            )
