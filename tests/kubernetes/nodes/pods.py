"""The life of one pod on a process node, as a kubelet leads it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from tests.kubernetes.api import ApiError, Json
from tests.kubernetes.nodes.containers import Container, ContainerSpec, Log, StartFailed, second_time
from tests.kubernetes.nodes.images import (
    IMAGE_USER,
    InvalidName,
    PullFailed,
    base_mounts,
    check_name,
    image_environment,
)
from tests.kubernetes.nodes.status import (
    CREATING,
    INITIALIZING,
    ContainerRecord,
    Verdict,
    pod_status,
    restarts,
)
from tests.kubernetes.nodes.volumes import ConfigError, MountError, container_environment, expand_all, prepare_volume

if TYPE_CHECKING:
    from tests.kubernetes.nodes.node import ProcessNode

__all__ = ["PodWorker"]

LOGGER: Final = logging.getLogger(__name__)
RETRY_S: Final = 0.2
BACKOFF_MAX_S: Final = 8.0
MESSAGE_MAX: Final = 4096
CLOSE_S: Final = 5.0
"""Time for the containers' processes to end after they were killed."""
FALLBACK_MAX: Final = 2048
TERMINATION_LOG: Final = "/dev/termination-log"


class Stopping(Exception):
    """The pod ends before its containers started."""


