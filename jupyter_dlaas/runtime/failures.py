"""Why a learner ended: signature -> cause -> advice, as a table. The first row that fits is the answer."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.protocol import Cause, Failure, Where

__all__ = [
    "NO_WORD",
    "ROWS",
    "Row",
    "choose",
    "exited",
    "from_exception",
    "from_exit",
    "is_collateral",
    "oom_kills",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One known failure. A field that is not set fits anything; `raised` are names of the exception or its bases."""

    code: str
    cause: Cause
    advice: str
    raised: tuple[str, ...] = ()
    says: str | None = None
    """A regular expression that the message must hold."""
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool | None = None
    """The kernel ended a process of this machine or container for want of memory meanwhile."""
    what: str | None = None
    """Said instead of the message, where the message alone tells little."""
    is_collateral: bool = False
    """Follows from another learner's end: never the first cause where there is another one."""


NO_WORD: Final = 74
"""Exit code of a learner whose last word the disk did not take (EX_IOERR)."""
ROWS: Final[tuple[Row, ...]] = (
    # -- exceptions: memory and devices
    Row(
        code="gpu_memory",
        cause=Cause.RESOURCES,
        raised=("OutOfMemoryError", "AcceleratorError", "RuntimeError"),
        says=r"CUDA out of memory|HIP out of memory|MPS backend out of memory",
        advice="The GPU's memory is full: use a smaller batch, or more learners at the same global batch.",
    ),
    Row(
        code="host_memory",
        cause=Cause.RESOURCES,
        raised=("MemoryError", "ArrayMemoryError"),
        advice="The machine's memory is full: load less at once, or ask for more with --memory.",
    ),
    Row(
        code="host_memory",
        cause=Cause.RESOURCES,
        raised=("RuntimeError",),
        says=r"DefaultCPUAllocator: can't allocate memory|not enough memory: you tried to allocate",
        advice="The machine's memory is full: use a smaller batch, or ask for more with --memory.",
    ),
    Row(
        code="shared_memory",
        cause=Cause.RESOURCES,
        says=r"insufficient shared memory|unable to (open|allocate) shared memory|Bus error.*shared memory",
        advice="Shared memory is too small for these DataLoader workers: use fewer workers, or num_workers=0.",
    ),
    Row(
        code="data_worker",
        cause=Cause.EVICTED,
        raised=("RuntimeError",),
        says=r"DataLoader worker \(pid.*(is killed by signal: (Killed|Terminated)|exited unexpectedly$)",
        advice="Somebody or the system killed a process that reads data; if it was for memory, use fewer workers.",
    ),
    Row(
        code="disk_full",
        cause=Cause.RESOURCES,
        raised=("OSError",),
        says=r"No space left on device|Disk quota exceeded",
        advice="The disk is full: delete old jobs and checkpoints, then retry.",
    ),
    Row(
        code="too_many_files",
        cause=Cause.RESOURCES,
        raised=("OSError", "RuntimeError"),
        says=r"Too many open files",
        advice="Too many open files: close what is not used, or raise `ulimit -n` before Jupyter starts.",
    ),
    Row(
        code="gpu_assert",
        cause=Cause.YOUR_CODE,
        says=r"device-side assert triggered",
        advice="An index was out of range on the GPU, often a label beyond the number of classes. "
        "Run once with CUDA_LAUNCH_BLOCKING=1 (--env) to see the line.",
    ),
    Row(
        code="gpu_lost",
        cause=Cause.HARDWARE,
        says=r"uncorrectable (NVLink|ECC) error|GPU is lost|fallen off the bus|unspecified launch failure|Xid",
        advice="The GPU failed. The job is tried again elsewhere.",
    ),
    Row(
        code="gpu_driver",
        cause=Cause.PLATFORM,
        says=r"CUDA driver version is insufficient|CUDA error: no kernel image|Found no NVIDIA driver",
        advice="This PyTorch does not fit the machine's GPU driver: install a build for it.",
    ),
    Row(
        code="gpu_library",
        cause=Cause.RESOURCES,
        says=r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)",
        advice="A GPU library could not start, most often for want of GPU memory: use a smaller batch.",
    ),
    Row(
        code="native_library",
        cause=Cause.PLATFORM,
        raised=("ImportError", "OSError"),
        says=r"cannot open shared object file|undefined symbol|GLIBC(XX)?_\S+. not found",
        advice="A package was built for another system: install it anew into the kernel's environment.",
    ),
    Row(
        code="disk_broken",
        cause=Cause.HARDWARE,
        raised=("OSError",),
        says=r"Input/output error|Stale file handle",
        advice="The disk or the network file system does not answer as it should.",
    ),
    Row(
        code="checkpoints_damaged",
        cause=Cause.HARDWARE,
        raised=("CheckpointsDamaged",),
        advice="The job does not begin again by itself. Train from step 0 in a new job: `jupyter dlaas retry JOB`. "
        "Remove this one with its files: `jupyter dlaas delete JOB`.",
    ),
    Row(
        code="checkpoint_too_new",
        cause=Cause.PLATFORM,
        raised=("CheckpointTooNew",),
        advice="Update jupyter_dlaas, then go on with `jupyter dlaas resume JOB`; or train from step 0 in a new job: "
        "`jupyter dlaas retry JOB`.",
    ),
    Row(
        code="fork_after_cuda",
        cause=Cause.YOUR_CODE,
        says=r"Cannot re-initialize CUDA in forked subprocess",
        advice="DataLoader workers must not touch the GPU: move tensors to it in the training loop.",
    ),
    # -- exceptions: the others of the gang
    Row(
        code="peer_lost",
        cause=Cause.UNKNOWN,
        raised=("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError"),
        says=r"Connection (closed|reset) by peer|Connection refused|[Gg]loo.*(timeout|connect)"
        r"|NCCL (error|communicator)|Broken pipe|Socket Timeout|wait timeout|recvValue failed"
        r"|Timed out waiting .*clients",
        advice="Another learner was lost first: its own log tells why.",
        is_collateral=True,
    ),
    Row(
        code="connection",
        cause=Cause.UNKNOWN,
        raised=("ConnectionError", "ConnectionResetError", "BrokenPipeError"),
        says=r"Connection (closed|reset|aborted)|Connection refused|Broken pipe|Max retries exceeded",
        advice="A server or process that the program talks to is not there, or ended the connection.",
    ),
    # -- exceptions: data and files
    Row(
        code="file_missing",
        cause=Cause.YOUR_DATA,
        raised=("FileNotFoundError",),
        advice="Relative paths start in the notebook's directory. Check the path, or ship the file with --include.",
    ),
    Row(
        code="no_permission",
        cause=Cause.YOUR_DATA,
        raised=("PermissionError",),
        advice="The job may not read or write there. Write below run.output_dir.",
    ),
    Row(
        code="read_only",
        cause=Cause.YOUR_DATA,
        raised=("OSError",),
        says=r"Read-only file system",
        advice="The job may not write there. Write below run.output_dir.",
    ),
    Row(
        code="download",
        cause=Cause.YOUR_DATA,
        raised=("URLError", "HTTPError", "SSLError", "gaierror", "ConnectTimeout"),
        advice="The download failed. Check the address and the network, or download in the notebook first.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("UnidentifiedImageError", "UnicodeDecodeError", "BadZipFile", "ParserError", "JSONDecodeError"),
        advice="A file of the data is damaged or of another kind than expected.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("EOFError", "UnpicklingError"),
        says=r"Ran out of input|pickle data was truncated|invalid load key",
        advice="A file of the data is damaged or was written only in part.",
    ),
    Row(
        code="no_keyboard",
        cause=Cause.YOUR_CODE,
        raised=("NoKeyboard", "EOFError"),
        says=r"input\(\)|EOF when reading a line",
        advice="A job cannot ask: bind the value in a cell before, so that it travels as a value.",
    ),
    # -- exceptions: code
    Row(
        code="module_missing",
        cause=Cause.YOUR_CODE,
        raised=("ModuleNotFoundError",),
        advice="Install the package into the kernel's environment, or ship your own module with --include.",
    ),
    Row(
        code="name_missing",
        cause=Cause.YOUR_CODE,
        raised=("NameError",),
        advice="Run the cell that binds the name before the training cell, or bind it there.",
    ),
    Row(
        code="not_a_number",
        cause=Cause.YOUR_CODE,
        raised=("FloatingPointError",),
        advice="The loss left the numbers: try a smaller learning rate, or clip gradients.",
    ),
    Row(
        code="shape",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError", "ValueError"),
        says=r"mat1 and mat2 shapes|size mismatch|must match the size of tensor|shapes? .*not aligned|Expected .*size",
        advice="Two tensors do not fit. Print their shapes just before this line.",
    ),
    Row(
        code="device_mix",
        cause=Cause.YOUR_CODE,
        says=r"Expected all tensors to be on the same device|Input type .* and weight type",
        advice="Model and data are on different devices: move both to run.device.",
    ),
    Row(
        code="unused_parameters",
        cause=Cause.YOUR_CODE,
        says=r"Expected to have finished reduction in the prior iteration",
        advice='Some parameters took no part in the loss: run.prepare(…, ddp={"find_unused_parameters": True}).',
    ),
    Row(
        code="interrupted",
        cause=Cause.EVICTED,
        raised=("KeyboardInterrupt",),
        advice="Somebody interrupted the learner's process. Retry.",
        what="the learner's process was interrupted",
    ),
    Row(code="your_code", cause=Cause.YOUR_CODE, raised=("Exception",), advice="See the line and the log."),
    # -- ends without an exception
    Row(
        code="host_memory",
        cause=Cause.RESOURCES,
        signal=signals.SIGKILL,
        out_of_memory=True,
        what="ended by the system: the memory was full",
        advice="Load less at once, use fewer DataLoader workers, or ask for more with --memory.",
    ),
    Row(
        code="killed",
        cause=Cause.EVICTED,
        signal=signals.SIGKILL,
        what="killed from outside (SIGKILL)",
        advice="Somebody or the system killed the process. It is tried again from the last checkpoint.",
    ),
    Row(
        code="terminated",
        cause=Cause.EVICTED,
        signal=signals.SIGTERM,
        what="ended from outside (SIGTERM)",
        advice="Somebody or the system ended the process. It is tried again from the last checkpoint.",
    ),
    Row(
        code="interrupted",
        cause=Cause.EVICTED,
        signal=signals.SIGINT,
        what="interrupted from outside (SIGINT)",
        advice="Somebody interrupted the process. It is tried again from the last checkpoint.",
    ),
    Row(
        code="segfault",
        cause=Cause.YOUR_CODE,
        signal=signals.SIGSEGV,
        what="crashed in native code (segmentation fault)",
        advice="The end of the log shows the Python line. Often a library that does not fit another one.",
    ),
    Row(
        code="bus_error",
        cause=Cause.RESOURCES,
        signal=signals.SIGBUS,
        what="crashed on memory that was taken away (bus error)",
        advice="Often shared memory or a disk that is full, or a mapped file that became shorter.",
    ),
    Row(
        code="aborted",
        cause=Cause.YOUR_CODE,
        signal=signals.SIGABRT,
        what="a native library gave up (abort)",
        advice="The end of the log shows what it said.",
    ),
    Row(
        code="floating_point",
        cause=Cause.YOUR_CODE,
        signal=signals.SIGFPE,
        what="crashed in native arithmetic (SIGFPE)",
        advice="Often a whole number divided by zero in native code.",
    ),
    Row(
        code="illegal_instruction",
        cause=Cause.PLATFORM,
        signal=signals.SIGILL,
        what="used an instruction that this processor lacks",
        advice="A package was built for another processor: install one for this machine.",
    ),
    Row(
        code="cpu_time",
        cause=Cause.RESOURCES,
        signal=signals.SIGXCPU,
        what="used up its processor time limit",
        advice="Raise `ulimit -t`.",
    ),
    Row(
        code="no_program",
        cause=Cause.PLATFORM,
        exit_code=127,
        what="the interpreter could not be started",
        advice="Is the environment of this kernel still there?",
    ),
    Row(
        code="no_program",
        cause=Cause.PLATFORM,
        exit_code=126,
        what="the interpreter may not be executed",
        advice="Check the permissions of the kernel's environment.",
    ),
    Row(
        code="disk_full",
        cause=Cause.RESOURCES,
        exit_code=NO_WORD,
        what="came to its end, but the disk was full: what it was to leave could not be written",
        advice="Delete old jobs and checkpoints, then retry.",
    ),
    Row(
        code="vanished",
        cause=Cause.UNKNOWN,
        exit_code=0,
        what="ended without a word, as by os._exit(0)",
        advice="Let the program end by itself, so that its result is known.",
    ),
)

