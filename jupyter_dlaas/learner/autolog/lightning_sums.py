"""Sums that Lightning accumulates over an epoch: those of logged values and of torchmetrics, of one or all learners.

Lightning's checkpoint holds none of them. In a gang each learner has its own sums, which Lightning reduces at the end
of the epoch. At a halt, each learner writes its sums; the first one adds those of the others when the job resumes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from jupyter_dlaas.learner.reporting.notes import NOT_KEPT, report

__all__ = ["add_sums_of_others", "optional", "put_back_sums", "report_once", "sums_of", "write_own_sums"]

T = TypeVar("T")
_LOG_ARGUMENTS: Final = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
    *("dataloader_idx", "metric_attribute"),
)
"""Arguments of `log` that Lightning keeps with the metric."""
_ADDED: Final = frozenset({"mean", "sum"})
_EXTREMES: Final = {"max": "maximum", "min": "minimum"}
_reported: Final[set[str]] = set()


def optional(name: str, lost: str, use: Callable[[], T], otherwise: T) -> T:
    """Return the result of using a private name of Lightning; report once what is lost where a release lacks it."""
    try:
        return use()
    except (AttributeError, KeyError, TypeError) as error:
        report_once(name, f"This release of Lightning has no usable `{name}` ({error}): {lost}.")
        return otherwise


def report_once(name: str, text: str) -> None:
    """Report on the card, once per name."""
    if name not in _reported:
        _reported.add(name)
        report(NOT_KEPT, text)


# -- sums of one learner


def _metrics_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the torchmetrics among a module's submodules."""
    for name, one in module.named_modules():
        if hasattr(one, "_defaults") and hasattr(one, "_update_count"):
            yield name, one


def _sum(metric: Any) -> tuple[dict[str, Any], int]:
    return {name: getattr(metric, name) for name in metric._defaults}, metric._update_count


def _put_back_sum(metric: Any, kept: Sequence[Any]) -> None:
    for name, value in kept[0].items():
        is_list = isinstance(value, list)
        setattr(metric, name, [one.to(metric.device) for one in value] if is_list else value.to(metric.device))
    metric._update_count = kept[1]


def _logged_sum(metric: Any) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Return the sum of a logged metric, and the arguments with which the program logs it."""
    meta, sync = metric.meta, metric.meta.sync
    arguments = {name: getattr(meta, name) for name in _LOG_ARGUMENTS}
    arguments |= {"reduce_fx": meta.reduce_fx.__name__, "sync_dist": sync.should, "rank_zero_only": sync.rank_zero_only}
    states, count = _sum(metric)
    return states, count, {**arguments, "shown": metric._forward_cache}


def sums_of(trainer: Any, module: Any, pending: Mapping[str, Any]) -> dict[str, Any]:
    logged = trainer.fit_loop.epoch_loop._results.items()
    return {
        "logged": {**pending, **{key: _logged_sum(one) for key, one in logged if not one.has_reset}},
        "metrics": {name: _sum(one) for name, one in _metrics_of(module)},
    }


def put_back_sums(trainer: Any, module: Any, kept: dict[str, Any]) -> dict[str, Any]:
    """Restore the sums. Returns those that wait until the program logs the metric again; they leave the dict then."""
    for name, one in _metrics_of(module):
        if name in kept["metrics"]:
            _put_back_sum(one, kept["metrics"][name])
    results, pending = trainer.fit_loop.epoch_loop._results, dict(kept["logged"])
    stand_ins: set[str] = set()
    """Entries of metrics that the program has not logged again, and may not log again in this epoch."""
    if trainer.world_size == 1:  # all learners must have the same metrics, since they sum them up together
        stand_ins |= {key for key, one in pending.items() if len(one) > 2 and one[2]["dataloader_idx"] is None}
    for key in sorted(stand_ins):
        _log_again(trainer, module, key, *pending[key])
        trainer._logger_connector._first_loop_iter = False  # otherwise the next batch resets the sums
    log, update = results.log, results.update_metrics

    def log_by_the_program(fx: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Remove the stand-in: Lightning compares the options of `log`, not all of which are kept."""
        if f"{fx}.{name}" in stand_ins:
            stand_ins.remove(f"{fx}.{name}")
            del results[f"{fx}.{name}"]
        if not stand_ins:
            del results.log
        return log(fx, name, *args, **kwargs)

    def update_metrics(key: str, *args: Any) -> Any:
        """Restore a logged sum when the program logs it for the first time, which creates its entry."""
        if key in pending:
            _put_back_sum(results[key], pending.pop(key))
        if not pending:
            del results.update_metrics
        return update(key, *args)

    if stand_ins:
        results.log = log_by_the_program
    if pending:
        results.update_metrics = update_metrics
    return pending


