"""Whatever happens in which order, each state that a client is sent is the result of its query at that version."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from live_world import Past, Question, Row, Watcher, World
from millrace.live.events import Backlog, Gone, Tick
from millrace.live.grid import Grid
from millrace.live.sending import Limits

QUESTIONS = [
    Question("*", "n = 1"),
    Question("name, n", "n > 0 OR name = 'a'"),
    Question("name", "TRUE"),
    Question("x", "name IN ('a', 'b') AND n BETWEEN 0 AND 2"),
    Question("*", "n IS NULL OR NOT n = 2"),
    Question("id, n", "TRUE", "ORDER BY n"),
    Question("*", "n >= 0", "ORDER BY n DESC, name", "LIMIT 3"),
    Question("name", "TRUE", "ORDER BY name", "LIMIT 2 OFFSET 1"),
    Question("name, x", "x < 2.5", "ORDER BY x, name DESC", "LIMIT 4 OFFSET 2"),
    Question("id", "n <> 1", "", "LIMIT 2"),
    Question("id", "TRUE", "ORDER BY x DESC", "LIMIT 0"),
]
FORMS = ["diff", "diff", "diff", "upsert", "invalidate"]


def row(random: Random, key: int) -> Row:
    return (
        key,
        random.choice([None, 0, 1, 1, 2, 3]),
        random.choice([None, "a", "b", "c", "é"]),
        random.choice([None, 0.5, 1.0, 2.0, 3e9]),
    )


def changed(past: Past, random: Random, many: int) -> dict[int, Row]:
    state = dict(past.states[past.version])
    for _ in range(random.randint(1, many)):
        key = random.randrange(14)
        if random.random() < 0.4:
            state.pop(key, None)
        else:
            state[key] = row(random, key)
    return state


def walk(seed: int, steps: int = 120, make_grid: Callable[[], Grid] = Grid) -> tuple[World, int]:
    """Random events, and at the end all that was held back. Returns how many states were checked, too."""
    random = Random(seed)
    limits = Limits(
        slack=random.choice([0, 1, 3]), backlog=2, most_backlog=40, most_held=random.choice([4, 1_000]), idle=50
    )
    world = World(random, limits, make_grid)
    everyone: list[Watcher] = []
    for number in range(steps):
        world.now += random.randrange(30)
        match random.randrange(18):
            case 0 | 1 | 2 | 3:
                world.past.commit(changed(world.past, random, 4), random.choice([1, 1, 3]))
            case 4 | 5 | 6:
                world.feed(random.choice([None, None, (world.followed or 0) + 1]))
            case 7 | 8:
                world.read()
            case 9 | 10 | 11:
                world.answer()
            case 12 | 13:
                up_to = random.choice([None, None, None, world.past.version + random.randrange(5)])
                watcher = Watcher(str(number), random.choice(QUESTIONS), random.choice(FORMS), world.past, up_to)
                everyone.append(watcher)
                world.subscribe(watcher, random.choice([0, 0, 40]))
            case 14:
                if world.watchers:
                    world.leave(random.choice(sorted(world.watchers)))
            case 15:
                if world.left:
                    world.resume(world.left.pop(random.randrange(len(world.left))))
            case 16:
                if world.watchers:
                    world.do(Backlog(random.choice(sorted(world.watchers)), random.choice([0, 3, 3, 50])))
            case _:
                match random.randrange(8):
                    case 0:
                        world.past.replace(changed(world.past, random, 8))
                    case 1:
                        world.past.since = random.randint(world.past.since, world.past.version)
                    case _:
                        world.do(Tick(world.now))
        for name in [name for name, each in world.watchers.items() if each.is_ended]:
            world.disconnect(name)
            world.do(Gone(name))
    world.settle()
    for watcher in world.watchers.values():
        if not watcher.is_ended:
            assert watcher.version is not None
            assert watcher._now() == watcher._judged(world.past.version)
    return world, sum(each.states for each in everyone)


@examples(120)
@given(st.integers(0, 10**9))
def test_each_state_that_is_sent_is_a_real_one(seed: int) -> None:
    world, _ = walk(seed)
    for name in list(world.watchers):
        world.do(Gone(name))
    while world.asked or world.answers:
        world.read()
        world.answer()
    assert world.hub.is_empty
    assert world.followed is None


def test_the_walks_check_many_states() -> None:
    assert sum(walk(seed)[1] for seed in range(10)) > 300


@pytest.mark.parametrize("grid", [(2, 1), (1, 3), (2, 2)])
def test_a_grid_of_any_size_sends_the_same(grid: tuple[int, int]) -> None:
    for seed in range(5):
        one, many = walk(seed)[0], walk(seed, make_grid=partial(Grid, *grid))[0]
        assert {name: each.rows for name, each in one.watchers.items()} == {
            name: each.rows for name, each in many.watchers.items()
        }
