"""The contract of a geqrf: our stages keep it, each clause finds somebody out, none does harm."""

import pytest

torch = pytest.importorskip("torch")

from tables import normal  # noqa: E402

import qrlib  # noqa: E402
from qrlib.certificate import certify  # noqa: E402
from qrlib.matrices import FAMILIES, TEST_CASES, Case  # noqa: E402
from qrlib.stages import ANYWHERE  # noqa: E402
from qrlib.teach import contract, faulty  # noqa: E402
from qrlib.teach.attempts import EDITS, attempt  # noqa: E402
from qrlib.teach.contract import CLAUSES, climb, through  # noqa: E402
from qrlib.teach.exercises import capstone  # noqa: E402

SMALL = Case(2, 24, 1, "dense")


@pytest.fixture(scope="module")
def reports():
    return {name: through(make()) for name, make in faulty.FAULTY.items()}


@pytest.mark.parametrize("name", ["torch", *ANYWHERE[1:]])
def test_our_stages_and_lapack_keep_the_contract(name):
    geqrf = torch.geqrf if name == "torch" else qrlib.stage(name).geqrf
    found = through(lambda A: geqrf(A))
    assert found.passed and found.first is None, str(found)


def test_a_faulty_program_is_found_out_by_its_clause(reports):
    for name, clause in capstone.found_out().items():
        assert reports[name].first == clause, (name, str(reports[name]))
    assert "changed its input A" in reports["in_place"].faults["manners"]
    # each breaks one promise: most clauses it keeps
    for name, found in reports.items():
        assert sum(not fault for fault in found.faults.values()) >= 4, name
        assert not found.faults["families"], name


def test_a_faulty_program_is_right_for_ordinary_matrices():
    for make in faulty.FAULTY.values():
        program = make()
        # what one of them changes for everybody is put back
        result = contract.factored(lambda A, about, program=program: program(A), normal(2, 48, 48))
        assert certify(*result).passed


def zeros(A):
    return 0 * A, A.new_zeros(len(A), min(A.shape[1:]))


def shifted(A):
    """Wrong in the last matrix of a batch."""
    H, tau = qrlib.geqrf(A)
    H[-1] += 1e-2
    return H, tau


def returns_a(A):
    A.copy_(qrlib.geqrf(A).H)
    return A, qrlib.geqrf(A).tau


def test_every_clause_finds_somebody_out_first(reports):
    first = {found.first for found in reports.values()} | {through(zeros).first}
    first |= {through(attempt(0)).first}
    assert first == set(CLAUSES)


def test_a_matrix_is_judged_by_itself():
    assert "Matrix 2 fails" in through(shifted).faults["families"]


def test_families_are_all_cases_of_the_task():
    assert {case.family for case in TEST_CASES} == set(FAMILIES) - {"diagonal"}
    assert {case.n for case in TEST_CASES} == set(contract.SIZES)
    assert all(n % 16 == 0 for n in contract.SIZES.values())
    seen = []

    def watched(A, about=""):
        seen.append(about)
        return qrlib.geqrf(A)

    contract.families(watched)
    assert len(seen) == len(TEST_CASES)


def test_faults_say_where_and_all_clauses_are_tried():
    def raises(A):
        if A.shape[1] == 31:
            raise RuntimeError("odd")
        return qrlib.geqrf(A)

    found = through(raises)
    assert [name for name, fault in found.faults.items() if fault] == ["sizes"]
    assert "RuntimeError: odd" in found.faults["sizes"]
    assert "2 matrices 31 x 31" in found.faults["sizes"]
    said = str(found)
    assert said.startswith("raises: 8 of 9 clauses") and "FAIL sizes" in said
    assert len(said.splitlines()) == 10 and not found.passed
    assert "still holds" in through(lambda A: ...).faults["example"]


def test_an_output_in_the_memory_of_the_input_is_named():
    assert "H lies in the memory of A" in through(returns_a).faults["fresh"]


def test_nothing_stays_changed():
    def wild(A):
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.set_num_threads(1 + torch.get_num_threads())
        torch.set_grad_enabled(False)
        torch.manual_seed(0)
        return qrlib.geqrf(A)

    torch.manual_seed(5)
    before = contract._state()
    fault = through(wild).faults["manners"]
    assert contract._state() == before
    assert fault.startswith("It has changed " + ", ".join(before))


def test_a_raised_error_leaves_nothing_changed_either():
    def wild(A):
        torch.set_default_dtype(torch.float64)
        raise ValueError

    through(wild)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("edits", range(len(EDITS)))
def test_each_edit_keeps_more_clauses(edits):
    now = through(attempt(edits)).faults
    if edits:
        before = through(attempt(edits - 1)).faults
        kept = {name for name, fault in now.items() if not fault}
        had = {name for name, fault in before.items() if not fault}
        assert had < kept
    assert (edits == len(EDITS) - 1) == (not any(now.values()))


def test_climbing_measures_beside_all_others():
    found = climb(attempt(4), SMALL, runs=3)
    stages = [row["stage"] for row in found.rows]
    assert stages == ["torch", *ANYWHERE[1:], contract.YOURS]
    (mine,) = found.find(stage=contract.YOURS)
    assert mine["ok"] and mine["runs"] == 3 and mine["median_us"] > 0
    assert mine["speedup"] == pytest.approx(found.rows[0]["median_us"] / mine["median_us"])


def test_a_wrong_result_has_no_time_on_the_ladder():
    found = climb(zeros, SMALL, runs=3)
    (mine,) = found.find(stage=contract.YOURS)
    assert not mine["ok"] and mine["median_us"] is None and mine["faults"]
    assert all(row["ok"] for row in found.rows if row is not mine)