def _log_again(trainer: Any, module: Any, key: str, states: dict[str, Any], count: int, how: dict[str, Any]) -> None:
    """Restore a logged metric together with its sum: the program may not log it again in this epoch."""
    results, attribute = trainer.fit_loop.epoch_loop._results, how["metric_attribute"]
    value = states["value"].to(module.device) if attribute is None else module.get_submodule(attribute)
    arguments = {name: one for name, one in how.items() if name not in {"dataloader_idx", "shown"}}
    results.log(value=value, batch_size=1, sync_dist_fn=trainer.strategy.reduce, **arguments)
    _put_back_sum(results[key], (states, count))
    results[key]._forward_cache = how["shown"]


# -- sums of the other learners


def write_own_sums(folder: Path, number: int, rank: int, at: tuple[int, ...], sums: Mapping[str, Any]) -> None:
    """Write a learner's sums at a halt, for the first learner of the resumed job."""
    torch: Any = importlib.import_module("torch")
    path = _path(folder, number, rank)
    written = path.with_suffix(".part")
    torch.save({"at": at, "sums": sums}, written)
    written.replace(path)


def add_sums_of_others(
    module: Any, folder: Path, number: int, learners: int, at: tuple[int, ...], sums: dict[str, Any]
) -> None:
    """Add the other learners' sums to those of the first; report averages for which they are missing.

    Lightning adds up the sums of all learners at the end of the epoch, in which the resumed ones begin at zero.
    """
    others = [_read(_path(folder, number, rank), at) for rank in range(1, learners)]
    metrics = dict(_metrics_of(module))
    partial = {key for key, one in sums["logged"].items() if one[2]["sync_dist"] and not one[2]["metric_attribute"]}
    partial |= set(sums["metrics"])
    for key in sorted(partial):
        kind = "logged" if key in sums["logged"] else "metrics"
        reductions = _reductions(metrics.get(key), sums[kind][key])
        parts = [one[kind][key] for one in others if one is not None and key in one[kind]]
        if len(parts) == len(others) and all(reductions.keys() >= part[0].keys() for part in parts):
            partial.discard(key)
            for part in parts:
                _add(sums[kind][key][0], part[0], reductions)
    if partial:
        report(
            NOT_KEPT,
            f"Averages over the interrupted epoch ({', '.join(sorted(partial))}) contain only the first learner's part "
            f"of its first {at[1]} batches: those of the other learners are lost. Averages of later epochs are right.",
        )


def _path(folder: Path, number: int, rank: int) -> Path:
    return folder / f".lightning-sums-{number}-{rank}.pt"


def _read(path: Path, at: tuple[int, ...]) -> dict[str, Any] | None:
    torch: Any = importlib.import_module("torch")
    try:
        found: dict[str, Any] = torch.load(path, weights_only=False)
    except (OSError, EOFError, RuntimeError, ValueError):
        return None
    return found["sums"] if tuple(found["at"]) == at else None


def _reductions(metric: Any, kept: Sequence[Any]) -> dict[str, str]:
    """Return, by state, how learners' states become one: "sum", "max", "min" or "cat"; none where that is unknown."""
    if metric is None:
        how = kept[2]["reduce_fx"]
        return dict.fromkeys(kept[0], "sum" if how in _ADDED else how)
    names = {name: getattr(one, "__name__", "") for name, one in getattr(metric, "_reductions", {}).items()}
    known = {"dim_zero_sum": "sum", "dim_zero_max": "max", "dim_zero_min": "min", "dim_zero_cat": "cat"}
    return {name: known[one] for name, one in names.items() if one in known}


def _add(states: dict[str, Any], others: Mapping[str, Any], reductions: Mapping[str, str]) -> None:
    torch: Any = importlib.import_module("torch")
    for name, value in others.items():
        how = reductions[name]
        if isinstance(value, list):
            states[name] = [*states[name], *value]
        elif how == "cat":
            states[name] = torch.cat([states[name], value])
        elif how in _EXTREMES:
            states[name] = getattr(torch, _EXTREMES[how])(states[name], value)
        else:
            states[name] = states[name] + value
