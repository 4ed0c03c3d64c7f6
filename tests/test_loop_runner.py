"""Whatever a candidate does has its name in the end, and the next one is not harmed by it."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from candidates import CALLS, FILES, HEAD, LEAVES, one_file

from qrlib.bench.results import ROOT
from qrlib.loop import guard, process, runner
from qrlib.loop.runner import Limits, evaluate
from qrlib.loop.verdicts import VERDICTS, group
from qrlib.loop.worker import WATCHED
from qrlib.matrices import BENCHMARK_CASES, TEST_CASES, Case

CASE = Case(2, 12, 1, "dense")
PRINTED = {
    "ends its process": "so long\n",
    "stops its guard, has a pool and no output, and spoils results that have left": "spoiled\n",
}
QUICK = {"device": "cpu", "full": True, "runs": 3, "sweep": 1 << 12, "commit": "0123456"}
# all of one file are judged by one process
pytestmark = pytest.mark.xdist_group("loop")
# of a process that is left behind it takes as long to see it
process.GRACE = 1.0


@pytest.fixture(autouse=True)
def own_turn(tmp_path, monkeypatch):
    """Nobody else on this machine is waited for."""
    monkeypatch.setattr(runner, "gettempdir", lambda: tmp_path)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    path = tmp_path_factory.mktemp("loop") / "candidate.py"

    def judged(source, mode="bench", **more):
        path.write_text(source)
        options = QUICK | {"cases": [CASE], "limits": Limits(2.0, 384 << 20)} | more
        return evaluate(path, mode, **options)

    return judged


@pytest.fixture(scope="module")
def calls(judged):
    """The outcome of all CALLS in one process."""
    cases = [CASE._replace(batch=k + 1) for k in range(len(CALLS))]
    return judged(one_file(), cases=cases, limits=Limits(60.0, 1 << 30))


def processes(judge=None):
    """Ids of processes that candidates of a judge, by default of this one, have begun."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            found += [entry.name] * (
                f"{process.MARK}={judge or os.getpid()}-".encode() in environment
            )
    return found


@pytest.mark.parametrize("what", CALLS)
def test_a_call_gets_its_verdict_and_the_next_is_unharmed(calls, what):
    _, verdict, message = CALLS[what]
    row = calls.rows[list(CALLS).index(what)]
    assert row["verdict"] == verdict, row
    assert re.search(message, row["message"]), row["message"]
    if verdict == "passed":
        assert row["runs"] == 3 and row["q25_us"] <= row["median_us"] <= row["q75_us"]
        assert 0 < row["certificate"]["factor"] < 2 and 0 < row["certificate"]["orthogonality"] < 5
    else:
        assert row["runs"] == 0 and row["median_us"] is None


def test_what_rejects_speaks_for_all_and_nothing_has_a_score(calls):
    bad = sum(verdict != "passed" for _, verdict, _ in CALLS.values())
    assert calls.verdict == "overwrites" and calls.geomean_us is None
    assert calls.message.endswith(f"it was written into ({bad} of {len(CALLS)} cases)")
    assert calls.basis.startswith(f"bench of {len(CALLS)} cases (")
    told = str(calls)
    assert "candidate, bench: OVERWRITES" in told and VERDICTS["overwrites"].todo in told
    assert not processes()


def test_what_is_printed_is_kept_without_its_middle(calls):
    assert calls.printed.startswith("to stdout\nto stderr\nxxx")
    assert re.search(r"\n\[\d{6} characters\]\nx", calls.printed)
    assert len(calls.printed) < 3 * process.PRINTED


@pytest.mark.parametrize("what", FILES)
def test_a_file_gets_its_verdict_and_leaves_nothing(judged, what):
    source, verdict, message = FILES[what]
    outcome = judged(f"{HEAD}\n{source}")
    assert outcome.verdict == verdict, outcome
    assert re.search(message, outcome.message.partition(", cond 1: ")[2] or outcome.message), (
        outcome.message
    )
    assert outcome.passed == (verdict == "passed") == (outcome.geomean_us is not None)
    assert outcome.passed or f"{verdict} ({group(verdict)})" in str(outcome)
    assert outcome.printed == PRINTED.get(what, outcome.printed)
    assert len(outcome.printed) < 3 * process.PRINTED
    assert not processes()


