"""The search that can be computed, and what the chapter "The loop" says of it."""

import pytest

from qrlib.teach.figures.search import TRIES, search_frame, search_stepper
from qrlib.teach.search import FAMILIES, ROUNDS, Family, climb


def spent(tries):
    return {family.name: sum(each == family for each, _ in tries) for family in FAMILIES}


@pytest.mark.parametrize("alive", (1, 2, 3, 4))
@pytest.mark.parametrize("count", (1, 7, TRIES))
def test_every_try_is_the_next_of_its_family(alive, count):
    used, tries = dict.fromkeys(FAMILIES, 0), climb(count, alive)
    assert len(tries) == count
    for family, us in tries:
        used[family] += 1
        assert us == family.after(used[family])


def test_a_family_halves_what_is_above_its_floor():
    family = Family("a", 100, 60, 5)
    assert (family.after(1), family.after(6), family.after(11)) == (100, 80, 70)


@pytest.mark.parametrize("alive", (1, 2, 3, 4))
def test_no_more_families_than_may_are_alive(alive):
    tries = climb(200, alive)
    # behind the first tries of all there are only turns
    last = [family for family, _ in tries[-ROUNDS * alive :]]
    assert len(set(last)) == alive and all(last.count(each) == ROUNDS for each in set(last))


def test_who_keeps_one_alive_gives_up_what_begins_behind():
    assert list(spent(climb(TRIES, 1)).values())[1:] == [1, 1, 1]


def test_what_the_chapter_says():
    best = {alive: min(climb(TRIES, alive), key=lambda each: each[1]) for alive in (1, 2, 3, 4)}
    lowest = min(FAMILIES, key=lambda family: family.floor)
    assert best[1][0] is FAMILIES[0] and lowest.start == max(each.start for each in FAMILIES)
    # three find it, four later, for the dead end has its share
    assert best[3][0] is best[4][0] is lowest and best[3][1] < best[4][1] < best[2][1] < best[1][1]
    assert spent(climb(TRIES, 4))["a dead end"] > 10 > spent(climb(TRIES, 3))["a dead end"]


def test_frames_say_what_they_show():
    stepper = search_stepper()
    assert [frame.value[0] for frame in stepper.frames] == ["1", "2", "4", "3"]
    for frame in stepper.frames:
        tries = climb(TRIES, int(frame.value[0]))
        best = min(us for _, us in tries)
        assert f"{best:.0f} us" in frame.readout and frame.readout in frame.figure.alt
        for name, count in spent(tries).items():
            assert f"{name} {count}" in frame.readout


@pytest.mark.parametrize("count", (1, 12, 144))
def test_a_lab_may_ask_for_other_lengths(count):
    assert f"{count} tries" in search_frame(2, count).readout
