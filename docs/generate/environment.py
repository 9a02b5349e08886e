"""Environment variables. A test compares the table with the variables that the code names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from docs.generate.markdown import code, table

__all__ = ["INTERNAL", "IN_JOBS", "USER", "for_users", "in_jobs", "internal"]

USER: Final[Mapping[str, str]] = {
    "JUPYTER_DLAAS_POOL": "The pool that clients use: a name below `<jupyter data dir>/dlaas`, or a directory with a "
    "slash. It has to exist; `jupyter dlaas pool use local` creates it. The Jupyter server sets the variable for its "
    "kernels. Default: `local`.",
    "JUPYTER_DLAAS_POOL_DIR": "The pool's directory, created if missing. Takes precedence over "
    "`JUPYTER_DLAAS_POOL`; a kernel in which it is set talks "
    "to the engine directly and not through its Jupyter server.",
    "JUPYTER_DLAAS_WARM": "`0`: start no zygote. Jobs then start as ordinary Python processes, which takes a second or "
    "more with PyTorch.",
    "JUPYTER_DLAAS_WATCHDOG": "`0`: do not restart an engine that dies while jobs run. The next client starts it.",
    "DLAAS_TTL_S": "Seconds for which learners keep training without a guardian before they write a checkpoint and "
    "exit. Default: 60.",
    "DLAAS_HANG_S": "In a job's environment (`--env`): minimum time in seconds without progress before a learner "
    "counts as hung. Usually, `--hang-after` sets it.",
    "PYTHONHASHSEED": "Seed of Python's hash function. Jobs use the notebook's, else `0`.",
    "OMP_NUM_THREADS": "Threads per learner. The pool sets it to the learner's share of the machine's cores.",
    "NO_COLOR": "If set, the command line prints no colours.",
    "JUPYTERHUB_USER": "Set by JupyterHub. The Jupyter server names this user as owner of the jobs.",
}
IN_JOBS: Final[Mapping[str, str]] = {
    "DLAAS_JOB": "The job's handle, such as `digits-1`.",
    "DLAAS_JOB_DIR": "The job's directory.",
    "DLAAS_MEMBER": "The learner's member number, never reused within the job.",
    "DLAAS_GENERATION": "The generation (membership epoch) with which the learner started.",
    "RANK": "The learner's rank at its start. `run.rank` stays correct when the gang changes.",
    "WORLD_SIZE": "The number of learners at its start. `run.world_size` stays correct when the gang changes.",
    "MASTER_ADDR": "Address of the rendezvous store, for programs that call `init_process_group` themselves.",
    "MASTER_PORT": "Port of the rendezvous store.",
    "LOCAL_RANK": "Rank on the learner's node; 0 if each learner sees only its own GPUs.",
    "LOCAL_WORLD_SIZE": "Number of learners on the learner's node; 1 if each learner sees only its own GPUs.",
    "CUDA_VISIBLE_DEVICES": "The GPUs of this learner; empty on CPU slots.",
}
INTERNAL: Final[Mapping[str, str]] = {
    "DLAAS_ADDRESS": "Address of an agent's own machine, at which gloo listens.",
    "DLAAS_AGENT_ADDRESS": "Address at which others reach an agent's learner, if it is not the one of its link.",
    "DLAAS_AGENT_DIR": "An agent's private directory.",
    "DLAAS_AGENT_GUARDIAN": "Address at which the guardian accepts links.",
    "DLAAS_AGENT_IMAGE": "Container image of the agent's pod.",
    "DLAAS_AGENT_JOB": "Handle of the job of which the agent runs a learner.",
    "DLAAS_AGENT_KEEP_S": "Seconds for which an agent without a guardian keeps the result of its learner.",
    "DLAAS_AGENT_MEMBER": "Member number of the agent's learner.",
    "DLAAS_AGENT_NODE": "Node on which the agent's pod runs.",
    "DLAAS_AGENT_POD": "Name of the agent's pod.",
    "DLAAS_AGENT_TOKEN_FILE": "File with the job's token.",
    "DLAAS_AGENT_TTL_S": "Seconds that an agent without a learner waits for its guardian.",
    "DLAAS_GUARDIAN_ADDRESS": "Address at which learners reach a guardian that listens for agents.",
    "DLAAS_LEFT_OUT": "Names of the notebook's variables that a pod did not get.",
    "DLAAS_JOINS": "The learner joins a running gang.",
    "DLAAS_MAY_CHANGE": "The gang may change its membership while it trains.",
    "DLAAS_NURSERY": "Marks a job's own fork server.",
    "DLAAS_PRIVATE_FILES": "The learner's job directory is its own: it shares no file with the others.",
    "DLAAS_PADDING": "Reserves space for the environment that `/proc` shows of a forked process.",
    "DLAAS_SECRETS": "Names of the variables whose values are masked.",
}


def rows(variables: Mapping[str, str]) -> str:
    """Render variables as a table."""
    return table(("variable", "meaning"), [(code(name), text) for name, text in variables.items()])


def for_users() -> str:
    """Render the variables that users and administrators set."""
    return rows(USER)


def in_jobs() -> str:
    """Render the variables that a job's program finds."""
    return rows(IN_JOBS)


def internal() -> str:
    """Render the variables that only the product's own processes use."""
    return rows(INTERNAL)
