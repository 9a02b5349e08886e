"""Choice of the place where a pool's jobs run, in its config.toml."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.engine.service import configured_pool
from dlaas_server.pools.config import ConfigError, load_config
from dlaas_server.pools.selection.__main__ import main
from dlaas_server.pools.selection.config_edit import with_table
from dlaas_server.pools.selection.recorded_place import check_place, place_text
from dlaas_server.store.sqlite import Batch, Inserted, Store
from jupyter_dlaas.cli.main import main as command_line
from jupyter_dlaas.wire.protocol import State
from tests.core.builders import job

FILE = """\
# our lab
[pool]
order = "fair"  # as agreed

[kubernetes]   # cluster
namespace = "old"  # team
image = 'torch:1'
# GPUs of the lab
tolerations = [
  { key = "gpu" },
]

[[queues]]
name = "research"
"""


def test_an_edit_keeps_comments_and_other_keys() -> None:
    edited = with_table(FILE, "kubernetes", {"namespace": "ml", "image": "torch:2", "enabled": False})

    expected = FILE.replace('"old"', '"ml"').replace("'torch:1'", '"torch:2"')
    assert edited == expected.replace("\n]\n", "\n]\nenabled = false\n")


def test_keys_are_removed_and_tables_added() -> None:
    assert with_table("[pool]\nslots = 1", "kubernetes", {"image": 'a"b\\c'}) == (
        '[pool]\nslots = 1\n\n[kubernetes]\nimage = "a\\"b\\\\c"\n'
    )
    assert with_table("[kubernetes]\nenabled = false\n", "kubernetes", {"enabled": None}) == "[kubernetes]\n"
    assert with_table("", "kubernetes", {"namespace": "ml"}) == '[kubernetes]\nnamespace = "ml"\n'
    below = '[[kubernetes.tolerations]]\nkey = "gpu"\n'
    assert tomllib.loads(with_table(below, "kubernetes", {"namespace": "ml"}))["kubernetes"] == {
        "namespace": "ml",
        "tolerations": [{"key": "gpu"}],
    }


@pytest.mark.parametrize(
    "text",
    ['kubernetes = { namespace = "a" }\n', 'kubernetes.namespace = "a"\n', '[kubernetes]\nnamespace = """\na"""\n'],
)
def test_a_table_in_any_form_is_edited(text: str) -> None:
    edited = tomllib.loads(with_table(text, "kubernetes", {"image": "b"}))
    assert edited == {"kubernetes": {"namespace": "a", "image": "b"}}


def kubeconfig(folder: Path) -> Path:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (folder / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
    return folder / "kubeconfig"


def test_a_failed_check_writes_nothing_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool, file = tmp_path / "pool", kubeconfig(tmp_path)
    command = ["--pool-dir", str(pool), "kubernetes", "--namespace", "ml", "--kubeconfig", str(file)]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "FAILED  The cluster cannot be reached" in said
    assert "Nothing was changed. To use the cluster anyway, add --force." in said
    assert not (pool / "config.toml").exists()

    assert main([*command, "--force"]) == 0
    cluster = load_config(pool).cluster
    assert cluster is not None
    assert (cluster.namespace, cluster.context, cluster.kubeconfig) == ("ml", "c", str(file))
    assert load_config(pool).runs_on.startswith("Kubernetes: namespace ml, context c")

    assert main(["--pool-dir", str(pool), "local"]) == 0
    assert load_config(pool).cluster is None
    assert load_config(pool).runs_on == "this machine"
    assert main(["--pool-dir", str(pool), "kubernetes", "--force"]) == 0
    assert load_config(pool).cluster == cluster


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--context", "absent"], 5, "has no context absent; it has c"),
        (["--namespace", "My_NS"], 2, "is not a valid namespace"),
    ],
)
def test_wrong_options_are_named(
    words: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = kubeconfig(tmp_path)
    assert main(["--pool-dir", str(tmp_path / "pool"), "kubernetes", "--kubeconfig", str(file), *words]) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pool", "--image", "a"], "--image requires `pool use kubernetes`"),
        (["pool", "use"], "name the place where jobs run"),
        (["pool", "use", "local", "--image", "a"], "applies only to `pool use kubernetes`"),
        (["pool", "events", "local"], "unexpected argument: local"),
        (["pool", "events", "--image", "a"], "--image requires `pool use kubernetes`"),
        (["pool", "events", "--order", "fair"], "pool events: change scheduling settings in a separate command"),
        (["pool", "use", "local", "--order", "fair"], "in a separate command, such as `pool --order fair`"),
    ],
)
def test_options_of_the_verb_must_go_together(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(words) == 2
    assert says in capsys.readouterr().err


def test_other_pools_never_load_the_package_kubernetes(tmp_path: Path) -> None:
    program = f"""
