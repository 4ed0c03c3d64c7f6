"""python -m qrlib.loop: every command, what it prints, and what it says to nonsense."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from candidates import HEAD
from logs import log, tried

from qrlib.bench import results
from qrlib.bench.results import ROOT
from qrlib.loop import history, ledger, profiler, runner, shown, workspace
from qrlib.loop.__main__ import main
from qrlib.loop.report import report
from qrlib.matrices import BENCHMARK_CASES
from qrlib.stages import POLICIES


@pytest.fixture
def here(tmp_path, monkeypatch):
    """In a new workspace, where nobody else on this machine is waited for."""
    monkeypatch.setattr(runner, "gettempdir", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["new", "here"]) == 0
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def append(path, *entries):
    for each in entries:
        own = {key: x for key, x in each.items() if key not in ("id", "kind", "date")}
        ledger.append(path, each["kind"], **own)


def test_a_workspace_has_the_problem_the_rules_a_candidate_and_a_ledger(here, capsys):
    assert sorted(each.name for each in here.iterdir()) == [
        "candidate.py",
        "ledger.jsonl",
        "notes.md",
        "problem.md",
    ]
    problem, notes = ((here / f"{name}.md").read_text() for name in ("problem", "notes"))
    assert problem.count("\n- ") == len(BENCHMARK_CASES) + 3 and "{" not in problem + notes
    assert "<= 20 n eps |A|" in problem and "<= 100 n eps" in problem
    for words in ("# Standing rules", "is no evidence", "no cost (a profile says"):
        assert words in notes
    assert main(["log"]) == 0
    assert "the ledger is empty" in capsys.readouterr().out
    assert main(["new", str(here)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_first_candidate_is_judged_recorded_and_shown(here, capsys):
    asked = ["bench", "candidate.py", "--case", "0", "--runs", "3", "--device", "cpu"]
    about = ["--family", "library", "--idea", "LAPACK", "--prediction", "none", "--seed", "3"]
    assert main([*asked, *about]) == 0
    assert "recorded as #1 in ledger.jsonl" in capsys.readouterr().out
    (entry,) = ledger.read("ledger.jsonl").entries
    assert entry["verdict"] == "passed" and entry["family"] == "library" and entry["seed"] == 3
    assert entry["gates"] == {"factor": 20, "orthogonality": 100}
    command = entry["provenance"]["command"]
    assert command.startswith("python -m qrlib.loop bench candidate.py --case 0 --runs 3")
    kept = here / "tried" / f"{entry['sha256'][:12]}.py"
    assert kept.read_text() == (here / "candidate.py").read_text()
    assert main(["show", "1"]) == 0
    told = capsys.readouterr().out
    assert "#1 candidate, bench: passed" in told and "LAPACK" in told and "4 x 7 dense" in told
    # one that fails is a try, too
    (here / "candidate.py").write_text("custom_kernel = 1\n")
    assert main([*asked, "--parent", "#1"]) == 1
    assert "DOES NOT IMPORT" in capsys.readouterr().out
    assert main(["diff", "1", "2"]) == 0
    told = capsys.readouterr().out
    assert "verdict: passed | does not import" in told and "\n+custom_kernel = 1" in told
    assert main(["log"]) == 0
    assert re.search(
        r"#1 .* candidate +library +bench +passed +[\d.,]+ us \*\n#2 .*does not import",
        capsys.readouterr().out,
    )


def test_what_is_kept_is_the_file_that_was_judged(here):
    # somebody goes on with it while it is judged
    (here / "candidate.py").write_text(f"{HEAD}\nopen(__file__, 'w').write('gone on')\n")
    was = (here / "candidate.py").read_bytes()
    outcome = runner.evaluate("candidate.py", cases=[0], device="cpu", commit="0123456")
    (here / "candidate.py").unlink()
    entry = outcome.record("ledger.jsonl")
    assert outcome.passed and entry["sha256"] == hashlib.sha256(was).hexdigest()
    assert (here / "tried" / f"{entry['sha256'][:12]}.py").read_bytes() == was
    # a disk that has room for a line and no more keeps the line
    (here / "full").mkdir()
    (here / "full" / "tried").touch()
    with pytest.raises(OSError, match="tried"):
        outcome.record("full/ledger.jsonl")
    assert len(ledger.read("full/ledger.jsonl").entries) == 1


def test_who_stops_it_is_told_that_nothing_was_recorded(here, monkeypatch, capsys):
    def stopped(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "evaluate", stopped)
    assert main(["test", "candidate.py"]) == 2
    assert "stopped from the keyboard; nothing was recorded" in capsys.readouterr().err


def test_who_reads_no_further_is_told_nothing(here):
    append("ledger.jsonl", *(tried(k, 400.0, idea="x" * 90) for k in range(1, 900)))
    command = [sys.executable, "-m", "qrlib.loop", "log"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as reader:
        assert reader.stdout.readline().startswith("#1 ")
        reader.stdout.close()
        assert reader.stderr.read() == ""
    assert reader.returncode == 0


def test_a_profile_names_operators_and_what_is_missing(here, capsys):
    assert main(["profile", "candidate.py", "--case", "0", "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"4 x 7 dense, cond 1: [\d.,]+ us a call\n  operator", told)
    assert re.search(r"aten::geqrf +\d +\d+ %", told)
    assert "missing here: an NVIDIA GPU, so there are operators in place of kernels" in told
    (here / "candidate.py").write_text("1 / 0\n")
    assert main(["profile", "candidate.py", "--device", "cpu"]) == 2
    assert "was not profiled: does not import: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ("test", "bench", "profile"))
def test_a_gpu_that_is_not_there_is_told(here, capsys, command):
    assert main([command, "candidate.py", "--device", "cuda"]) == 2
    assert "device 'cuda' needs an NVIDIA GPU" in capsys.readouterr().err


# what Nsight Compute 2025 writes with --csv --page raw --print-units base, shortened
NCU = """==PROF== Connected to process 7
==PROF== Profiling "panel_kernel" - 0: 0%....100% - 1 pass
"ID","Process ID","Kernel Name","Device","dram__bytes.sum","gpu__time_duration.sum"
"","","","","byte","ns"
"0","7","panel_kernel(float *, int)","0","1,000,000","2,000"
"1","7","panel_kernel(float *, int)","0","3000000","2000"
"2","7","at::native::gemm<float>(T1)","0","4000000","4000"
"""


def test_counters_are_put_together_kernel_by_kernel():
    head, *lines = profiler.counted(NCU, "NVIDIA H200")
    assert head.split()[-2:] == ["of", "memory"]
    assert len(lines) == 2
    # 4 MB in 4 us each, of 4.28 TB/s
    for line, name in zip(lines, ("panel_kernel (panel)", "at::native::gemm<float> (other)")):
        assert line.strip().startswith(name) and " 50 % " in line and "23 %" in line
    (said,) = profiler.counted("==ERROR== No permission\n", "NVIDIA H200")
    assert said == "missing here: counters; ncu said: ==ERROR== No permission"


def test_beam_lineage_and_report_read_the_ledger(here, capsys):
    append("ledger.jsonl", tried(1, 400.0, idea="blocks"), tried(2, verdict="wrong"))
    append("ledger.jsonl", tried(3, 200.0, idea="panels", hypothesis="h", prediction="x2"))
    opened = ["beam", "open", "panels", "--role", "structural", "--cost", "panel"]
    assert main([*opened, "--hypothesis", "fewer launches"]) == 0
    told = capsys.readouterr().out
    assert "the record is #3 c3, 200 us, one" in told and "fewer launches" in told
    assert main(["beam", "kill", "panels", "--reason", "no cost", "--because", "seen"]) == 0
    assert "it saves no longer matters: seen" in capsys.readouterr().out
    assert main(["beam", "kill", "panels", "--reason", "no cost", "--because", "seen"]) == 2
    assert "a family must be alive; got 'panels'" in capsys.readouterr().err
    pytest.importorskip("matplotlib")
    assert main(["lineage", "-o", "lineage.svg"]) == 0
    assert "panels" in Path("lineage.svg").read_text()
    assert main(["report", "-o", "report.md", "--picture", "lineage.svg"]) == 0
    text = Path("report.md").read_text()
    assert "by a factor of 2" in text and "](lineage.svg)" in text
    assert "| #3 | h | x2 | 200 us |" in text


def test_a_bundle_is_written_and_judged(here, capsys):
    assert main(["bundle", "s03_blocked", "-o", "one.py"]) == 0
    assert "custom_kernel(data) -> (H, tau)" in capsys.readouterr().out
    outcome = runner.evaluate("one.py", cases=[(2, 12, 1, "dense")], device="cpu", full=True)
    assert outcome.passed and outcome.candidate == "one"
    assert main(["bundle", "s06_update", "-o", "two.py", "--precision", "fast"]) == 2
    assert "precision must be fp32" in capsys.readouterr().err and not Path("two.py").exists()


@pytest.mark.parametrize(
    "arguments, message",
    (
        (["log", "--ledger", "none.jsonl"], "the ledger must be a file; got none.jsonl"),
        (["show", "9"], "there must be a try of that number or name; got '9'"),
        (["test", "none.py"], "got 'none.py'"),
        (["test", "torch", "--ledger", "cases"], "is our own way, and can only be read"),
        (["test", "torch", "--device", "cpu", "--case", "99"], "0 to 21 in this mode; got 99"),
        (["test", "torch", "--ledger", "none/x.jsonl"], "must be a file to write to; got none/x"),
        (["test", "torch", "--ledger", "."], "must be a file to write to; got .: Is a directory"),
        (["test", "torch", "--parent", "#9"], "a try of that number or name; got '#9'"),
        *(
            ([mode, "torch", option, x], f"{option} must be {end}; got {x}\n")
            for mode in ("test", "bench", "leaderboard", "profile")
            for option, x, end in (
                ("--limit", "0.0", "a number, more than 0, and finite"),
                ("--limit", "nan", "a number, more than 0, and finite"),
                ("--limit", "inf", "a number, more than 0, and finite"),
                ("--memory", "-5", "a whole number, more than 0, and at most 1,099,511,627,776"),
                (
                    "--memory",
                    "9" * 20,
                    "a whole number, more than 0, and at most 1,099,511,627,776",
                ),
            )
        ),
        *(
            ([mode, "torch", option, x], f"of a case must be {kind} number, more than 0")
            for mode in ("bench", "leaderboard")
            for option, kind, numbers in (
                ("--seconds", "a", ("nan", "inf", "0", "-1")),
                ("--runs", "a whole", ("0", "-1")),
            )
            for x in numbers
        ),
        *(([mode, "torch", "--seed", "-1"], "a seed must be") for mode in ("test", "profile")),
        (["profile", "torch", "--case", "12"], "a case must be 0 to 11 in this mode; got 12"),
        (
            ["lineage", "--ledger", "cases", "--basis", "x"],
            "got 'x'; there are: 12 cases on NVIDIA",
        ),
        (["report", "--ledger", "cases", "--basis", "x"], "got 'x'; there are: 12 cases on NVIDIA"),
        (["report", "--basis", "x"], "got 'x'; there are: none, for no try has a score"),
        (["beam", "--role", "exploit"], "beam alone must do without --role, which it would not"),
        (["beam", "keep", "a", "--cost", "panel"], "beam keep must do without --cost"),
        (["beam", "open", "a", "--because", "b"], "beam open must do without --because"),
        (["beam", "open", "a\nb"], "a name of at most 40 characters in one line, without +"),
        (["beam", "open", "x" * 41], "a name of at most 40 characters in one line, without +"),
        (["test", "torch", "--family", "a+"], "which joins two; got 'a+'"),
        (["test", "torch", "--ledger", "candidate.py"], "candidate.py, for it has something else"),
        (["beam", "open", "a", "--ledger", "candidate.py"], "nothing was added to candidate.py"),
        (["test", "torch", "--ledger", "/dev/full"], "must be a file; got /dev/full, which is"),
        (["beam", "open", "a", "--ledger", "/dev/full"], "must be a file; got /dev/full, which"),
        (["report", "--ledger", "cases", "-o", "/dev/full"], "characters; got /dev/full: No space"),
        (["bundle", "s03_blocked", "-o", "."], "-o must be a file with room for "),
        (["lineage"], "needs a try with a score"),
        (["lineage", "--ledger", "cases", "-o", "x.gif"], "must be an .svg or .png file"),
        (["beam", "open"], "a family must have a name of at most"),
    ),
)
def test_nonsense_is_status_2_and_a_sentence(here, capsys, arguments, message):
    pytest.importorskip("matplotlib")
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert message in told.err and not told.out


def test_a_pipe_is_no_ledger(here, capsys):
    os.mkfifo("pipe")
    for command in (["log"], ["beam", "open", "a"], ["test", "torch"]):
        assert main([*command, "--ledger", "pipe"]) == 2
        assert "the ledger must be a file; got pipe" in capsys.readouterr().err


def test_half_a_workspace_is_not_left(here, monkeypatch, capsys):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    assert main(["new", "second"]) == 2
    assert "No space left" in capsys.readouterr().err and not Path("second").exists()


def test_words_that_no_terminal_can_write_are_written(here):
    append("ledger.jsonl", tried(1, 400.0, idea="\udcff \u00fc"))
    for output in ("utf-8", "ascii"):
        done = tool("show", "1", env={"PYTHONIOENCODING": output})
        assert done.returncode == 0 and "\\udcff" in done.stdout, done.stderr
    assert main(["report", "-o", "report.md"]) == 0


# a buffer that could not be written is there still when Python ends, and is tried again
@pytest.mark.parametrize("unbuffered", ("", "1"), ids=("buffered", "unbuffered"))
def test_without_an_output_it_has_nothing_to_say(here, unbuffered):
    env = {"PYTHONUNBUFFERED": unbuffered}
    done = tool("log", preexec_fn=lambda: os.close(1), env=env)
    assert done.returncode == 0 and not done.stderr
    with open("/dev/full", "w") as full:
        done = tool("log", stdout=full, env=env)
    assert done.returncode == 2 and done.stderr.count("No space left") == 1
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


def tool(*arguments, env=None, **more):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | (env or {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.run(
        [sys.executable, "-m", "qrlib.loop", *arguments], env=environment, text=True, **pipes
    )


def test_cases_have_the_names_that_the_benchmark_gives_them(here, capsys):
    assert main(["test", "candidate.py", "--case", "0", "1", "--device", "cpu"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert main(["show", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    rows = ledger.read("ledger.jsonl").entries[0]["rows"]
    for lines in (told, shown):
        (head,) = (k for k, line in enumerate(lines) if line.split()[:1] == ["batch"])
        column = lines[head].index("batch x n")
        for row, line in zip(rows, lines[head + 1 :]):
            assert line[column:].startswith(results.words(row))
    assert "cases, batch x n, from" in (here / "problem.md").read_text()


def test_a_torn_line_is_told_by_every_command(here, capsys):
    append("ledger.jsonl", tried(1, 400.0))
    with open("ledger.jsonl", "a") as file:
        file.write('{"id": 2, "ki')
    for command in (["log"], ["show", "1"], ["report"]):
        assert main(command) == 0
        assert "ledger.jsonl: line 2 is no whole entry" in capsys.readouterr().err


def test_an_entry_that_the_loop_did_not_write_is_told(here, capsys):
    append("ledger.jsonl", tried(1, 400.0))
    ledger.append("ledger.jsonl", "try", candidate="mine")
    for command in (["log"], ["show", "2"], ["beam"], ["report"]):
        assert main(command) == 2
        assert "of #2 it lacks mode, verdict, message, basis, rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, message",
    (
        ({"date": 5}, "date must be text; it is 5:"),
        ({"rows": {}}, "rows must be a list; it is {}"),
        ({"rows": [3]}, "rows[0] must be an object; it is 3"),
        ({"geomean_us": "fast"}, "geomean_us must be a number or null; it is 'fast'"),
        ({"geomean_us": float("inf")}, "geomean_us must be a finite number; it is inf"),
        ({"geomean_us": 10**400}, "geomean_us must be a finite number; it is 1000000"),
        (
            {"rows": [tried(1, 400.0)["rows"][0] | {"cond": 10**400}]},
            "rows[0].cond must be a finite number; it is 10000",
        ),
        (
            {"rows": [tried(1, 400.0)["rows"][0] | {"certificate": [1.0]}]},
            "rows[0].certificate must be an object; it is",
        ),
        (
            {"rows": [tried(1, 400.0)["rows"][0] | {"certificate": {"factor": "x"}}]},
            "rows[0].certificate.factor must be a number or null; it is 'x'",
        ),
        (
            {"rows": [tried(1, 400.0)["rows"][0] | {"q75_us": None}]},
            "rows[0] must have a median and both quartiles, or none of them",
        ),
        ({"family": 7}, "family must be text or null; it is 7"),
        ({"provenance": {"gpu": None}}, "provenance lacks cpu, torch, commit"),
        ({"kind": "family", "family": "a", "event": "kill", "reason": "x"}, "reason must be one"),
        ({"kind": "family", "family": "a", "event": []}, "event must be one of open, keep, kill"),
    ),
)
def test_an_entry_that_is_none_is_told_by_whoever_reads_it(here, capsys, change, message):
    with open("ledger.jsonl", "w") as file:
        file.write(json.dumps(tried(1, 400.0) | change) + "\n")
    for command in (["log"], ["show", "1"], ["diff", "1", "1"], ["beam"], ["report"]):
        assert main(command) == 2
        assert message in capsys.readouterr().err


def test_what_may_be_left_out_of_an_entry_is_no_fault_of_it(here, capsys):
    entry = tried(1, 400.0, prediction="350 us")
    for key in ("parent", "family", "idea", "hypothesis", "sha256", "printed", "geomean_us"):
        del entry[key]
    with open("ledger.jsonl", "w") as file:
        file.write(json.dumps(entry) + "\n")
    for command in (["log"], ["show", "1"], ["diff", "1", "1"], ["beam"], ["report"]):
        assert main(command) == 0
    assert "| #1 |  | 350 us | passed |" in capsys.readouterr().out


def test_two_scores_are_compared_case_by_case():
    a, b = tried(1, 100.0), tried(2, 50.0)
    lines = list(shown.difference(a, b))
    assert "  #2 c2 takes 0.500 of the time of #1 c1" in lines
    assert any(re.search(r"2 x 12 dense.* 100 +50 us +0.500$", line) for line in lines)
    # within the spread of both it is no difference
    near = list(shown.difference(a, tried(3, 101.0)))
    assert any(line.endswith("1.010  within their spread") for line in near)
    others = list(shown.difference(a, tried(4, 50.0, basis="two")))
    assert "  their scores are not of one basis, and cannot be compared" in others
    assert not any("takes" in line for line in others)


def test_a_report_tells_evidence_from_what_says_nothing():
    found = log(
        tried(1, 100.0, family="a"),
        tried(2, verdict="wrong", message="a | b\nc", family="a"),
        tried(3, verdict="timed out", family="b"),
    )
    text = "\n".join(report(found))
    assert "| #2 | `c2` | wrong | a \\| b c | yes |" in text
    assert "| #3 | `c3` | timed out | what was seen | none, try it again |" in text
    assert "- timed out: it was still computing when its time was up." in text
    # every row has the cells of its head
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    assert "none has a score yet" in "\n".join(report(log()))


def test_our_own_way_is_the_data():
    for name, path in history.FILES.items():
        found, own = results.load(path), history.load(name)
        means = {
            (each["stage"], each["precision"], each["mode"]): each["median_us"]
            for each in found.averages()
        }
        times = {each["geomean_us"] for each in own.tries}
        assert times <= set(means.values())
        # each kind once, and policies where there are several
        wanted = [k for k in means if k[1] == "fp32" or k[0] in ("auto", *POLICIES)]
        assert len(own.tries) == len(wanted)
        assert [each["id"] for each in own.tries] == list(range(1, len(wanted) + 1))
        assert all(each["provenance"]["commit"] for each in own.tries)
        assert "\n".join(shown.listed(own)) and "\n".join(shown.shown(own.tries[-1]))
        assert json.dumps(own.entries)


def test_without_the_data_our_own_way_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="in a checkout of the repository; there is no cases.json"):
        history.load(tmp_path / "cases.json")


def test_without_torch_it_says_what_to_do(here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["test", "candidate.py"]) == 2
    assert "this needs torch; python -m qrlib.doctor says how" in capsys.readouterr().err


def test_looking_at_a_ledger_needs_no_torch(here):
    code = "import sys, qrlib.loop.__main__; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_an_installed_package_has_the_templates(tmp_path):
    pytest.importorskip("setuptools")
    code = (
        "import shutil, sys, os; shutil.copytree(sys.argv[1], 'source', ignore=lambda folder, "
        "names: [n for n in names if n not in KEEP] if folder == sys.argv[1] else ['__pycache__']);"
        "os.chdir('source'); import setuptools.build_meta as b; print(b.build_wheel('..'))"
    )
    keep = {"qrlib", "pyproject.toml", "LICENSE", "README.md"}
    done = subprocess.run(
        [sys.executable, "-c", f"KEEP = {keep!r}; {code}", str(ROOT)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(io.BytesIO(wheel.read_bytes())).namelist())
    assert {f"qrlib/loop/templates/{name}" for name in workspace.TEMPLATES} <= names
