"""First program of a pod: unpacks the package and runs one of its modules. Runs on any Python 3, to name a wrong one.

Usage: python3 bootstrap.py any|MAJOR.MINOR DIRECTORY MODULE [ARGUMENT...]
Standard library only. It is shipped as a text.
"""

import gzip
import io
import os
import sys
import zipfile
from pathlib import Path

WRONG_PYTHON = 41
"""Exit code where the image's Python is not the one that the job needs."""


def refusal(version: "tuple[int, ...]", expected: str) -> "str | None":
    """Return why this version of Python cannot run the job; None if it can."""
    here = "%d.%d" % tuple(version[:2])  # noqa: UP031  # also for versions without f-strings
    if tuple(version[:2]) < (3, 11):
        return "The image has Python " + here + ", but learners need Python 3.11 or newer."
    if expected not in ("any", here):
        return "The image has Python " + here + ", but the notebook has Python " + expected + "."
    return None


def main(arguments: "list[str]") -> int:
    """Check Python, unpack the package and become the module's process. Return an exit code if Python is wrong."""
    expected, directory, *module = arguments
    reason = refusal(sys.version_info[:2], expected)
    if reason is not None:
        print(reason, file=sys.stderr)
        return WRONG_PYTHON
    package = Path(directory) / "package"
    data = gzip.decompress(Path(__file__).with_name("jupyter_dlaas.zip.gz").read_bytes())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(str(package))
    if os.environ.get("HOME"):
        Path(os.environ["HOME"]).mkdir(exist_ok=True)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(package) + os.pathsep + path if path else str(package)
    os.environ["PYTHONUNBUFFERED"] = "1"
    return os.execv(sys.executable, [sys.executable, "-P", "-m", *module])  # noqa: S606  # an argument list, no shell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