import pathlib, sys
import jupyter_dlaas, jupyter_dlaas.cli.main, jupyter_dlaas.kernel.magics
from dlaas_server.engine import service
from dlaas_server.pools.config import load_config

folder = pathlib.Path({str(tmp_path)!r})
service.configured_pool(folder, load_config(folder), lambda s: s)
print([name for name in sys.modules if name.split(".")[0] in ("kubernetes", "urllib3")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_unfinished_jobs_of_the_store_keep_the_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def store_job(**changes: object) -> None:
        store = await Store.open(tmp_path / "store.sqlite3")
        halted = replace(job(1), **changes)  # type: ignore[arg-type]
        batch = Batch(inserted=[Inserted(halted, 1, {}, "key-1", "digest")])
        if (await store.load()).jobs:
            batch = Batch(updated={halted.id: (2, halted)})
        await store.commit(batch)
        await store.close()

    command = ["--pool-dir", str(tmp_path), "kubernetes", "--kubeconfig", str(kubeconfig(tmp_path)), "--force"]
    asyncio.run(store_job(state=State.HALTED))
    assert main(command) == 4
    assert "1 job of this pool is unfinished: job-1 (Halted)." in capsys.readouterr().err
    asyncio.run(store_job(state=State.CANCELLED, is_closed=False))
    assert main(command) == 4
    assert not (tmp_path / "config.toml").exists()

    asyncio.run(store_job(state=State.CANCELLED, is_closed=True))
    assert main(command) == 0
    asyncio.run(store_job(state=State.PROCESSING))
    assert main([*command, "--image", "torch:2"]) == 0, "pods that start afterwards have the image"
    assert main([*command, "--namespace", "other"]) == 4
    cluster = load_config(tmp_path).cluster
    assert cluster is not None
    assert (cluster.image, cluster.namespace) == ("torch:2", "dlaas")


@pytest.mark.parametrize(
    ("section", "name", "place"),
    [
        ("", "mine", "this machine"),
        ('[pool]\nname = "lab"\n', "lab", "this machine"),
        ('[kubernetes]\nnamespace = "ml"\n', "kubernetes", "Kubernetes: namespace ml, context c, image "),
        ('[pool]\nname = "lab"\n[kubernetes]\nnamespace = "ml"\n', "lab", "Kubernetes: namespace ml, context c, "),
        ('[kubernetes]\nnamespace = "ml"\ncontext = "d"\n', "kubernetes", "Kubernetes: namespace ml, context d, "),
    ],
)
def test_a_pool_shows_its_name_and_place(tmp_path: Path, section: str, name: str, place: str) -> None:
    there = f'kubeconfig = "{kubeconfig(tmp_path)}"\n' if "kubernetes" in section else ""
    pool = tmp_path / "mine"
    pool.mkdir()
    (pool / "config.toml").write_text(section + there)
    config = load_config(pool)

    assert configured_pool(pool, config, lambda uptime_s: uptime_s).name == name
    assert place_text(config).startswith(place)


def test_an_edit_by_hand_leaves_no_unfinished_job_behind(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    there = f'[kubernetes]\nnamespace = "ml"\nkubeconfig = "{kubeconfig(tmp_path)}"\n'
    check_place(tmp_path, load_config(tmp_path), ["digits-1"])
    file.write_text(there)
    with pytest.raises(ConfigError) as refusal:
        check_place(tmp_path, load_config(tmp_path), ["digits-1"])
    for words in (str(file), "namespace ml", "1 unfinished job", "belongs to this machine: digits-1", "Undo the edit"):
        assert words in str(refusal.value)

    check_place(tmp_path, load_config(tmp_path), [])
    file.write_text(there.replace('"ml"', '"other"'))
    with pytest.raises(ConfigError, match=r"namespace other.* belongs to Kubernetes, namespace ml"):
        check_place(tmp_path, load_config(tmp_path), ["digits-2"])
    file.write_text(there + 'context = "c"\nimage = "torch:2"\n')
    check_place(tmp_path, load_config(tmp_path), ["digits-2"])


def test_engine_does_not_start_on_another_place(tmp_path: Path) -> None:
    async def store_job() -> None:
        store = await Store.open(tmp_path / "store.sqlite3")
        halted = replace(job(1), state=State.HALTED)
        await store.commit(Batch(inserted=[Inserted(halted, 1, {}, "key-1", "digest")]))
        await store.close()

    asyncio.run(store_job())
    check_place(tmp_path, load_config(tmp_path), ["job-1"])
    (tmp_path / "config.toml").write_text(f'[kubernetes]\nkubeconfig = "{kubeconfig(tmp_path)}"\n')

    command = [sys.executable, "-m", "dlaas_server.engine", "--pool-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "1 unfinished job of this pool belongs to this machine: job-1" in done.stderr
