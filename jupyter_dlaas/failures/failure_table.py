"""Table of known failures: signature -> cause -> advice. The first matching row is the answer."""

from __future__ import annotations

import signal as signals
from typing import Final

from jupyter_dlaas.failures.failure_row import Row
from jupyter_dlaas.failures.program_failures import CODE_ROWS
from jupyter_dlaas.failures.tensor_failures import TENSOR_ROWS
from jupyter_dlaas.wire.protocol import Cause

__all__ = ["NO_WORD", "ROWS"]

_NO_GPU: Final = (
    r"Found no NVIDIA driver|No CUDA GPUs are available|Torch not compiled with CUDA enabled|no CUDA-capable device"
    r"|torch\.cuda\.is_available\(\) is False|No HIP GPUs are available|Unknown backend:? '?(cuda|gpu)"
    r"|No supported gpu backend|from the '(CUDA|HIP)' backend|without ATen_CUDA|Invalid CUDA 'device="
    r"|Cannot access accelerator device when none is available"
)
_NO_FOLDER: Final = (
    "The directory does not exist: create it first with os.makedirs(…, exist_ok=True), or write to run.output_dir."
)
NO_WORD: Final = 74
"""Exit code of a learner that could not write its result because the disk was full (EX_IOERR)."""
ROWS: Final[tuple[Row, ...]] = (
    # -- exceptions: memory and devices
    Row(
        code="gpu_memory",
        cause=Cause.RESOURCES,
        raised=("OutOfMemoryError", "AcceleratorError", "RuntimeError"),
        message=r"(CUDA|HIP)( driver)?( error:)? out of memory|MPS backend out of memory|cudaErrorMemoryAllocation",
        advice="The GPU's memory is full: use a smaller batch, or more learners at the same global batch."
        " What the notebook itself holds on the GPU counts: delete it, or restart the kernel.",
    ),
    Row(
        code="gpu_memory",
        cause=Cause.RESOURCES,
        raised=("ResourceExhaustedError", "XlaRuntimeError", "JaxRuntimeError", "InternalError"),
        message=r"OOM when allocating|RESOURCE_EXHAUSTED|Out of memory|[Ff]ailed to allocate memory",
        advice="The GPU's memory is full: use a smaller batch, or more learners at the same global batch."
        " A notebook that has used JAX holds three quarters of it: there, set XLA_PYTHON_CLIENT_PREALLOCATE=false"
        " before the import, and restart the kernel.",
        has_gpus=True,
    ),
    Row(
        code="host_memory",
        cause=Cause.RESOURCES,
        raised=("MemoryError", "ArrayMemoryError"),
        advice="The machine's memory is full: load less at once, or request more with --memory.",
    ),
    Row(
        code="host_memory",
        cause=Cause.RESOURCES,
        message=r"DefaultCPUAllocator: can't allocate memory|not enough memory: you tried to allocate|std::bad_alloc"
        r"|OOM when allocating|RESOURCE_EXHAUSTED: Out of memory|\[Errno 12\]|Cannot allocate memory"
        r"|Unable to allocate .* for an array|[Ff]ailed to allocate memory",
        advice="The machine's memory is full: use a smaller batch, or request more with --memory.",
    ),
    Row(
        code="shared_memory",
        cause=Cause.RESOURCES,
        message=r"insufficient shared memory|unable to (open|allocate) shared memory|Bus error.*shared memory",
        advice="Shared memory is too small for these DataLoader workers: use fewer workers, or num_workers=0.",
    ),
    Row(
        code="shared_memory",
        cause=Cause.RESOURCES,
        raised=("RuntimeError",),
        message=r"DataLoader worker \(pid.*exited unexpectedly$",
        traced=r"insufficient shared memory|is killed by signal: Bus error",
        advice="Shared memory is too small for these DataLoader workers: use fewer workers, or num_workers=0.",
    ),
    Row(
        code="data_worker_crashed",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"DataLoader worker \(pid.*exited unexpectedly",
        traced=r"is killed by signal: (?!Killed|Terminated)|exited unexpectedly with exit code",
        advice="A DataLoader worker crashed in native code or ended itself: use num_workers=0 to see the line.",
    ),
    Row(
        code="data_worker",
        cause=Cause.EVICTED,
        raised=("RuntimeError",),
        message=r"DataLoader worker \(pid.*(is killed by signal: (Killed|Terminated)|exited unexpectedly$)",
        advice="A DataLoader worker was killed, often because memory ran out: use fewer workers, or more --memory.",
    ),
    Row(
        code="data_worker_crashed",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"DataLoader worker \(pid.*is killed by signal: ",
        advice="A DataLoader worker crashed in native code: use num_workers=0 to see the line.",
    ),
    Row(
        code="worker_lost",
        cause=Cause.UNKNOWN,
        raised=("BrokenExecutor", "TerminatedWorkerError"),
        message=r"terminated abruptly|unexpectedly terminated",
        advice="A worker process ended unexpectedly, often because memory ran out: use fewer workers, or request more "
        "with --memory.",
    ),
    Row(
        code="disk_full",
        cause=Cause.RESOURCES,
        message=r"No space left on device|Disk quota exceeded|database or disk is full"
        r"|PytorchStreamWriter failed writing|unexpected pos \d+ vs|\d+ requested and \d+ written",
        advice="The disk is full: delete old jobs and checkpoints, then retry.",
    ),
    Row(
        code="disk_full",
        cause=Cause.RESOURCES,
        raised=("RuntimeError",),
        message=r"iostream error",
        traced=r"/serialization\.py.*, in (save|__exit__)\b",
        advice="The file could not be written, most likely because the disk is full: delete old jobs and checkpoints, "
        "then retry.",
    ),
    Row(
        code="too_many_files",
        cause=Cause.RESOURCES,
        raised=("OSError", "RuntimeError"),
        message=r"Too many open files",
        advice="Too many open files: close unused files, or raise `ulimit -n` before starting Jupyter.",
    ),
    Row(
        code="too_many_processes",
        cause=Cause.RESOURCES,
        raised=("RuntimeError", "OSError"),
        message=r"can't start new thread|Resource temporarily unavailable",
        advice="This user's limit of processes and threads is reached: use fewer workers, or raise `ulimit -u`.",
    ),
    Row(
        code="gpu_assert",
        cause=Cause.YOUR_CODE,
        message=r"device-side assert triggered|illegal memory access|misaligned address",
        advice="An index was out of range on the GPU, often a label beyond the number of classes. "
        "Run once with CUDA_LAUNCH_BLOCKING=1 (--env) to see the line.",
    ),
    Row(
        code="gpu_lost",
        cause=Cause.HARDWARE,
        message=r"[Uu]ncorrectable (NVLink|ECC) error|GPU is lost|fallen off the bus|unspecified launch failure|\bXid\b"
        r"|hardware stack error|CUDA error: unknown error",
        advice="The GPU failed. The job restarts on another one.",
    ),
    Row(
        code="no_gpu",
        cause=Cause.YOUR_CODE,
        message=rf"CUDA driver version is insufficient|{_NO_GPU}",
        advice="This job runs on CPUs, but the program requires a GPU: use run.device, or "
        'torch.device("cuda" if torch.cuda.is_available() else "cpu"); for torch.load, set map_location.',
        has_gpus=False,
    ),
    Row(
        code="gpu_index",
        cause=Cause.YOUR_CODE,
        message=r"invalid device ordinal|Invalid device id",
        advice="The program uses a GPU that its learner does not have. GPUs are numbered from 0 within each "
        "learner: use run.device, or request more with --gpus-per-learner.",
    ),
    Row(
        code="no_gpu",
        cause=Cause.YOUR_CODE,
        message=r"from the 'MPS' backend|MPS (backend|device) .*(not|only)|PyTorch is not linked with support for mps",
        advice="The program requires an Apple GPU, but this machine has none: use run.device.",
    ),
    Row(
        code="gpu_busy",
        cause=Cause.PLATFORM,
        message=r"devices? (is|are)( all)? busy or unavailable|exclusive (process|thread)",
        advice="A process outside the pool uses the GPU; find it with `nvidia-smi`. The job is retried.",
    ),
    Row(
        code="gpu_driver",
        cause=Cause.PLATFORM,
        message=rf"CUDA driver version is insufficient|CUDA error: no kernel image|kernel image is invalid|{_NO_GPU}"
        r"|forward compatibility was attempted|system has unsupported display driver",
        advice="This PyTorch build does not match the machine's GPU driver: install a matching build.",
    ),
    Row(
        code="gpu_library",
        cause=Cause.RESOURCES,
        message=r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)",
        advice="A GPU library could not start, usually because GPU memory ran out: use a smaller batch.",
    ),
    Row(
        code="gpu_library",
        cause=Cause.RESOURCES,
        message=r"CU(BLAS|DNN|SPARSE|SOLVER|FFT)_STATUS_\w+",
        advice="A GPU library failed, usually because memory ran out or an index was out of range: use a smaller "
        "batch, or run once with CUDA_LAUNCH_BLOCKING=1 (--env) to see the line.",
    ),
    Row(
        code="native_library",
        cause=Cause.PLATFORM,
        raised=("ImportError", "OSError"),
        message=r"cannot open shared object file|undefined symbol|GLIBC(XX)?_\S+. not found",
        advice="A package was built for another system: reinstall it into the kernel's environment.",
    ),
    Row(
        code="native_library",
        cause=Cause.PLATFORM,
        raised=("ImportError", "ValueError", "RuntimeError", "AttributeError"),
        message=r"binary incompatibility|compiled (using|against) .*[Nn]um[Pp]y|Numpy is not available"
        r"|numpy.core.multiarray failed to import",
        advice="Two packages were built for different versions of each other, often of NumPy: update both in the "
        "kernel's environment.",
    ),
    Row(
        code="disk_broken",
        cause=Cause.HARDWARE,
        raised=("OSError",),
        message=r"Input/output error|Stale file handle|Transport endpoint is not connected|Remote I/O error"
        r"|Structure needs cleaning",
        advice="The disk or the network file system reports errors: check it, then resubmit the job.",
    ),
    Row(
        code="checkpoints_damaged",
        cause=Cause.PLATFORM,
        raised=("CheckpointsDamaged",),
        advice="The job is not restarted automatically. To train from step 0 in a new job: `jupyter dlaas retry JOB`. "
        "To delete this job and its files: `jupyter dlaas delete JOB`.",
    ),
    Row(
        code="checkpoint_too_new",
        cause=Cause.PLATFORM,
        raised=("CheckpointTooNew", "FormatTooNew"),
        advice="Update jupyter_dlaas, then `jupyter dlaas resume JOB`; or train from step 0 in a new job: "
        "`jupyter dlaas retry JOB`.",
    ),
    Row(
        code="fork_after_cuda",
        cause=Cause.YOUR_CODE,
        message=r"Cannot re-initialize CUDA in forked subprocess",
        advice="DataLoader workers must not touch the GPU: move tensors to it in the training loop.",
    ),
    # -- exceptions: other learners of the gang
    Row(
        code="peer_lost",
        cause=Cause.UNKNOWN,
        raised=("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError"),
        message=r"Connection (closed|reset) by peer|Connection refused|[Gg]loo.*(timeout|connect)"
        r"|NCCL (error|communicator)|Broken pipe|Socket Timeout|wait timeout|recvValue failed"
        r"|Timed out waiting .*clients|Failed to recv, got 0 bytes|client socket has (failed|timed out)",
        advice="Another learner or the rendezvous of the gang ended first: see the other learners' logs for the cause.",
        is_collateral=True,
    ),
    Row(
        code="connection",
        cause=Cause.UNKNOWN,
        raised=("ConnectionError", "ConnectionResetError", "BrokenPipeError", "DistNetworkError"),
        message=r"Connection (closed|reset|aborted)|Connection refused|Broken pipe|Max retries exceeded"
        r"|client socket has (failed|timed out)",
        advice="A server or process that the program connects to is not running, or closed the connection.",
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
        code="folder_missing",
        cause=Cause.YOUR_DATA,
        raised=(
            "FileNotFoundError",
            "OSError",
            "RuntimeError",
        ),
        message=r"^Cannot save file into a non-existent directory|^Parent directory .* does not exist",
        advice=_NO_FOLDER,
    ),
    Row(
        code="folder_missing",
        cause=Cause.YOUR_DATA,
        raised=("FileNotFoundError",),
        traced=r"(open\([^\n]*,\s*(mode=)?[\"'][wax][bt+]*[\"']|in (write_text|write_bytes|touch|mkdir|makedirs)\b)"
        r"[^\n]*(\n[^\n]*){0,7}\nFileNotFoundError",
        advice=_NO_FOLDER,
    ),
    Row(
        code="file_missing",
        cause=Cause.YOUR_DATA,
        raised=("FileNotFoundError",),
        advice="Paths are relative to the notebook's directory. Check the path, or send the file with --include.",
    ),
    Row(
        code="file_missing",
        cause=Cause.YOUR_DATA,
        raised=("OSError", "ValueError", "RuntimeError", "NotFoundError"),
        message=r"^File not found|No such file or directory|Dataset not found|Repo id must be in the form"
        r"|Failed to find any matching files|file does not exist at"
        r"|is not a local folder and is not a valid model identifier|^path .* does not exist",
        advice="Paths are relative to the notebook's directory. Check the path or name, download the data in the "
        "notebook first, or send the file with --include.",
    ),
    Row(
        code="not_a_file",
        cause=Cause.YOUR_DATA,
        raised=("IsADirectoryError", "NotADirectoryError"),
        advice="The program expects a file but finds a directory, or the other way round: print the path.",
    ),
    Row(
        code="no_permission",
        cause=Cause.YOUR_DATA,
        raised=("PermissionError",),
        advice="The job has no permission to read or write there. Write to run.output_dir.",
    ),
    Row(
        code="read_only",
        cause=Cause.YOUR_DATA,
        raised=("OSError",),
        message=r"Read-only file system",
        advice="The file system is read-only. Write to run.output_dir.",
    ),
    Row(
        code="no_credentials",
        cause=Cause.YOUR_CODE,
        message=r"[Aa][Pp][Ii]_?\s?[Kk]ey (is )?not (configured|set|found)|No API key|gated repo|locate credentials"
        r"|401 Client Error|HTTP Error 401|\bUnauthorized\b"
        r"|[Ii]nvalid (API key|credentials|(access|user|auth\w*) token)",
        advice="The service needs a login that the job does not have: send the token in its environment variable, for "
        "example --secret HF_TOKEN or --secret WANDB_API_KEY.",
    ),
    Row(
        code="download",
        cause=Cause.YOUR_DATA,
        raised=("URLError", "HTTPError", "SSLError", "gaierror", "ConnectTimeout", "ReadTimeout"),
        advice="The download failed. Check the address and the network, or download in the notebook first.",
    ),
    Row(
        code="download",
        cause=Cause.YOUR_DATA,
        raised=("RuntimeError",),
        message=r"Error downloading",
        advice="The download failed. Check the address and the network, or download in the notebook first.",
    ),
    Row(
        code="download",
        cause=Cause.YOUR_DATA,
        raised=("OSError", "TransportError"),
        message=r"[Cc]ouldn't connect to|Failed to resolve|Name or service not known|No route to host"
        r"|[Tt]emporary failure in name resolution|Network is unreachable|certificate verify failed",
        advice="The download failed. Check the address and the network, or download in the notebook first.",
    ),
    Row(
        code="file_exists",
        cause=Cause.YOUR_DATA,
        raised=("FileExistsError",),
        advice="It exists already, perhaps from an earlier run: use exist_ok=True or another name, or write to "
        "run.output_dir.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=(
            *("UnidentifiedImageError", "UnicodeDecodeError", "BadZipFile", "BadGzipFile", "ReadError", "LZMAError"),
            *("ParserError", "EmptyDataError", "JSONDecodeError", "SafetensorError", "ArrowInvalid", "DataLossError"),
            *("ParseError", "XMLSyntaxError", "YAMLError", "TOMLDecodeError", "ParsingError", "DecodeError"),
        ),
        advice="A data file is damaged, empty or in an unexpected format: look at its first lines.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("EOFError", "UnpicklingError"),
        message=r"Ran out of input|pickle data was truncated|invalid load key|ended before the end-of-stream",
        advice="A data file is damaged or incomplete: download or write it again.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("UnpicklingError",),
        message=r"Weights only load failed[\s\S]*Unsupported operand (?!149\b)",
        advice="The file was not written by torch.save: look at its first bytes. The download may have saved an error "
        "page or a Git LFS pointer instead.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        message=r"PytorchStreamReader failed|Invalid magic number; corrupt file|file signature not found"
        r"|image file is truncated|[Tt]runcated [Ff]ile|broken (PNG|data stream)"
        r"|[Cc]orrupt(ed)? (file|data|JPEG)|Error while deserializing header"
        r"|incorrect header check|incorrect data check|incomplete or truncated stream|truncated header|bad magic number"
        r"|No data left in file|Failed to interpret file|database disk image is malformed|file is not a database"
        r"|unpack(_from)? requires a buffer|while decompressing data|Incorrect padding|line contains NUL"
        r"|field larger than field limit|Unknown image file format",
        advice="A data file is damaged or incomplete: download or write it again.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("KeyError", "IndexError"),
        traced=r"in (_legacy_load|load)\n.*\n?.*pickle_module\.load|_legacy_load",
        advice="The file was not written by torch.save or pickle.dump, or it is damaged: look at its first bytes.",
    ),
    Row(
        code="missing_values",
        cause=Cause.YOUR_DATA,
        raised=("ValueError",),
        message=r"Input \w* ?contains (NaN|infinity|missing)|NaN values? in (the )?(data|input|column)"
        r"|[Cc]annot convert (non-finite|float NaN)|exog contains inf or nans",
        advice="The data has missing or infinite values: drop or fill them before training.",
    ),
    Row(
        code="bad_value",
        cause=Cause.YOUR_DATA,
        raised=("ValueError",),
        message=r"could not convert string to float|invalid literal for int\(\)|arrays of bytes/strings"
        r"|Unable to parse string|Invalid date specified|time data .* does(n't| not) match",
        advice="The data contains text where a number is expected: look at this column or line, often a heading "
        "or an empty field.",
    ),
    Row(
        code="bad_value",
        cause=Cause.YOUR_DATA,
        raised=("ValueError", "SyntaxError"),
        traced=r"in literal_eval\b",
        advice="The text is not a Python literal, often because it is cut off or empty: print it before this line.",
    ),
    Row(
        code="bad_value",
        cause=Cause.YOUR_DATA,
        raised=("ValueError",),
        message=r"dtypes( for data)? must be int, (float|bool)",
        advice="A column holds text or objects: encode it, for example with pd.get_dummies or astype("
        '"category") where the library supports it, or drop it.',
    ),
    Row(
        code="label_type",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"Unknown label type",
        advice="A classifier needs classes as labels: convert them to integers, or use a regressor.",
    ),
    Row(
        code="one_class",
        cause=Cause.YOUR_DATA,
        raised=("ValueError",),
        message=r"contains only one class|at least 2 classes|least populated class|Only one class present",
        advice="A class has no examples or too few: count the labels, and split with stratify=….",
    ),
    Row(
        code="no_keyboard",
        cause=Cause.YOUR_CODE,
        raised=("NoKeyboard", "EOFError"),
        message=r"input\(\)|EOF when reading a line",
        advice="A job cannot prompt for input: assign the value in an earlier cell.",
    ),
    Row(
        code="bad_data",
        cause=Cause.YOUR_DATA,
        raised=("EOFError",),
        advice="A file or connection ended unexpectedly: check the size of the file that this line reads.",
    ),
    *TENSOR_ROWS,
    *CODE_ROWS,
    # -- ends without an exception
    Row(
        code="host_memory",
        cause=Cause.RESOURCES,
        signal=signals.SIGKILL,
        out_of_memory=True,
        what="killed by the system because memory ran out",
        advice="Load less data at once, use fewer DataLoader workers, or request more with --memory.",
    ),
    Row(
        code="killed",
        cause=Cause.EVICTED,
        signal=signals.SIGKILL,
        what="killed from outside (SIGKILL)",
        advice="A user or the system killed the process. The job restarts from the last checkpoint.",
    ),
    Row(
        code="interrupted",
        cause=Cause.EVICTED,
        signal=signals.SIGINT,
        what="interrupted from outside (SIGINT)",
        advice="A user interrupted the process. The job restarts from the last checkpoint.",
    ),
    *(
        Row(
            code="terminated",
            cause=Cause.EVICTED,
            signal=number,
            what=f"terminated from outside ({number.name})",
            advice="A user or the system terminated the process. The job restarts from the last checkpoint.",
        )
        for number in (signals.SIGTERM, signals.SIGHUP, signals.SIGQUIT)
    ),
    Row(
        code="segfault",
        cause=Cause.YOUR_CODE,
        signal=signals.SIGSEGV,
        what="crashed in native code (segmentation fault)",
        advice="Native code that this line calls crashed: a frequent cause is two incompatible libraries, or endless "
        "recursion. The end of the log shows the Python stack.",
    ),
    Row(
        code="bus_error",
        cause=Cause.RESOURCES,
        signal=signals.SIGBUS,
        what="crashed with a bus error (SIGBUS)",
        advice="Frequent causes: shared memory or the disk is full, or a memory-mapped file was truncated.",
    ),
    Row(
        code="aborted",
        cause=Cause.YOUR_CODE,
        signal=signals.SIGABRT,
        what="aborted by a native library (SIGABRT)",
        advice="A native library ended the program, often after a failed check or damaged memory: its message is at "
        "the end of the log.",
    ),
    Row(
        code="floating_point",
        cause=Cause.YOUR_CODE,
        signal=signals.SIGFPE,
        what="crashed with an arithmetic error in native code (SIGFPE)",
        advice="A frequent cause is an integer division by zero in native code.",
    ),
    Row(
        code="illegal_instruction",
        cause=Cause.PLATFORM,
        signal=signals.SIGILL,
        what="executed an instruction that this processor does not support (SIGILL)",
        advice="A package was built for another processor: install one for this machine.",
    ),
    Row(
        code="cpu_time",
        cause=Cause.RESOURCES,
        signal=signals.SIGXCPU,
        what="exceeded its CPU time limit (SIGXCPU)",
        advice="Raise `ulimit -t`.",
    ),
    Row(
        code="no_program",
        cause=Cause.PLATFORM,
        exit_code=127,
        what="the interpreter could not be started",
        advice="Check that the kernel's environment still exists.",
    ),
    Row(
        code="no_program",
        cause=Cause.PLATFORM,
        exit_code=126,
        what="no permission to execute the interpreter",
        advice="Check the permissions of the kernel's environment.",
    ),
    Row(
        code="disk_full",
        cause=Cause.RESOURCES,
        exit_code=NO_WORD,
        what="finished, but its results could not be written because the disk was full",
        advice="Delete old jobs and checkpoints, then retry.",
    ),
    Row(
        code="vanished",
        cause=Cause.UNKNOWN,
        exit_code=0,
        what="exited without reporting a result, for example through os._exit(0)",
        advice="Let the program end normally, so that its result can be reported.",
    ),
)
