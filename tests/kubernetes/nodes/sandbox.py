"""Container runtime of the process nodes: runs one command in namespaces of its own.

The command sees this machine's files read-only, with mounts of its own on top, and is process 1 of its PID namespace:
it ignores signals that it does not handle, and everything it started ends with it. It shares the machine's network.
Used as `python -I -S sandbox.py SPEC STATUS_FD PARENT_PID`. SPEC is the path of a JSON file. Lines of JSON on STATUS_FD
report {"started": pid} or {"error": text}, then {"code": exit code}. Works as root, and where users may create
namespaces. When the parent ends, the container is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
)
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH: Final = 2
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SYS_MOUNT_SETATTR: Final = 442  # the same number on all architectures
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
DEVICES: Final = {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "ptmx", "pts"}
START_ERROR: Final = 128


def check(result: int, what: str) -> None:
    """Raise OSError where a call of the C library failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    check(LIBC.mount(source.encode(), target.encode(), encoded, flags, data.encode()), f"mount {source} on {target}")


def make_read_only(target: str) -> None:
    """Make the mount at `target` and all mounts below it read-only."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    call = LIBC.syscall(
        SYS_MOUNT_SETATTR,
        AT_FDCWD,
        target.encode(),
        AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    check(call, f"mount_setattr {target}")


def ancestors(path: str) -> set[str]:
    found = set()
    while path != "/":
        path = os.path.dirname(path)
        found.add(path)
    return found


class Root:
    """The file tree of a container, built at `at` from this machine's files and a list of mounts."""

    def __init__(self, at: str, mounts: list[dict[str, Any]]) -> None:
        self.at = at
        self.mounts = [mount | {"target": os.path.realpath(mount["target"])} for mount in mounts]
        self.mounts.sort(key=lambda mount: mount["target"].count("/"))
        self.targets = {mount["target"] for mount in self.mounts}
        self.opened = {path for target in self.targets for path in ancestors(target)} | {"/dev"}

    def build(self) -> None:
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        mount("tmpfs", self.at, "tmpfs", MS_NOSUID, "mode=755")
        self._copy("/")
        for item in self.mounts:
            self._mount_point(item)
        make_read_only(self.at)
        for item in self.mounts:
            self._mount(item)

    def _copy(self, folder: str) -> None:
        """Bind what `folder` holds, except paths that get a mount of their own, or contain one."""
        for entry in os.scandir(folder):
            path, copy = entry.path, self.at + entry.path
            if path in self.targets or (folder == "/dev" and entry.name not in DEVICES):
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(path), copy)
            elif entry.is_dir():
                os.mkdir(copy, 0o755)
                if path in self.opened:
                    self._copy(path)
                else:
                    mount(path, copy, None, MS_BIND | MS_REC)
            else:
                os.close(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o644))
                mount(path, copy, None, MS_BIND)

    def _mount_point(self, item: dict[str, Any]) -> None:
        """Create the path on which `item` is mounted, unless it lies within another mount."""
        path = self.at + item["target"]
        if os.path.lexists(path):
            return
        folder = path if item.get("folder", True) else os.path.dirname(path)
        os.makedirs(folder, 0o755, exist_ok=True)
        if folder != path:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))

    def _mount(self, item: dict[str, Any]) -> None:
        path, kind = self.at + item["target"], item["kind"]
        self._mount_point(item)
        if kind == "bind":
            mount(item["source"], path, None, MS_BIND | MS_REC)
        else:
            mount(kind, path, kind, MS_NOSUID | MS_NODEV, item.get("options", ""))
        if item.get("read_only"):
            make_read_only(path)

    def enter(self) -> None:
        os.chdir(self.at)
        check(LIBC.pivot_root(b".", b"."), "pivot_root")
        check(LIBC.umount2(b".", MNT_DETACH), "umount the machine's root")
        os.chdir("/")


def be_user(spec: dict[str, Any], is_root: bool) -> None:
    if is_root:
        os.setgroups(spec.get("groups", []))
        os.setresgid(spec["gid"], spec["gid"], spec["gid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")  # a change of user deletes it


def be_container(spec: dict[str, Any], is_root: bool, errors: int) -> None:
    """Run the command as this process; return only if that fails."""
    try:
        hostname = spec["hostname"].encode()[:63]
        check(LIBC.sethostname(hostname, len(hostname)), "hostname")
        root = Root(spec["root"], spec["mounts"])
        root.build()
        root.enter()
        be_user(spec, is_root)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)  # Python ignores or handles these
        os.umask(0o022)
        os.chdir(spec["directory"])
        os.execvpe(spec["command"][0], spec["command"], spec["environment"])
    except FileNotFoundError as error:
        name = spec["command"][0] if error.filename is None else error.filename
        text = f'exec: "{spec["command"][0]}": {name}: executable file not found in $PATH'
        os.write(errors, text.encode())
    except OSError as error:
        os.write(errors, f'exec: "{spec["command"][0]}": {error.strerror}'.encode())
    os._exit(START_ERROR)


def enter_user_namespace(uid: int, gid: int) -> None:
    own_uid, own_gid = os.getuid(), os.getgid()
    check(LIBC.unshare(CLONE_NEWUSER), "user namespace (needs root, or permission for users to create namespaces)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {own_uid} 1"), ("gid_map", f"{gid} {own_gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def main(spec_path: str, status: int, parent: int) -> int:
    check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
    if os.getppid() != parent:
        return 1
    with open(spec_path) as file:
        spec = json.load(file)

    def report(**values: object) -> None:
        os.write(status, (json.dumps(values) + "\n").encode())

    is_root = os.geteuid() == 0
    try:
        if not is_root:
            enter_user_namespace(spec["uid"], spec["gid"])
        check(LIBC.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID), "namespaces")
    except OSError as error:
        report(error=str(error))
        return 1
    receive, send = os.pipe()  # closed by a successful exec
    child = os.fork()
    if child == 0:
        os.close(receive)
        check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
        be_container(spec, is_root, send)
    os.close(send)
    for output in (1, 2):
        os.close(output)  # the container's output ends with the container
    problem = os.read(receive, 4096).decode()
    if problem:
        os.waitpid(child, 0)
        report(error=problem)
        return START_ERROR
    report(started=child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    report(code=code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