_EXIT: Final = Row(code="exit_code", cause=Cause.YOUR_CODE, advice="See the end of the log.")
_UNSEEN: Final = Row(
    code="killed",
    cause=Cause.UNKNOWN,
    advice="Nobody saw it end. It is tried again from the last checkpoint.",
    what="gone without a word",
)


def from_exception(
    names: Sequence[str], message: str, *, where: Where | None, traceback: str, is_alone: bool = False
) -> Failure:
    """The failure of an exception: `names` are its class and the classes it derives from, the nearest first.

    `is_alone`: the job has no other learner that can have been lost first.
    """
    rows = (row for row in ROWS if not (is_alone and row.is_collateral))
    row = next((row for row in rows if _fits_exception(row, names, message)), None)
    first = message.strip().split("\n")[0][:500]
    said = f"{names[0]}: {first}" if first else names[0]
    if row is None:  # not even an Exception: something like a pytest.Exit or an own BaseException
        row = replace(_EXIT, code="your_code", advice="See the line and the log.")
    return Failure(
        cause=row.cause, code=row.code, what=row.what or said, advice=row.advice, where=where, traceback=traceback
    )


def exited(code: int) -> Failure:
    """The failure of a program that ended itself so: by sys.exit."""
    return Failure(cause=_EXIT.cause, code=_EXIT.code, what=f"ended with exit code {code}", advice=_EXIT.advice)


