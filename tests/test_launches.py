"""What a stage holds in memory, counted by hand; its launches are counted in test_model.py."""

import pytest
import torch
from tables import normal

from qrlib.api import COLUMNS
from qrlib.launches import launches, memory
from qrlib.stages import ANYWHERE, TRITON, stage

MB = 1 << 20


def numbers(count):
    """An allocation of so many float32 numbers for each number of A."""
    return lambda A: A.new_empty(count, *A.shape)


def one_after_another(A):
    X = numbers(3)(A)
    del X
    return numbers(2)(A)


def both_at_once(A):
    X = numbers(3)(A)
    return X, numbers(2)(A)


def views(A):
    X = numbers(3)(A)
    return X[0], X.mT, X.flatten()[1:], A[0], A.mT


def in_place(A):
    X = numbers(1)(A)
    X.copy_(A)
    X *= 2
    return X.contiguous()


def a_sum_in_between(A):
    # 2 A and its result are there together
    return 2 * A + 1


def other_types(A):
    return A.new_empty(A.shape, dtype=torch.float16), A.new_empty(A.shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("geqrf", "held"),
    [
        (lambda A: A, 0),
        (lambda A: A.contiguous(), 0),
        (numbers(3), 3),
        (one_after_another, 3),
        (both_at_once, 5),
        (views, 3),
        (in_place, 1),
        (a_sum_in_between, 2),
        (other_types, 2.5),
    ],
)
def test_memory_is_what_is_alive_at_once_beside_a(geqrf, held):
    assert memory(geqrf, torch.ones(4, 512, 512)) == 4 * MB * held


def test_memory_sees_strides():
    A = torch.ones(1, 512, 512).expand(4, 512, 512)
    assert memory(lambda A: A.contiguous(), A) == 4 * MB


def test_memory_needs_none():
    """A thousand times what a computer has."""
    A = torch.zeros(()).expand(1 << 20, 1 << 12, 1 << 12)
    assert memory(numbers(2), A) == 2**47
    with pytest.raises(ValueError, match="target must be one of .*sm_90a.*got 'sm_1'"):
        memory(numbers(1), A, target="sm_1")


def test_memory_of_a_matrix_that_is_one_program():
    B, m, n = 132, 512, 300
    # H, tau, exponents; a tile of 512 x 16 for V and one of 16 x 16 for T
    numbers = m * n + n + n + 512 * 16 + 16 * 16
    assert memory(stage("s07_whole").geqrf, normal(B, m, n)) == 4 * B * numbers
    # one of 20 x 20 stays in registers
    assert memory(stage("s07_whole").geqrf, normal(B, 20, 20)) == 4 * B * (20 * 20 + 20)


def test_memory_of_stage_6():
    B, m, n = 600, 300, 200
    # H, tau, exponents; V of 64 columns, and twice that in pairs of half the size; one G, two T,
    # and two products in shares of one each
    numbers = m * n + n + n + m * 64 + m * 128 + 64 * 64 + 2 * 64 * 64 + 2 * 64 * 64
    assert memory(stage("s06_update").geqrf, normal(1, m, n).expand(B, m, n)) == 4 * B * numbers


def test_memory_of_stage_8():
    B, m, n = 600, 300, 200
    # H, tau, exponents; V of 64 columns, and twice that in pairs of half the size; G, two T; of a
    # panel two products, lengths, eight matrices, exponents, and whether it stands
    numbers = m * n + n + n + m * 64 + m * 128 + 3 * 64 * 64
    numbers += 2 * 64 * 64 + 64 + 8 * 64 * 64 + 64 + 1
    assert memory(stage("s08_cholesky").geqrf, normal(1, m, n).expand(B, m, n)) == 4 * B * numbers


@pytest.mark.parametrize("name", ("s06_update", "s08_cholesky"))
def test_paper_is_no_graph(name, monkeypatch):
    """What a GPU that is here has just in hand says nothing of launches on paper."""
    expected = [(each.config.key, each.grid) for each in launches(name, 4, 300, 600)]
    for asked in ("is_available", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, asked, lambda: True)
    # a second stream would have to be one of that GPU
    monkeypatch.setattr(torch.cuda, "Stream", None)
    assert [(each.config.key, each.grid) for each in launches(name, 4, 300, 600)] == expected


@pytest.mark.parametrize("name", ANYWHERE[1:])
def test_memory_of_stages_without_kernels(name):
    """At least H, at most what a few copies of A would take."""
    A = normal(10, 100, 80)
    one = A.numel() * 4
    assert one < memory(stage(name).geqrf, A) < 5 * one


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ("s02_unblocked", "s04_recursive", "s05_panel", "s06_update", "s08_cholesky")
)
@pytest.mark.parametrize("B, m, n", ((600, 200, 200), (50, 1000, 300)))
def test_memory_is_what_torch_says(name, B, m, n):
    """torch rounds every allocation up to 512 bytes, and products take scratch."""
    A = normal(B, m, n).cuda()
    geqrf = stage(name).geqrf
    geqrf(A)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    geqrf(A)
    seen = torch.cuda.max_memory_allocated() - before
    assert memory(geqrf, A) == pytest.approx(seen, rel=0.02, abs=9 * MB)


@pytest.mark.parametrize("name", TRITON)
@pytest.mark.parametrize("m, n", ((3, COLUMNS), (1000, COLUMNS), (65535 * 64 + 1, 64)))
def test_no_axis_of_a_grid_but_the_first_is_longer_than_there_is(name, m, n):
    grids = {start.grid for start in launches(name, 1, m, n)}
    assert grids and max(max(grid[1:], default=1) for grid in grids) <= 65535
