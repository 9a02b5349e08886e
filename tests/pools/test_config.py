"""The pool's configuration file: what it may say, and what it says when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlaas_server.pools.config import ConfigError, DeviceChoice, PoolConfig, load_config
from dlaas_server.pools.devices import StaticNodes


def written(folder: Path, text: str) -> PoolConfig:
    (folder / "config.toml").write_text(text)
    return load_config(folder)


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    assert load_config(tmp_path) == PoolConfig()


def test_the_file_is_read_into_a_record(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        """
        [pool]
        name = "lab"
        devices = "cpus"
        cpu_slots = 8
        [retention]
        days = 2
        [[nodes]]
        name = "left"
        cpus = 4
        [[nodes.devices]]
        id = "GPU-1"
        kind = "A100"
        memory_gib = 40
        """,
    )

    assert (config.pool.name, config.pool.devices, config.pool.cpu_slots) == ("lab", DeviceChoice.CPUS, 8)
    assert config.retention.days == 2.0
    assert config.nodes[0].devices[0].kind == "A100"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[pool]\ncpu_slots = 0", "pool.cpu_slots: 0 must be from 1 to 4096"),
        ("[pool]\npriority_max = 1000001", "pool.priority_max: 1000001 must be from 0 to 1000000"),
        ("[pool]\ncpu_slot = 8", "pool.cpu_slot: unknown field. Did you mean cpu_slots?"),
        ('[pool]\ndevices = "tpus"', "pool.devices: 'tpus' is not valid; use one of auto, gpus, cpus"),
        ("[pool\n", "is not valid TOML"),
        ("[[nodes]]\ncpus = 1", "nodes[0].name: is missing"),
        ('[[nodes]]\nname = "a"\n[[nodes]]\nname = "a"', "nodes[1].name: duplicate node 'a'"),
        (
            '[[nodes]]\nname = "a"\n[[nodes.devices]]\nid = "x"\n[[nodes.devices]]\nid = "x"',
            "nodes[0].devices[1].id: duplicate device 'x'",
        ),
        (
            '[[nodes]]\nname = "a"\nslots = 1\n[[nodes.devices]]\nid = "x"',
            "nodes[0].slots: set either slots or devices, not both",
        ),
    ],
)
def test_an_error_names_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        written(tmp_path, text)

    assert str(tmp_path / "config.toml") in str(error.value)
    assert says in str(error.value)


def test_racks_areas_and_links_are_read(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        """
        [[nodes]]
        name = "left"
        area = "hall"
        rack = "r1"
        [[nodes.devices]]
        id = "GPU-1"
        link = "bridge"
        """,
    )

    [node] = StaticNodes(config).nodes({})
    assert (node.area, node.rack, node.devices[0].link) == ("hall", "r1", "bridge")


def test_order_shares_and_admins_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[pool]\norder = "fair"\nplacement = "topology"\npreemption = false\nadmins = ["ben"]\n'
        "spot_price = 0.5\nspot_notice_s = 5\n"
        '[[queues]]\nname = "research"\nguaranteed = 6\n'
    )
    config = load_config(tmp_path)
    policy = config.policy

    assert config.pool.admins == ("ben",)
    assert policy.placement == "topology"
    assert (policy.spot_price, policy.spot_notice_s) == (0.5, 5.0)
    assert (policy.order, policy.preempts, policy.shares["research"].guaranteed) == ("fair", False, 6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[pool]\norder = "random"\n', "pool.order: 'random' is not a valid order"),
        (
            '[pool]\nplacement = "far"\n',
            "pool.placement: 'far' is not valid; use one of pack, spread, tetris, fgd, topology",
        ),
        ("[pool]\nspot_price = 2\n", "pool.spot_price: 2"),
        ('[[queues]]\nname = "a"\n[[queues]]\nname = "a"\n', "duplicate queue 'a'"),
    ],
)
def test_invalid_order_placement_or_queue_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(text)

    with pytest.raises(ConfigError, match=says):
        load_config(tmp_path)