def from_exit(code: int | None, signal: int | None, *, out_of_memory: bool = False) -> Failure:
    """The failure of a process that left no word: by its exit code or the signal that ended it."""
    for row in ROWS:
        if row.raised or row.says or (row.signal is None and row.exit_code is None):
            continue
        if row.signal == signal and row.exit_code == code and row.out_of_memory in (None, out_of_memory):
            return Failure(cause=row.cause, code=row.code, what=row.what or "", advice=row.advice)
    if signal is not None:
        return Failure(cause=_UNSEEN.cause, code="signal", what=f"ended by signal {signal}", advice=_EXIT.advice)
    if code is not None:
        return exited(code)
    return Failure(cause=_UNSEEN.cause, code=_UNSEEN.code, what=_UNSEEN.what or "", advice=_UNSEEN.advice)


def _fits_exception(row: Row, names: Sequence[str], message: str) -> bool:
    if row.signal is not None or row.exit_code is not None:
        return False
    if row.raised and not set(row.raised).intersection(names):
        return False
    return row.says is None or re.search(row.says, message) is not None


def is_collateral(failure: Failure) -> bool:
    """Whether a failure only follows from another learner's."""
    return any(row.is_collateral and row.code == failure.code for row in ROWS)


def choose(failures: Sequence[tuple[int, Failure]]) -> Failure | None:
    """One failure of a gang, for its owner: the first cause, with the members that raised the same.

    `failures` in the order in which they were seen. What only follows from another one comes last.
    """
    if not failures:
        return None
    member, first = min(failures, key=lambda pair: is_collateral(pair[1]))
    same = {m for m, f in failures if (f.code, f.what) == (first.code, first.what)} | {member}
    return replace(first, raised_by=tuple(sorted(same)))


def oom_kills() -> int:
    """How often the kernel of this machine ended a process for want of memory; 0 where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
