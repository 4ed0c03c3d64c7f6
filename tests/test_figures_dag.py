"""The graph of blocked QR: its arrows are all that is needed, and every one of them is."""

import random

import pytest

torch = pytest.importorskip("torch")

from drawings import EveryFigure, texts  # noqa: E402
from tables import normal  # noqa: E402

import qrlib  # noqa: E402
from qrlib.householder import larfb  # noqa: E402
from qrlib.stages import s03_blocked  # noqa: E402
from qrlib.teach.figures import dag  # noqa: E402

NB = 4
DRAWN = {
    **{f"panel {k}": (dag.dag_frame, 5, k) for k in range(5)},
    "chain": (dag.dag_frame, 5),
    "two": (dag.dag_frame, 2),
    "two, panel 1": (dag.dag_frame, 2, 1),
}
STEPPERS = (dag.dag_stepper, lambda: dag.dag_stepper(3))


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


def run(A, order):
    """Blocked QR of A [B, m, n], its tasks in that order, by the verbs of stage 3."""
    H, tau, factors = A.clone(), A.new_zeros(len(A), A.shape[2]), {}
    for kind, k, *j in order:
        at = slice(NB * k, NB * (k + 1))
        if kind == "panel":
            factors[k] = s03_blocked.panel(H[:, NB * k :, at], tau[:, at])
        else:
            right = slice(NB * j[0], NB * (j[0] + 1))
            H[:, NB * k :, right] = larfb(*factors[k], H[:, NB * k :, right])
    return H, tau


def shuffled(blocks, seed, without=None):
    """An order that respects the arrows, but for one of them: `without` = (earlier, later)."""
    waits = {task: set(need) for task, need in dag.graph(blocks).items()}
    if without:
        waits[without[1]].discard(without[0])
    draw, order = random.Random(seed), []
    while waits:
        ready = [task for task, need in waits.items() if need <= set(order)]
        # what is waited for in vain comes as late as it can
        late = [task for task in ready if not without or task != without[0]]
        task = draw.choice(late or ready)
        order.append(task)
        del waits[task]
    return order


@pytest.mark.parametrize("seed", range(5))
def test_any_order_that_follows_the_arrows_is_blocked_qr(seed):
    A = normal(2, 24, 5 * NB, dtype=torch.float64, seed=seed)
    order = shuffled(5, seed)
    assert sorted(order) == sorted(dag.tasks(5))
    H, tau = run(A, order)
    right = s03_blocked.geqrf(A, nb=NB)
    torch.testing.assert_close(H, right.H)
    torch.testing.assert_close(tau, right.tau)


def test_no_arrow_can_be_left_out():
    """Without one of them there is an order that begins too early: it is wrong, or cannot run."""
    A = normal(1, 16, 4 * NB, dtype=torch.float64)
    for later, waits in dag.graph(4).items():
        for earlier in waits:
            order = shuffled(4, 0, without=(earlier, later))
            assert order.index(later) < order.index(earlier), (earlier, later)
            try:
                found = qrlib.certify(A, *run(A, order))
            except KeyError:
                continue
            assert not found.passed, (earlier, later)


@pytest.mark.parametrize("blocks", (1, 2, 5, 8))
def test_the_chain_is_panels_and_near_updates(blocks):
    links = dag.chain(blocks)
    assert len(links) == 2 * blocks - 1
    assert links[::2] == tuple(("panel", k) for k in range(blocks))
    assert links[1::2] == tuple(("update", k, k + 1) for k in range(blocks - 1))
    assert len(dag.tasks(blocks)) == blocks * (blocks + 1) // 2


def test_words_are_counts_of_the_graph(drawn):
    assert "15 tasks, 20 arrows" in drawn["chain"].alt
    assert sum(map(len, dag.graph(5).values())) == 20
    for k in range(1, 5):
        need = dag.before(5, ("panel", k))
        assert f"It needs {len(need)}." in drawn[f"panel {k}"].alt
        # all panels before it, and their updates of its own column and of theirs
        assert need == {t for t in dag.tasks(5) if t[1] < k and t[-1] <= k}
    assert {"P0", "U3,4"} <= set(texts(drawn["chain"]))
