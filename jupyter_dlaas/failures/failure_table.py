"""Table of known failures: signature -> cause -> advice. The first matching row is the answer."""

from __future__ import annotations

import signal as signals
from typing import Final

from jupyter_dlaas.failures.failure_row import Row
from jupyter_dlaas.failures.program_failures import CODE_ROWS
from jupyter_dlaas.wire.protocol import Cause

__all__ = ["NO_WORD", "ROWS"]

_NO_GPU: Final = (
    r"Found no NVIDIA driver|No CUDA GPUs are available|Torch not compiled with CUDA enabled|no CUDA-capable device"
    r"|torch\.cuda\.is_available\(\) is False|No HIP GPUs are available|Unknown backend:? '?(cuda|gpu)"
    r"|No supported gpu backend|from the '(CUDA|HIP)' backend"
)
NO_WORD: Final = 74
"""Exit code of a learner that could not write its result because the disk was full (EX_IOERR)."""
ROWS: Final[tuple[Row, ...]] = (
    # -- exceptions: memory and devices
    Row(
        code="gpu_memory",
        cause=Cause.RESOURCES,
        raised=("OutOfMemoryError", "AcceleratorError", "RuntimeError"),
        says=r"(CUDA|HIP)( driver)?( error:)? out of memory|MPS backend out of memory|cudaErrorMemoryAllocation",
        advice="The GPU's memory is full: use a smaller batch, or more learners at the same global batch.",
    ),
    Row(
        code="gpu_memory",
        cause=Cause.RESOURCES,
        raised=("ResourceExhaustedError", "XlaRuntimeError", "JaxRuntimeError", "InternalError"),
        says=r"OOM when allocating|RESOURCE_EXHAUSTED|Out of memory|[Ff]ailed to allocate memory",
        advice="The GPU's memory is full: use a smaller batch, or more learners at the same global batch.",
        has_gpus=True,
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
        says=r"DefaultCPUAllocator: can't allocate memory|not enough memory: you tried to allocate|std::bad_alloc"
        r"|OOM when allocating|RESOURCE_EXHAUSTED: Out of memory|\[Errno 12\]|Cannot allocate memory"
        r"|Unable to allocate .* for an array|[Ff]ailed to allocate memory",
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
        code="data_worker_crashed",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        says=r"DataLoader worker \(pid.*is killed by signal: ",
        advice="A process that reads data crashed in native code: use num_workers=0 to see the line.",
    ),
    Row(
        code="worker_lost",
        cause=Cause.UNKNOWN,
        raised=("BrokenExecutor", "TerminatedWorkerError"),
        says=r"terminated abruptly|unexpectedly terminated",
        advice="A worker process ended without a word, often for want of memory: use fewer workers, or ask for more "
        "with --memory.",
    ),
    Row(
        code="disk_full",
        cause=Cause.RESOURCES,
        says=r"No space left on device|Disk quota exceeded|database or disk is full",
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
        code="too_many_processes",
        cause=Cause.RESOURCES,
        raised=("RuntimeError", "OSError"),
        says=r"can't start new thread|Resource temporarily unavailable",
        advice="The system starts no more processes or threads for this user: use fewer workers, or raise `ulimit -u`.",
    ),
    Row(
        code="gpu_assert",
        cause=Cause.YOUR_CODE,
        says=r"device-side assert triggered|illegal memory access|misaligned address",
        advice="An index was out of range on the GPU, often a label beyond the number of classes. "
        "Run once with CUDA_LAUNCH_BLOCKING=1 (--env) to see the line.",
    ),
    Row(
        code="gpu_lost",
        cause=Cause.HARDWARE,
        says=r"[Uu]ncorrectable (NVLink|ECC) error|GPU is lost|fallen off the bus|unspecified launch failure|\bXid\b"
        r"|hardware stack error|CUDA error: unknown error",
        advice="The GPU failed. The job is tried again elsewhere.",
    ),
    Row(
        code="no_gpu",
        cause=Cause.YOUR_CODE,
        says=_NO_GPU,
        advice="This job runs on CPUs, but the program asks for a GPU: use run.device, or "
        'torch.device("cuda" if torch.cuda.is_available() else "cpu"); torch.load takes map_location.',
        has_gpus=False,
    ),
    Row(
        code="gpu_index",
        cause=Cause.YOUR_CODE,
        says=r"invalid device ordinal|Invalid device id",
        advice="The program asks for a GPU that its learner does not have. GPUs are numbered from 0 within each "
        "learner: use run.device, or ask for more with --gpus-per-learner.",
    ),
    Row(
        code="no_gpu",
        cause=Cause.YOUR_CODE,
        says=r"from the 'MPS' backend|MPS (backend|device) .*(not|only)|PyTorch is not linked with support for mps",
        advice="The program asks for an Apple GPU, and this machine has none: use run.device.",
    ),
    Row(
        code="gpu_busy",
        cause=Cause.PLATFORM,
        says=r"devices? (is|are)( all)? busy or unavailable|exclusive (process|thread)",
        advice="Another process outside of the pool uses the GPU: `nvidia-smi` shows it. The job is tried again.",
    ),
    Row(
        code="gpu_driver",
        cause=Cause.PLATFORM,
        says=rf"CUDA driver version is insufficient|CUDA error: no kernel image|kernel image is invalid|{_NO_GPU}"
        r"|forward compatibility was attempted|system has unsupported display driver",
        advice="This PyTorch does not fit the machine's GPU driver: install a build for it.",
    ),
    Row(
        code="gpu_library",
        cause=Cause.RESOURCES,
        says=r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)",
        advice="A GPU library could not start, most often for want of GPU memory: use a smaller batch.",
    ),
    Row(
        code="gpu_library",
        cause=Cause.RESOURCES,
        says=r"CU(BLAS|DNN|SPARSE|SOLVER|FFT)_STATUS_\w+",
        advice="A GPU library failed, most often for want of GPU memory, or after an index out of range: use a smaller "
        "batch. Run once with CUDA_LAUNCH_BLOCKING=1 (--env) to see the line.",
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
        says=r"Input/output error|Stale file handle|Transport endpoint is not connected|Remote I/O error"
        r"|Structure needs cleaning",
        advice="The disk or the network file system does not answer as it should.",
    ),
    Row(
        code="checkpoints_damaged",
        cause=Cause.PLATFORM,
        raised=("CheckpointsDamaged",),
        advice="The job does not begin again by itself. Train from step 0 in a new job: `jupyter dlaas retry JOB`. "
        "Remove this one with its files: `jupyter dlaas delete JOB`.",
    ),
    Row(
        code="checkpoint_too_new",
        cause=Cause.PLATFORM,
        raised=("CheckpointTooNew", "FormatTooNew"),
        advice="After the update, go on with `jupyter dlaas resume JOB`; or train from step 0 in a new job: "
        "`jupyter dlaas retry JOB`.",
    ),
    Row(
        code="fork_after_cuda",
        cause=Cause.YOUR_CODE,
        says=r"Cannot re-initialize CUDA in forked subprocess",
        advice="DataLoader workers must not touch the GPU: move tensors to it in the training loop.",
    ),
    # -- exceptions: other learners of the gang
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
        code="no_command",
        cause=Cause.YOUR_CODE,
        raised=("FileNotFoundError",),
        traced=r"in _execute_child\b",
        advice="This program was not found on the machine: install it, or give its full path.",
    ),
    Row(
        code="file_missing",
        cause=Cause.YOUR_DATA,
        raised=("FileNotFoundError",),
        advice="Relative paths start in the notebook's directory. Check the path, or ship the file with --include.",
    ),
    Row(
        code="file_missing",
        cause=Cause.YOUR_DATA,
        raised=("OSError", "ValueError", "RuntimeError"),
        says=r"^File not found|No such file or directory|Dataset not found|Repo id must be in the form"
        r"|is not a local folder and is not a valid model identifier|^path .* does not exist",
        advice="Relative paths start in the notebook's directory. Check the path or name, download the data in the "
        "notebook first, or ship the file with --include.",
    ),
    Row(
        code="not_a_file",
        cause=Cause.YOUR_DATA,
        raised=("IsADirectoryError", "NotADirectoryError"),
        advice="A directory stands where the program expects a file, or a file where it expects a directory: print "
        "the path.",
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
        raised=(
            *("UnidentifiedImageError", "UnicodeDecodeError", "BadZipFile", "BadGzipFile", "ReadError", "LZMAError"),
            *("ParserError", "EmptyDataError", "JSONDecodeError", "SafetensorError", "ArrowInvalid", "DataLossError"),
        ),
        advice="A file of the data is damaged, empty or of another kind than expected: look at its first lines.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("EOFError", "UnpicklingError"),
        says=r"Ran out of input|pickle data was truncated|invalid load key|ended before the end-of-stream",
        advice="A file of the data is damaged or was written only in part: fetch or write it again.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("UnpicklingError",),
        says=r"Weights only load failed[\s\S]*Unsupported operand (?!149\b)",
        advice="The file is none that torch.save wrote: look at its first bytes. A download may have left an error "
        "page or a pointer of Git LFS in its place.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        says=r"PytorchStreamReader failed|Invalid magic number; corrupt file|file signature not found"
        r"|image file is truncated|truncated file|[Cc]orrupt(ed)? (file|data|JPEG)|Error while deserializing header"
        r"|incorrect header check|incorrect data check|incomplete or truncated stream|truncated header|bad magic number"
        r"|No data left in file|Failed to interpret file|database disk image is malformed|file is not a database",
        advice="A file of the data is damaged or was written only in part: fetch or write it again.",
    ),
    Row(
        code="missing_values",
        cause=Cause.YOUR_DATA,
        raised=("ValueError",),
        says=r"Input \w* ?contains (NaN|infinity|missing)|NaN values? in (the )?(data|input|column)"
        r"|[Cc]annot convert (non-finite|float NaN)|exog contains inf or nans",
        advice="The data has missing or infinite values: drop or fill them before training.",
    ),
    Row(
        code="bad_value",
        cause=Cause.YOUR_DATA,
        raised=("ValueError",),
        says=r"could not convert string to float|invalid literal for int\(\)|arrays of bytes/strings"
        r"|Unable to parse string|time data .* does(n't| not) match",
        advice="Text stands where a number is expected: look at this column or line of the data, often a heading "
        "or an empty field.",
    ),
    Row(
        code="one_class",
        cause=Cause.YOUR_DATA,
        raised=("ValueError",),
        says=r"contains only one class|at least 2 classes|least populated class|Only one class present",
        advice="A class has no or too few examples here: count the labels, and split with stratify=….",
    ),
    Row(
        code="no_keyboard",
        cause=Cause.YOUR_CODE,
        raised=("NoKeyboard", "EOFError"),
        says=r"input\(\)|EOF when reading a line",
        advice="A job cannot ask: bind the value in a cell before, so that it travels as a value.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("EOFError",),
        advice="A file or a connection ended too early: look at the size of the file that this line reads.",
    ),
    *CODE_ROWS,
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
        code="interrupted",
        cause=Cause.EVICTED,
        signal=signals.SIGINT,
        what="interrupted from outside (SIGINT)",
        advice="Somebody interrupted the process. It is tried again from the last checkpoint.",
    ),
    *(
        Row(
            code="terminated",
            cause=Cause.EVICTED,
            signal=number,
            what=f"ended from outside ({number.name})",
            advice="Somebody or the system ended the process. It is tried again from the last checkpoint.",
        )
        for number in (signals.SIGTERM, signals.SIGHUP, signals.SIGQUIT)
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
