"""The ledger loses no line that was once whole: to a second writer, a kill, or a full disk."""

import json
import signal
import subprocess
import sys
import time

import pytest

from qrlib.loop import ledger

WRITER = """
import sys
from qrlib.loop.ledger import append
path, count, words = sys.argv[1], int(sys.argv[2]), "x" * int(sys.argv[3])
for k in range(count):
    print(append(path, "try", candidate=sys.argv[4], words=words)["id"], flush=True)
"""


def writer(path, count, size, name="a"):
    command = [sys.executable, "-c", WRITER, str(path), str(count), str(size), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_entries_come_back_in_order_with_number_and_date(tmp_path):
    path = tmp_path / "ledger.jsonl"
    assert ledger.read(path) == ledger.Log([], [])
    first = ledger.append(path, "try", candidate="a", geomean_us=2.5, words="\u00fc\nb")
    second = ledger.append(path, "family", family="b")
    log = ledger.read(path)
    assert log.entries == [first, second] and not log.damaged
    assert [each["id"] for each in log.entries] == [1, 2]
    assert first["date"].endswith("+00:00") and first["words"] == "\u00fc\nb"
    assert log.tries == [first]
    assert path.read_bytes().count(b"\n") == 2


def test_what_cannot_be_an_entry_is_refused_and_leaves_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(ValueError, match="kind must be one of try, family; got 'tries'"):
        ledger.append(path, "tries")
    with pytest.raises(ValueError, match="JSON"):
        ledger.append(path, "try", candidate="a", geomean_us=float("nan"))
    assert ledger.read(path) == ledger.Log([], [])


@pytest.mark.parametrize(
    "torn", (b'{"id": 2, "kind": "try", "candi', b"\x00\x00\xff", b'"text"', b"[" * 9000)
)
def test_a_torn_line_is_told_kept_and_passed_over(tmp_path, torn):
    path = tmp_path / "ledger.jsonl"
    first = ledger.append(path, "try", candidate="a")
    with path.open("ab") as file:
        file.write(torn)
    log = ledger.read(path)
    assert log.entries == [first]
    (told,) = log.damaged
    assert told.startswith("line 2 is no whole entry") and f"{len(torn)} bytes" in told
    second = ledger.append(path, "try", candidate="b")
    log = ledger.read(path)
    assert log.entries == [first, second] and second["id"] == 2
    assert len(log.damaged) == 1 and torn in path.read_bytes()


def test_a_last_line_without_its_newline_is_whole(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = ledger.append(path, "try", candidate="a")
    path.write_bytes(path.read_bytes().rstrip())
    second = ledger.append(path, "try", candidate="b")
    log = ledger.read(path)
    assert log.entries == [first, second] and not log.damaged


def test_a_kill_loses_at_most_the_line_being_written(tmp_path):
    path = tmp_path / "ledger.jsonl"
    acknowledged = 0
    # lines of 200 kB, so that many a kill comes in the middle of one
    for k in range(8):
        process = writer(path, 200, 200_000)
        # by then it writes
        said = int(process.stdout.readline())
        time.sleep(0.002 * k)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
        assert process.returncode == -signal.SIGKILL
        acknowledged = max([said, *map(int, rest.split())])
        log = ledger.read(path)
        numbers = [each["id"] for each in log.entries]
        assert numbers == list(range(1, len(numbers) + 1))
        # one more may be whole that nobody was told of
        assert len(numbers) - acknowledged in (0, 1)
        assert all(len(each["words"]) == 200_000 for each in log.entries)
        assert len(log.damaged) <= k + 1
    assert acknowledged >= 8


def test_two_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    writers = [writer(path, 100, 3000, name) for name in "ab"]
    told = [sorted(map(int, each.communicate()[0].split())) for each in writers]
    log = ledger.read(path)
    assert not log.damaged
    assert [each["id"] for each in log.entries] == list(range(1, 201))
    for name, ids in zip("ab", told):
        assert [each["id"] for each in log.entries if each["candidate"] == name] == ids


def test_a_full_device_says_so():
    with pytest.raises(OSError, match="No space left on device; nothing was recorded: make room"):
        ledger.append("/dev/full", "try", candidate="a")


def test_a_disk_that_fills_up_in_a_line_leaves_no_half_of_it(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = ledger.append(path, "try", candidate="a")
    size = path.stat().st_size
    code = (
        "import resource, signal, sys; from qrlib.loop.ledger import append;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 50}, {size + 50}));"
        "append(sys.argv[1], 'try', candidate='b', words='x' * 100)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert "only 50 of" in done.stderr and "nothing was recorded" in done.stderr
    # what was to be recorded is in the message
    assert json.dumps("x" * 100) in done.stderr
    assert ledger.read(path) == ledger.Log([first], [])
    assert path.stat().st_size == size
    assert ledger.append(path, "try", candidate="b")["id"] == 2


def tried(k, name, us, basis="one"):
    return {"id": k, "kind": "try", "candidate": name, "geomean_us": us, "basis": basis}


def test_the_record_is_of_one_basis_and_of_what_has_a_score():
    entries = [
        tried(1, "a", 100.0),
        tried(2, "b", None),
        tried(3, "c", 90.0),
        tried(4, "d", 95.0),
        tried(5, "e", 1.0, "another"),
        tried(6, "a", 80.0),
    ]
    log = ledger.Log(entries, [])
    assert [each["id"] for each in log.record()] == [1, 3, 6]
    assert [each["id"] for each in log.scored()] == [1, 3, 4, 6]
    assert [each["id"] for each in log.record("another")] == [5]
    assert log.find("a")["id"] == 6 and log.find("#1")["id"] == log.find(1)["id"] == 1
    with pytest.raises(ValueError, match="got 'z'; the last ones are: #1 a"):
        log.find("z")
    with pytest.raises(ValueError, match="the ledger is empty"):
        ledger.Log([], []).find("z")


def test_a_system_without_locks_is_told_where_there_are_some():
    said = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['fcntl'] = None; import qrlib.loop.ledger"],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 1 and "Linux or macOS" in said.stderr and "WSL2" in said.stderr