def test_every_verdict_that_a_candidate_can_cause_is_planted():
    planted = {verdict for _, verdict, _ in (*CALLS.values(), *FILES.values())}
    assert planted == set(VERDICTS) - {"interrupted"}
    assert {group(verdict) for verdict in VERDICTS} == {
        "passed",
        "failed",
        "rejected",
        "inconclusive",
    }
    assert group("of a later version") == "inconclusive"


def test_a_leaderboard_is_all_tests_and_all_benchmarks(judged):
    outcome = judged(HEAD, "leaderboard", cases=None, full=False)
    assert outcome.passed and len(outcome.rows) == len(TEST_CASES) + len(BENCHMARK_CASES)
    timed = [row["median_us"] for row in outcome.rows if row["runs"]]
    assert len(timed) == 12 and outcome.rows[-1]["runs"] == 3
    product = 1.0
    for us in timed:
        product *= us ** (1 / 12)
    assert outcome.geomean_us == pytest.approx(product)
    assert outcome.basis.startswith("leaderboard of all 12 small cases on ")
    assert len(outcome.sha256) == 64 and outcome.provenance["commit"] == "0123456"


def test_seeds_are_new_unless_given(judged, calls):
    one, two = (judged(HEAD, "test", seed=5) for _ in range(2))
    assert one.seed == 5 and one.rows == two.rows and one.passed
    assert one.seed != calls.seed
    assert one.rows[0]["certificate"] != calls.rows[1]["certificate"]


def test_a_run_that_is_stopped_has_an_outcome(judged, monkeypatch):
    def stopped(self, case):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Judge, "_judge", stopped)
    outcome = judged(HEAD, "test")
    assert (outcome.verdict, group(outcome.verdict)) == ("interrupted", "inconclusive")
    assert not processes()


