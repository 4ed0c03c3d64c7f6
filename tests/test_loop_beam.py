"""The board says what is alive, warns of the top of a hill, and lets no idea die for nothing."""

import pytest
from logs import log, tried

from qrlib.loop import beam, history, ledger
from qrlib.loop.beam import REASONS, board, families, near_misses, pairs, warnings


def opened(number, name, role="exploit", cost="other", hypothesis=""):
    about = {"family": name, "role": role, "cost": cost, "hypothesis": hypothesis}
    date = "2001-02-03T04:05:06+00:00"
    return {"id": number, "kind": "family", "date": date, "event": "open"} | about


def full(*entries):
    """With three families alive, of the roles that there must be."""
    return log(
        opened(1, "a", "exploit", "panel"),
        opened(2, "b", "near miss", "update"),
        opened(3, "c", "structural", "launch"),
        *entries,
    )


def test_a_full_board_has_nothing_to_warn_of():
    assert warnings(full(tried(4, 100.0, family="a"), tried(5, 90.0, family="b"))) == []
    told = "\n".join(board(full(tried(4, 100.0, family="a"))))
    assert "the record is #4 c4, 100 us, one" in told
    for words in ("exploit\n  a ", "near miss\n  b ", "structural\n  c ", "1 try, best 100 us"):
        assert words in told


def test_too_few_and_too_many_are_told():
    few = warnings(log(opened(1, "a", "clean-up")))
    assert any(each.startswith("3 to 5 families must be alive; 1 is: open") for each in few)
    assert "clean-up is for between other work; nothing else is alive" in few
    roles = [each for each in few if each.startswith("one family at least must have the role")]
    assert len(roles) == 3
    many = warnings(full(*(opened(4 + k, f"d{k}") for k in range(3))))
    assert many == ["3 to 5 families must be alive; 6 are: kill one, with a reason"]


def test_small_variants_of_one_family_are_the_top_of_a_hill():
    hill = [tried(4 + k, 100 + 0.2 * k, family="a") for k in range(5)]
    (told,) = warnings(full(*hill))
    assert told.startswith("the last 5 tries are small variants of a, within 2 % of each other")
    # one large step, or one try of another idea, and it is none
    assert warnings(full(*hill[:4], tried(9, 90.0, family="a"))) == []
    assert warnings(full(*hill[:4], tried(9, 100.0, family="b"))) == []
    assert warnings(full(*hill[:4])) == []


def test_tries_that_say_nothing_are_told():
    lost = [tried(4 + k, verdict=("timed out", "hung")[k % 2], family="a") for k in range(5)]
    (told,) = warnings(full(*lost))
    assert told.startswith("the last 5 tries were inconclusive")
    assert warnings(full(*lost[:4], tried(9, verdict="wrong", family="a"))) == []


def test_gains_are_over_the_parent_or_the_record_so_far():
    found = full(
        tried(4, 100.0, family="a"),
        tried(5, 80.0, family="b"),
        tried(6, 99.0, family="c", parent="#4"),
        tried(7, 88.0, family="c", parent="c4"),
        tried(8, 100.0, family="b"),
        tried(9, 50.0, family="c", basis="another"),
        tried(10, 70.0, family="a+b"),
        tried(11, 70.0, family="a"),
    )
    by_name = {each.name: each for each in families(found)}
    assert by_name["a"].gains == [pytest.approx(0.0)]
    assert by_name["b"].gains == [pytest.approx(0.25), pytest.approx(-0.2)]
    assert by_name["c"].gains == [pytest.approx(100 / 99 - 1), pytest.approx(100 / 88 - 1)]
    # a try of two is one of each, and no gain of either alone
    assert [len(by_name[name].tries) for name in "abc"] == [3, 3, 3]
    assert by_name["a"].best["id"] == 10 and by_name["c"].best["id"] == 7


def test_neutral_ideas_about_different_costs_are_to_be_combined():
    start = tried(4, 100.0, family="base")
    neutral = [tried(5, 99.5, family="a"), tried(6, 100.5, family="b"), tried(7, 99.0, family="c")]
    names = [(x.name, y.name) for x, y in pairs(full(start, *neutral))]
    assert names == [("a", "b"), ("a", "c"), ("b", "c")]
    told = "\n".join(board(full(start, *neutral)))
    assert "not combined so far: a (panel) and b (update), each neutral alone" in told
    # once they were tried together, or one has gained, or both are about one cost
    both = tried(8, 98.0, family="b+a")
    assert ("a", "b") not in [(x.name, y.name) for x, y in pairs(full(start, *neutral, both))]
    gained = tried(8, 90.0, family="a")
    assert [(x.name, y.name) for x, y in pairs(full(start, *neutral, gained))] == [("b", "c")]
    same = opened(8, "b", cost="panel")
    found = pairs(full(start, *neutral, same))
    assert ("a", "b") not in [(x.name, y.name) for x, y in found]