class PodWorker:
    """Runs the containers of one pod and reports its status."""

    def __init__(self, node: ProcessNode, pod: Json) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.name: str = pod["metadata"]["name"]
        self.namespace: str = pod["metadata"]["namespace"]
        self.logs: dict[str, list[Log]] = {}
        self._node = node
        self._folder = node.folder / self.uid
        self._ip: str | None = None
        self._started = second_time()
        self._mounts: dict[str, Json] = {}
        self._init = [ContainerRecord(c["name"], c["image"]) for c in self._containers("initContainers")]
        self._main = [ContainerRecord(c["name"], c["image"]) for c in self._containers("containers")]
        self._running: dict[str, Container] = {}
        self._verdict: Verdict | None = None
        self._stopping = asyncio.Event()
        self._deletion: asyncio.Task[None] | None = None
        self._dirty = asyncio.Event()
        self._sent: Json | None = None
        self._is_gone = False
        self._publishing = asyncio.Lock()
        self._transitions: dict[str, tuple[str, str]] = {}
        self._publisher = asyncio.create_task(self._publish_changes())
        self._deadline: asyncio.Task[None] | None = None
        self._follow_deadline()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._log_failure)

    @property
    def address(self) -> str | None:
        """The pod's address, from the moment its node takes it over."""
        return self._ip

    # ---- requests of the node --------------------------------------------------------------------------------------

    def update(self, pod: Json) -> None:
        """Take over a new version of the pod; begin its deletion if it was requested."""
        self.pod = pod
        if self._sent is not None and not _is_reported(self._sent, pod):
            self._sent = None  # another component wrote into it, such as the node lifecycle controller
            self._dirty.set()
        self._follow_deadline()
        if "deletionTimestamp" in pod["metadata"] and self._deletion is None:
            grace_s = pod["metadata"].get("deletionGracePeriodSeconds", 0)
            self._deletion = asyncio.create_task(self._delete(grace_s))
            self._deletion.add_done_callback(self._log_failure)

    async def remove(self) -> None:
        """End a pod whose object no longer exists."""
        self._is_gone = True
        await self.stop(1.0)
        await self.close()

    async def stop(self, grace_s: float, verdict: Verdict | None = None) -> None:
        """End all containers: SIGTERM, and SIGKILL after the grace period."""
        if self._verdict is None:
            self._verdict = verdict
        self._stopping.set()
        for container in self._running.values():
            self._node.event(self.pod, "Normal", "Killing", "Stopping container")
            container.send_signal(signal.SIGTERM)
        if verdict is not None:
            self._dirty.set()
        done, _ = await asyncio.wait([self._task], timeout=grace_s)
        if not done:
            for container in list(self._running.values()):
                container.send_signal(signal.SIGKILL)
            await asyncio.wait([self._task])

    def oom_kill(self, container: str) -> None:
        """End a container as the kernel does when it exceeds its memory limit."""
        self._running[container].is_oom_killed = True
        self._running[container].send_signal(signal.SIGKILL)

    def kill_process(self, container: str, pid: int) -> None:
        """Kill one process of a container, known by its pid there."""
        self._running[container].kill_process(pid)

    def destroy(self) -> None:
        """Kill all processes and report nothing, as a failing machine does."""
        for container in self._running.values():
            container.destroy()

    async def close(self) -> None:
        """Stop reporting and delete the pod's files."""
        self._is_gone = True
        self._stopping.set()
        self.destroy()
        await asyncio.wait([self._task], timeout=CLOSE_S)
        tasks = [task for task in (self._task, self._publisher, self._deadline, self._deletion) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._ip is not None:
            self._node.addresses.release(self._ip)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _delete(self, grace_s: float) -> None:
        await self.stop(grace_s)
        await self._publish()
        await self._persist(lambda: self._node.api.delete("pods", self.namespace, self.name, grace_s=0, uid=self.uid))

    # ---- the pod's life ---------------------------------------------------------------------------------------------

    def _containers(self, kind: str) -> list[Json]:
        containers: list[Json] = self.pod["spec"].get(kind) or []
        return containers

    @property
    def _policy(self) -> str:
        policy: str = self.pod["spec"].get("restartPolicy", "Always")
        return policy

    async def _run(self) -> None:
        try:
            self._folder.mkdir(parents=True)
            if self._policy == "Never" and self.pod.get("status", {}).get("startTime"):
                self._give_up_lost_containers()
                return
            if self._init:
                for record in self._main:
                    record.state = dict(INITIALIZING)
            self._dirty.set()
            self._ip = self._node.addresses.take()
            await self._prepare_volumes()
            for container, record in zip(self._containers("initContainers"), self._init, strict=True):
                await self._run_container(container, record)
                if record.exit_code != 0:
                    return
            for record in self._main:
                record.state = dict(CREATING)
            pairs = zip(self._containers("containers"), self._main, strict=True)
            runs = [self._run_container(container, record) for container, record in pairs]
            # A container that never starts must not end the wait for one that runs.
            for result in await asyncio.gather(*runs, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        except Stopping:
            LOGGER.debug("%s/%s ends before its containers started", self.namespace, self.name)
        finally:
            if self._deadline is not None and not self._stopping.is_set():
                self._deadline.cancel()
            if self._stopping.is_set():
                self._mark_unknown()
            self._dirty.set()

    def _follow_deadline(self) -> None:
        """Begin to enforce the pod's deadline, which may be set while it runs."""
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds and self._deadline is None:
            self._deadline = asyncio.create_task(self._enforce_deadline(seconds))

    async def _enforce_deadline(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        message = "Pod was active on the node longer than the specified deadline"
        verdict = Verdict(phase="Failed", reason="DeadlineExceeded", message=message)
        await self.stop(self.pod["spec"].get("terminationGracePeriodSeconds", 30), verdict)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            LOGGER.error("%s/%s: the process node failed", self.namespace, self.name, exc_info=error)

    def _give_up_lost_containers(self) -> None:
        """Report the containers of a pod that ran here before this node was restarted."""
        self._stopping.set()
        self._mark_unknown()

    def _mark_unknown(self) -> None:
        message = "The container could not be located when the pod was terminated"
        for record in [*self._init, *self._main]:
            if "terminated" not in record.state:
                ended = {"reason": "ContainerStatusUnknown", "message": message, "exitCode": 137}
                record.state = {"terminated": ended}

    async def _prepare_volumes(self) -> None:
        delay_s = RETRY_S
        for volume in self.pod["spec"].get("volumes") or []:
            folder = self._folder / "volumes" / volume["name"]
            prepared: Json | None = None
            while True:
                try:
                    prepared = await prepare_volume(self._node.api, self.pod, volume, folder, self._ip or "")
                    break
                except MountError as error:
                    text = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
                    self._node.event(self.pod, "Warning", "FailedMount", text)
                except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                    LOGGER.info("volume %s of %s: %s", volume["name"], self.name, error)
                await self._pause(delay_s)
                delay_s = min(delay_s * 2, BACKOFF_MAX_S)
            if prepared is not None:
                self._mounts[volume["name"]] = prepared

    async def _pause(self, seconds: float) -> None:
        """Wait; raise Stopping as soon as the pod has to end."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise Stopping

    async def _interruptible(self, work: Awaitable[Any]) -> Any:
        """Await something that takes time; raise Stopping as soon as the pod has to end."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Stopping
            return task.result()
        finally:
            stop.cancel()
            task.cancel()

    async def _run_container(self, container: Json, record: ContainerRecord) -> None:
        """Run a container until it has ended and may not be restarted."""
        delay_s = self._node.restart_backoff_s
        policy = self._policy
        if record in self._init and policy == "Always":
            policy = "OnFailure"
        while True:
            await self._pull(container, record)
            environment = await self._environment(container, record)
            await self._run_once(container, record, environment)
            code = record.exit_code
            assert code is not None
            if self._stopping.is_set() or not restarts(policy, code):
                return
            record.last_state = record.state
            message = f"back-off {delay_s:g}s restarting failed container={record.name} pod={self.name}"
            record.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            self._dirty.set()
            try:
                await self._pause(delay_s)
            except Stopping:
                record.state = record.last_state
                return
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)
            record.restarts += 1

    def _wait_state(self, record: ContainerRecord, reason: str, message: str) -> None:
        record.state = {"waiting": {"reason": reason, "message": message}}
        self._dirty.set()

    async def _pull(self, container: Json, record: ContainerRecord) -> None:
        image, images = record.image, self._node.images
        policy = container.get("imagePullPolicy", "IfNotPresent")
        delay_s = self._node.pull_backoff_s
        while True:
            try:
                check_name(image)
            except InvalidName as error:
                self._node.event(self.pod, "Warning", "InspectFailed", str(error))
                self._wait_state(record, "InvalidImageName", str(error))
                await self._pause(delay_s)
                continue
            if images.is_present(image) and policy != "Always":
                break
            if policy == "Never":
                text = f'Container image "{image}" is not present with pull policy of Never'
                self._wait_state(record, "ErrImageNeverPull", text)
                await self._pause(delay_s)
                continue
            self._node.event(self.pod, "Normal", "Pulling", f'Pulling image "{image}"')
            try:
                await self._interruptible(images.pull(image))
                self._node.event(self.pod, "Normal", "Pulled", f'Successfully pulled image "{image}"')
                break
            except PullFailed as error:
                self._node.event(self.pod, "Warning", "Failed", f'Failed to pull image "{image}": {error}')
                self._wait_state(record, "ErrImagePull", str(error))
                await self._publish()
                await self._pause(self._node.pull_error_s)
                text = f'Back-off pulling image "{image}"'
                self._node.event(self.pod, "Normal", "BackOff", text)
                self._wait_state(record, "ImagePullBackOff", f"{text}: ErrImagePull: {error}")
                await self._pause(delay_s)
                delay_s = min(delay_s * 2, BACKOFF_MAX_S)
        record.is_pulled = True

    async def _environment(self, container: Json, record: ContainerRecord) -> dict[str, str]:
        delay_s = RETRY_S
        while True:
            try:
                security = self._security(container)
                if security.get("runAsNonRoot") and security.get("runAsUser") == 0:
                    text = "container's runAsUser breaks non-root policy"
                    raise ConfigError(f'{text} (pod: "{self.name}_{self.namespace}", container: {record.name})')
                own = image_environment(self._hostname, self._node.images.path(record.image))
                own |= self._node.service_environment
                return await container_environment(self._node.api, self.pod, container, own, self._ip or "")
            except ConfigError as error:
                self._node.event(self.pod, "Warning", "Failed", f"Error: {error}")
                self._wait_state(record, "CreateContainerConfigError", str(error))
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                LOGGER.info("environment of %s: %s", self.name, error)
            await self._pause(delay_s)
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)

    @property
    def _hostname(self) -> str:
        hostname: str = self.pod["spec"].get("hostname") or self.name
        return hostname

    def _security(self, container: Json) -> Json:
        return (self.pod["spec"].get("securityContext") or {}) | (container.get("securityContext") or {})

    async def _run_once(self, container: Json, record: ContainerRecord, environment: dict[str, str]) -> None:
        folder = self._folder / "containers" / record.name
        folder.mkdir(parents=True, exist_ok=True)
        runs = self.logs.setdefault(record.name, [])
        if self._node.start_delay_s:
            await self._pause(self._node.start_delay_s)
        log = Log(folder / f"{len(runs)}.log")
        runs.append(log)
        started = second_time()
        run = Container(self._spec(container, environment), folder, log)
        record.container_id = run.container_id
        try:
            await run.start()
        except StartFailed as error:
            text = f"failed to create containerd task: failed to create shim task: {error}"
            self._node.event(self.pod, "Warning", "Failed", f"Error: {text}")
            self._end(record, 128, "StartError", text, started, container)
            return
        self._running[record.name] = run
        self._node.event(self.pod, "Normal", "Started", "Container started")
        record.state = {"running": {"startedAt": started}}
        self._dirty.set()
        if self._stopping.is_set():  # requested while the container started
            run.send_signal(signal.SIGKILL)
        code = await run.wait()
        del self._running[record.name]
        reason = "OOMKilled" if run.is_oom_killed else "Error" if code else "Completed"
        self._end(record, code, reason, "", started, container)

    def _end(
        self, record: ContainerRecord, code: int, reason: str, message: str, started: str, container: Json
    ) -> None:
        if not message:
            written = (self._folder / "containers" / record.name / "termination-log").read_bytes()
            if not written and code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
                written = self.logs[record.name][-1].tail(FALLBACK_MAX)
            message = written[:MESSAGE_MAX].decode(errors="replace")
        ended: Json = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": second_time()}
        ended |= {"containerID": record.container_id} | ({"message": message} if message else {})
        record.state = {"terminated": ended}
        self._dirty.set()

    def _spec(self, container: Json, environment: dict[str, str]) -> ContainerSpec:
        security = self._security(container)
        pod_security = self.pod["spec"].get("securityContext") or {}
        uid = security.get("runAsUser", IMAGE_USER)
        groups = [*pod_security.get("supplementalGroups", [])]
        if (group := pod_security.get("fsGroup")) is not None:
            groups.append(group)
        folder = self._folder / "containers" / container["name"]
        command = container.get("command") or ["sleep", "infinity"]
        return ContainerSpec(
            hostname=self._hostname,
            command=expand_all([*command, *(container.get("args") or [])], environment),
            environment=environment,
            directory=container.get("workingDir") or "/",
            uid=uid,
            gid=security.get("runAsGroup", 0 if "runAsUser" in security else IMAGE_USER),
            groups=groups,
            mounts=[
                *base_mounts(),
                *self._node.images.mounts(container["image"], folder),
                *self._files(container, folder),
                *self._volume_mounts(container),
            ],
        )

    def _files(self, container: Json, folder: Any) -> list[Json]:
        """Return the files that a kubelet mounts into each container."""
        hosts = [f"127.0.0.1\tlocalhost\n{self._ip}\t{self._hostname}\n"]
        for alias in self.pod["spec"].get("hostAliases") or []:
            hosts.append(f"{alias['ip']}\t{' '.join(alias.get('hostnames', []))}\n")
        files = {"/etc/hosts": "".join(hosts), "/etc/hostname": f"{self._hostname}\n"}
        files[container.get("terminationMessagePath", TERMINATION_LOG)] = ""
        mounts = []
        for path, text in files.items():
            name = "termination-log" if not text else path.rsplit("/", 1)[-1]
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o644 if text else 0o666)
            mounts.append({"kind": "bind", "source": str(folder / name), "target": path, "folder": False})
        return mounts

    def _volume_mounts(self, container: Json) -> list[Json]:
        mounts = []
        for wanted in container.get("volumeMounts") or []:
            mount = self._mounts[wanted["name"]] | {"target": wanted["mountPath"]}
            if "subPath" in wanted and mount["kind"] == "bind":
                mount["source"] += "/" + wanted["subPath"]
            if wanted.get("readOnly"):
                mount["read_only"] = True
            mounts.append(mount)
        return mounts

    # ---- reports ----------------------------------------------------------------------------------------------------

    def _status(self) -> Json:
        return pod_status(
            self.pod,
            self._init,
            self._main,
            host_ip=self._node.address,
            pod_ip=self._ip,
            started=self._started,
            now=second_time(),
            verdict=self._verdict,
            is_terminal=self._task.done() and self._stopping.is_set(),
        )

    async def _publish_changes(self) -> None:
        """Send the status whenever it changed; only the latest one counts."""
        while not self._is_gone:
            await self._dirty.wait()
            self._dirty.clear()
            await self._publish()

    async def _publish(self) -> None:
        """Send the present status, unless it was sent before."""
        async with self._publishing:
            status = self._status()
            for condition in status["conditions"]:
                before = self._transitions.get(condition["type"])
                if before is not None and before[0] == condition["status"]:
                    condition["lastTransitionTime"] = before[1]
                self._transitions[condition["type"]] = (condition["status"], condition["lastTransitionTime"])
            if status == self._sent:
                return
            await self._persist(lambda: self._patch_status(status))
            self._sent = status

    def _patch_status(self, status: Json) -> Awaitable[Json]:
        body = {"metadata": {"uid": self.uid}, "status": status}
        api = self._node.api
        return api.patch("pods", self.namespace, self.name, body, subresource="status", kind="strategic")

    async def _persist(self, send: Callable[[], Awaitable[Json]]) -> Json | None:
        """Send a request until it succeeds; None if the pod no longer exists."""
        while not self._is_gone:
            try:
                await self._node.is_connected.wait()
                return await send()
            except ApiError as error:
                if error.status in (404, 409, 422):
                    LOGGER.debug("status of %s: %s", self.name, error)
                    return None
                LOGGER.info("status of %s: %s", self.name, error)
            except (aiohttp.ClientError, TimeoutError) as error:
                LOGGER.info("status of %s: %s", self.name, error)
            await asyncio.sleep(RETRY_S)
        return None


def _is_reported(status: Json, pod: Json) -> bool:
    """Return whether the pod's object has the conditions of a status that was sent."""
    stored = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}
    return all(stored.get(condition["type"]) == condition["status"] for condition in status["conditions"])
