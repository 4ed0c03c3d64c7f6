"""What the kernels do to a number is what qrlib.precision says: in float16, which both round."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from qrlib import tiles  # noqa: E402
from qrlib.precision import product, split  # noqa: E402

# the interpreter works on the CPU; it knows float16, and no tf32 or bf16
DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
N = 32


@triton.jit
def split_kernel(x_ptr, hi_ptr, lo_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    hi, lo = tiles.split(tl.load(x_ptr + i))
    tl.store(hi_ptr + i, hi)
    tl.store(lo_ptr + i, lo)


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a1, a2 = tiles.parts(tl.load(a_ptr + at), "fp16x3")
    b1, b2 = tiles.parts(tl.load(b_ptr + at), "fp16x3")
    total = tl.zeros([SIZE, SIZE], tl.float32)
    total = tiles.product(a1, a2, b1, b2, total, "fp16x3")
    tl.store(c_ptr + at, tiles.whole(total, "fp16x3"))


def test_a_kernel_splits_as_the_module_does():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 1024) * 2.0 ** -rng.integers(0, 45, 1024)
    x[:2] = 1, -1
    x = x.astype(np.float32)
    hi, lo = (torch.empty(1024, dtype=torch.float16, device=DEVICE) for _ in range(2))
    split_kernel[(1,)](torch.from_numpy(x).to(DEVICE), hi, lo, SIZE=1024)
    # lifted by 2^14, as there, and not scaled again
    parts, _ = split(x * np.float32(2**14), "fp16", 2, scale=None)
    for found, expected in zip((hi, lo), parts):
        np.testing.assert_array_equal(found.float().cpu().numpy(), expected)


def test_a_kernel_multiplies_as_the_module_does():
    rng = np.random.default_rng(1)
    a, b = (rng.uniform(-1, 1, (N, N)).astype(np.float32) for _ in range(2))
    c = torch.empty(N, N, device=DEVICE)
    product_kernel[(1,)](*(torch.from_numpy(x).to(DEVICE) for x in (a, b)), c, SIZE=N)
    lift = np.float32(2**14)
    expected = product(a * lift, b * lift, "fp16", 2, scale=None) / lift / lift
    size = np.abs(a) @ np.abs(b)
    # the same factors; only the order of the sums may differ, by a few roundings
    assert (np.abs(c.cpu().numpy() - expected) <= 8 * 2.0**-24 * size).all()
    # and another product is told apart: what the third one adds is larger
    one = product(a * lift, b * lift, "fp16", 1, scale=None) / lift / lift
    assert (np.abs(one - expected) > 8 * 2.0**-24 * size).mean() > 0.9