def test_near_misses_are_near_or_kept():
    found = full(
        tried(4, 100.0, family="a"), tried(5, 104.0, family="b"), tried(6, 106.0, family="c")
    )
    assert [each.name for each in near_misses(found)] == ["b"]
    kept = {"id": 7, "kind": "family", "date": "2001", "event": "keep", "family": "c"}
    kept |= {"because": "it gains alone"}
    found.entries.append(kept)
    assert [each.name for each in near_misses(found)] == ["b", "c"]
    told = list(board(found))
    assert any(line.startswith("  b ") and line.endswith(", near the record") for line in told)
    assert any(line.startswith("  c ") and line.endswith(", kept") for line in told)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for name in "ab":
        beam.open_family(path, name, role="exploit", cost="panel", hypothesis="why")
    return path


def add(path, us=None, **more):
    entry = tried(0, us, **more)
    own = {key: x for key, x in entry.items() if key not in ("id", "kind", "date")}
    return ledger.append(path, "try", **own)


def test_a_family_is_killed_for_a_reason(path):
    for arguments, message in (
        (("a", None, "seen"), "killed for one of these reasons: incorrect: it cannot be made"),
        (("a", "incorrect", " "), "a decision must say what was seen"),
        (("z", "incorrect", "seen"), "a family must be alive; got 'z', alive are: a, b"),
        (("a", "regresses", "seen"), "two conclusive tries at least must speak against a; there a"),
    ):
        with pytest.raises(ValueError, match=message):
            beam.kill(path, *arguments)
    add(path, 100.0, family="a")
    # one that says nothing is no second one
    add(path, verdict="timed out", family="a")
    with pytest.raises(ValueError, match="there is one: a single failure is none of an idea"):
        beam.kill(path, "a", "regresses", "seen")
    add(path, 120.0, family="a")
    with pytest.raises(ValueError, match="must have been combined with another; try a.another"):
        beam.kill(path, "a", "loses combined", "seen")
    beam.kill(path, "a", "regresses", "120 after 100")
    told = "\n".join(board(ledger.read(path)))
    assert f"killed\n  a                    {REASONS['regresses']}: 120 after 100" in told
    with pytest.raises(ValueError, match="alive are: b"):
        beam.kill(path, "a", "incorrect", "seen")
    # it may come back
    beam.open_family(path, "a", role="structural")
    assert [each.name for each in families(ledger.read(path)) if not each.killed] == ["a", "b"]


def test_what_gains_again_and_again_is_not_killed_before_it_is_combined(path):
    for us in (100.0, 90.0, 81.0, 82.0):
        add(path, us, family="a")
    with pytest.raises(ValueError, match="a has gained 2 times, so it is a near miss; combine it"):
        beam.kill(path, "a", "regresses", "seen")
    beam.keep(path, "a", "gains twice")
    add(path, 95.0, family="a+b")
    beam.kill(path, "a", "loses combined", "95 with b")
    assert families(ledger.read(path))[0].killed == ("loses combined", "95 with b")


def test_names_roles_and_costs_are_known(path):
    for more, message in (
        ({"name": "a+b", "role": "exploit"}, "without [+], which joins two"),
        ({"name": "c", "role": "hero"}, "role must be one of exploit, .*; got 'hero'"),
        ({"name": "c", "role": "exploit", "cost": "luck"}, "cost must be one of panel, "),
    ):
        with pytest.raises(ValueError, match=message):
            beam.open_family(path, **more)


def test_a_family_that_is_open_keeps_what_is_not_said(path):
    with pytest.raises(ValueError, match="a is open already: role exploit, cost panel, hypo"):
        beam.open_family(path, "a")
    beam.open_family(path, "a", role="structural")
    beam.kill(path, "a", "in the way", "seen")
    beam.open_family(path, "a")
    beam.open_family(path, "c")
    add(path, 100.0, family="d")
    beam.open_family(path, "d")
    log = ledger.read(path)
    told = {each.name: (each.role, each.cost, each.hypothesis) for each in families(log)}
    assert told == {
        "a": ("structural", "panel", "why"),
        "b": ("exploit", "panel", "why"),
        "c": ("exploit", "other", ""),
        "d": ("exploit", "other", ""),
    }


def test_a_damaged_line_is_told_on_the_board(path):
    with path.open("a") as file:
        file.write('{"id": 3')
    assert any("line 3 is no whole entry" in line for line in board(ledger.read(path)))


def test_our_own_way_has_a_board():
    assert any("the record is" in line for line in board(history.load("cases")))