def test_a_judge_that_is_killed_takes_all_of_the_candidate_with_it(tmp_path):
    # two that it forked, and a shell's that does not know where it is from
    (tmp_path / "candidate.py").write_text(LEAVES.format(folder=tmp_path))
    code = "import sys; from qrlib.loop import evaluate; evaluate(sys.argv[1], device='cpu')"
    command = [sys.executable, "-c", code, tmp_path / "candidate.py"]
    (tmp_path / "homes").mkdir()
    more = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "homes")}
    judge = subprocess.Popen(command, env=os.environ | more)
    deadline = time.monotonic() + 60
    while len(begun := list(tmp_path.glob("[0-9]*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    judge.kill()
    judge.wait()
    # each has made a file of its number
    assert len(begun) == 4
    gone = time.monotonic() + 5
    left = begun
    while left and time.monotonic() < gone:
        left = [each for each in begun if _alive(each.name)]
        # nor is there a folder of results any more
        left += [each for each in (tmp_path / "homes").iterdir() if each.is_dir()]
        time.sleep(0.05)
    assert not left and not processes(judge.pid)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_does_not_read_is_not_waited_for():
    asked = process.Process("cpu", Limits(60.0))
    with asked.alive():
        asked.ask("start", memory=0)
        # more than a pipe has room for arrives all the same
        assert asked.ask("disagree", times=20_000 * [[50.0, 0.0, 50.0]])["said"] is None
        os.kill(asked.pid, signal.SIGSTOP)
        with pytest.raises(process.Slow, match="within 1 s; it did not come"):
            asked.ask("disagree", 1.0, times=20_000 * [[50.0, 0.0, 50.0]])
    assert not processes()


@pytest.mark.parametrize("goes", (False, True))
def test_nothing_is_begun_without_a_guard(monkeypatch, goes):
    parents, begun = [7], []
    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(os, "getppid", lambda: parents[-1])
    monkeypatch.setattr(os, "execv", lambda path, command: begun.append(command))
    # it ends just before its end would be told
    monkeypatch.setattr(guard, "prctl", lambda *given: parents.append(1 if goes else 7))
    guard.run(["true"], 7)
    assert begun == ([] if goes else [["true"]])


def test_a_stage_is_a_candidate():
    outcome = evaluate("s03_blocked", cases=[CASE], **QUICK)
    assert outcome.passed and outcome.candidate == "s03_blocked" and outcome.sha256 is None


@pytest.mark.parametrize(
    "arguments, message",
    (
        ({"candidate": "nothing.py"}, "got 'nothing.py'; `python -m qrlib.loop new NAME`"),
        ({"mode": "race"}, "mode must be one of test, bench, leaderboard; got 'race'"),
        ({"cases": [22]}, "a case must be 0 to 21 in this mode; got 22"),
        ({"mode": "leaderboard", "cases": [1]}, "a leaderboard has all cases"),
        ({"seed": -1}, "a seed must be a whole number, 0 or more, and at most 4,.*; got -1"),
        ({"seed": 1 << 63}, "a seed must be .*; got 9223372036854775808"),
        ({"seed": 1.5}, "a seed must be a whole number, .*; got 1.5"),
        ({"cases": []}, "there must be a case; got none"),
        ({"runs": 0}, "the runs of a case must be a whole number, more than 0.*; got 0"),
        ({"runs": 2.5}, "the runs of a case must be a whole number.*; got 2.5"),
        ({"sweep": -1}, "the bytes of a sweep must be a whole number, .*; got -1"),
        *(
            ({"seconds": x}, f"the seconds of a case must be a number, more than 0.*; got {x!r}")
            for x in (math.nan, math.inf, -1.0, 0, "2")
        ),
    ),
)
def test_a_question_that_makes_no_sense_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate(**{"candidate": "torch", "device": "cpu"} | arguments)


@pytest.mark.parametrize("x", (math.nan, math.inf, -1.0, 0, "2", True, None))
@pytest.mark.parametrize("key", ("seconds", "memory"))
def test_a_limit_that_is_none_is_an_error(key, x):
    with pytest.raises(ValueError, match=f"{key}.* must be a number, more than 0.*; got {x!r}"):
        Limits(**{key: x})


def test_the_largest_seed_is_one():
    assert evaluate("torch", cases=[CASE], seed=runner.MOST_SEED, **QUICK).passed


def test_who_is_timed_is_alone():
    said, order = [], []

    def second():
        with runner.alone(said.append):
            order.append("second")

    with runner.alone(said.append):
        other = threading.Thread(target=second)
        other.start()
        while not said:
            time.sleep(0.01)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
    assert said == ["another candidate is being timed on this machine; waiting for it"]


def test_a_folder_without_room_is_no_fault_of_the_candidate(judged, monkeypatch):
    judge = runner.Judge.case

    def without(self, *arguments):
        # where results are to be written there is nothing
        self.process.folder += "/gone"
        return judge(self, *arguments)

    monkeypatch.setattr(runner.Judge, "case", without)
    with pytest.raises(OSError, match="must have room for a result of 1248 bytes"):
        judged(HEAD, "test")
    assert not processes()


def test_a_candidate_that_fills_the_folder_has_a_verdict(judged, monkeypatch):
    fills = """
import resource
with open("much", "wb") as file:
    file.write(bytes(2000))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
"""
    # a file of its process cannot grow, but others can
    outcome = judged(f"{HEAD}{fills}", "test")
    assert outcome.verdict == "patched" and "no way out for one: " in outcome.message

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process, "_fill", full)
    outcome = judged(f"{HEAD}{fills}", "test")
    assert outcome.verdict == "floods", outcome
    assert "room for a result of 1,248 bytes; it has filled the folder" in outcome.message
    assert outcome.message.endswith("with 2,000")


def test_the_clock_and_the_judge_are_watched():
    names = {holder.__name__ for holder in WATCHED}
    assert {"os", "json", "builtins", "threading"} <= names
    assert {"time", "torch.cuda", "Event", "torch.linalg", "qrlib.certificate", "Clock"} <= names
