"""Five GPUs as their vendor states them, every value with its source, and what was measured on one.

Rates are of dense products; where the vendor states them for sparse ones, they are halved. Caches
and shared memory are counted in powers of two, memory in powers of ten, as the vendor does.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8")
KIB, MIB = 2**10, 2**20
# programs on an axis of a grid, but for the first; from the CUDA guide
AXIS = 65535

SOURCES = {
    "T4 datasheet": "NVIDIA, T4 Tensor Core GPU, datasheet, 2019",
    "T4 query": "the driver's answer on a T4 (deviceQuery), "
    "<https://gist.github.com/Terminus-IMRC/5e4b7782c27106dec287050b323cd059>",
    "Turing guide": "NVIDIA, Turing Tuning Guide, "
    "<https://docs.nvidia.com/cuda/turing-tuning-guide/>",
    "A100 datasheet": "NVIDIA, A100 Tensor Core GPU, datasheet, 2021; A100 80GB SXM",
    "A100 white paper": "NVIDIA, A100 Tensor Core GPU Architecture, white paper, 2020",
    "Ampere guide": "NVIDIA, Ampere Tuning Guide, "
    "<https://docs.nvidia.com/cuda/ampere-tuning-guide/>",
    "H100 datasheet": "NVIDIA, H100 Tensor Core GPU, datasheet; H100 SXM",
    "H100 white paper": "NVIDIA, H100 Tensor Core GPU Architecture, white paper, 2022; H100 SXM5",
    "Hopper guide": "NVIDIA, Hopper Tuning Guide, "
    "<https://docs.nvidia.com/cuda/hopper-tuning-guide/>",
    "H200 datasheet": "NVIDIA, H200 Tensor Core GPU, datasheet; H200 SXM",
    "H200 query": "the driver's answer on an H200, 2026-11-29",
    "Blackwell datasheet": "NVIDIA, Blackwell, datasheet; one GPU of HGX B200",
    "Blackwell guide": "NVIDIA, Blackwell Tuning Guide, "
    "<https://docs.nvidia.com/cuda/blackwell-tuning-guide/>; its figure for L2 is that of GB200",
    "CUDA guide": "NVIDIA, CUDA C++ Programming Guide, technical specifications and arithmetic "
    "throughput for each compute capability, "
    "<https://docs.nvidia.com/cuda/cuda-c-programming-guide/>",
    "B200 query": "the driver's answer on a B200, <https://github.com/pytorch/ao/pull/4002>; "
    "the vendor's documents do not give it",
}


class Measured(NamedTuple):
    """A value seen on a device, and how it was obtained."""

    value: float
    how: str


@dataclass(frozen=True)
class Device:
    """A GPU: what its vendor states, and, apart from that, what was measured on one.

    sms: streaming multiprocessors. lanes: FP32 units an SM, each a multiply-add a cycle.
    warps: as many as an SM holds at a time. registers: bytes of them an SM.
    peak: flops a second of dense products by format; a format that is absent has no units for it.
    bandwidth: bytes a second. memory, l2: bytes. shared_sm, shared_block: bytes an SM, a block.
    source: for each of these, a key of SOURCES.
    measured: ceilings and latencies seen on one such GPU; measured_on: when, with what.
    """

    name: str
    part: str
    capability: str
    sms: int
    lanes: int
    warps: int
    registers: int
    peak: dict[str, float]
    bandwidth: float
    memory: float
    l2: int
    shared_sm: int
    shared_block: int
    source: dict[str, str]
    measured: dict[str, Measured] = field(default_factory=dict)
    measured_on: str = ""

    @property
    def clock(self):
        """Cycles a second at which the FP32 units reach their stated peak."""
        return self.peak["fp32"] / (2 * self.lanes * self.sms)

    def ridge(self, precision="fp32"):
        """Flops a byte from which on arithmetic, and not memory, is the limit."""
        return self.peak[precision] / self.bandwidth


def _device(name, part, capability, measured=None, measured_on="", **stated):
    """A Device from (value, source) pairs."""
    values = {what: value for what, (value, _) in stated.items()}
    source = {what: source for what, (_, source) in stated.items()}
    return Device(
        name,
        part,
        capability,
        source=source,
        measured=measured or {},
        measured_on=measured_on,
        **values,
    )


_HOPPER_PEAK = {"fp32": 67e12, "tf32": 494.5e12, "fp16": 989.5e12, "bf16": 989.5e12, "fp8": 1979e12}

DEVICES = {
    "T4": _device(
        "T4",
        "Tesla T4 (PCIe)",
        "7.5",
        sms=(40, "T4 query"),
        lanes=(64, "CUDA guide"),
        warps=(32, "CUDA guide"),
        registers=(256 * KIB, "CUDA guide"),
        peak=({"fp32": 8.1e12, "fp16": 65e12}, "T4 datasheet"),
        bandwidth=(320e9, "T4 datasheet"),
        memory=(16e9, "T4 datasheet"),
        l2=(4 * MIB, "T4 query"),
        shared_sm=(64 * KIB, "Turing guide"),
        shared_block=(64 * KIB, "Turing guide"),
    ),
    "A100": _device(
        "A100",
        "A100 80GB (SXM4)",
        "8.0",
        sms=(108, "A100 white paper"),
        lanes=(64, "CUDA guide"),
        warps=(64, "CUDA guide"),
        registers=(256 * KIB, "CUDA guide"),
        peak=(
            {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12},
            "A100 datasheet",
        ),
        bandwidth=(2.039e12, "A100 datasheet"),
        memory=(80e9, "A100 datasheet"),
        l2=(40 * MIB, "A100 white paper"),
        shared_sm=(164 * KIB, "Ampere guide"),
        shared_block=(163 * KIB, "Ampere guide"),
    ),
    "H100": _device(
        "H100",
        "H100 80GB (SXM5)",
        "9.0",
        sms=(132, "H100 white paper"),
        lanes=(128, "CUDA guide"),
        warps=(64, "CUDA guide"),
        registers=(256 * KIB, "CUDA guide"),
        peak=(_HOPPER_PEAK, "H100 datasheet"),
        bandwidth=(3.35e12, "H100 datasheet"),
        memory=(80e9, "H100 datasheet"),
        l2=(50 * MIB, "Hopper guide"),
        shared_sm=(228 * KIB, "Hopper guide"),
        shared_block=(227 * KIB, "Hopper guide"),
    ),
    "H200": _device(
        "H200",
        "H200 141GB (SXM5)",
        "9.0",
        sms=(132, "H200 query"),
        lanes=(128, "CUDA guide"),
        warps=(64, "CUDA guide"),
        registers=(256 * KIB, "CUDA guide"),
        peak=(_HOPPER_PEAK, "H200 datasheet"),
        bandwidth=(4.8e12, "H200 datasheet"),
        memory=(141e9, "H200 datasheet"),
        l2=(60 * MIB, "H200 query"),
        shared_sm=(228 * KIB, "Hopper guide"),
        shared_block=(227 * KIB, "Hopper guide"),
        measured={
            "bandwidth": Measured(4.28e12, "a copy, bytes read and bytes written together"),
            "fp32": Measured(51e12, "a product of matrices, n = 8192"),
            "tf32": Measured(400e12, "a product of matrices, n = 8192"),
            "fp16": Measured(740e12, "a product of matrices, n = 8192"),
            "bf16": Measured(770e12, "a product of matrices, n = 8192"),
            "launch": Measured(10e-6, "one kernel started from Python"),
            "graph node": Measured(
                3.2e-6,
                "one small kernel replayed from a CUDA graph: stage 3 on 640 x 512 x 512, its "
                "bytes taken off, 2026-11-30",
            ),
            "column": Measured(0.75e-6, "one column of a 512 x 16 panel, one matrix alone"),
        },
        measured_on="2026-11-29, torch 2.11, Triton 3.6",
    ),
    "B200": _device(
        "B200",
        "B200 180GB (SXM, HGX)",
        "10.0",
        sms=(148, "B200 query"),
        lanes=(128, "CUDA guide"),
        warps=(64, "CUDA guide"),
        registers=(256 * KIB, "CUDA guide"),
        peak=(
            {"fp32": 75e12, "tf32": 1.1e15, "fp16": 2.25e15, "bf16": 2.25e15, "fp8": 4.5e15},
            "Blackwell datasheet",
        ),
        bandwidth=(7.7e12, "Blackwell datasheet"),
        memory=(180e9, "Blackwell datasheet"),
        l2=(126 * MIB, "Blackwell guide"),
        shared_sm=(228 * KIB, "Blackwell guide"),
        shared_block=(227 * KIB, "Blackwell guide"),
    ),
}
