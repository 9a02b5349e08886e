"""A user's model that learners train together: routed through DDP, and tracked when its parameters change.

Imported by `data_parallel` only.
"""

from __future__ import annotations

import copyreg
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from jupyter_dlaas.learner.elastic.gradient_averaging import Averager, PassEnd, registrations

if TYPE_CHECKING:
    from jupyter_dlaas.learner.elastic.data_parallel import Averaging, Gang

__all__ = ["SharedModel", "attach"]

_SLOT: Final = "_dlaas_ddp"
_CLOSELY: Final = 4
"""The number of backward passes in a new group, and in each epoch, in which every parameter is checked."""
_new_object: Final[Any] = vars(copyreg)["__newobj__"]
_reconstructor: Final[Any] = vars(copyreg)["_reconstructor"]


class SharedModel:
    """A model and the averaging of its gradients: by DDP, or at the end of each backward pass.

    It is not a module, so that code that traverses modules does not see it.
    """

    def __init__(
        self, gang: Gang, model: torch.nn.Module, ddp: DistributedDataParallel | None, hook: Averaging
    ) -> None:
        self.ddp = ddp
        self.is_inside = False
        self.parameters = list(model.parameters())
        self._gang, self._model, self._hook = gang, model, hook
        self._flags = [one.requires_grad for one in self.parameters]
        self._registrations = registrations()
        self._late = Averager(gang) if ddp is None else None
        self._end = PassEnd(self._check_pass)
        self._is_watched = ddp is not None and not getattr(ddp, "static_graph", False)
        self._closely = 0
        self._passes = 0
        self._stepped: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()

    def follow(self) -> None:
        """Check before a forward pass whether parameters have changed, and update the averaging."""
        if self._registrations == registrations() and [one.requires_grad for one in self.parameters] == self._flags:
            return
        self._registrations = registrations()
        known = set(map(id, self.parameters))
        self.parameters = list(self._model.parameters())
        fresh: list[torch.Tensor] = [one for one in self.parameters if id(one) not in known]
        flags = [one.requires_grad for one in self.parameters]
        if not fresh and len(known) == len(self.parameters) and flags == self._flags:
            return
        if fresh:
            self._gang.share([*self.parameters, *self._model.buffers()])
        self._flags = flags
        self.average_late()

    def average_late(self) -> None:
        """Average at the end of each backward pass from now on, without DDP."""
        if self.ddp is not None:
            ddp, self.ddp = self.ddp, None
            self._end.watch(())
            self._hook.finish()
            self._gang.let_go(ddp)
        self._late = self._late or Averager(self._gang)
        self._late.take([one for one in self.parameters if one.requires_grad])

    def watch(self, *, is_close: bool) -> None:
        """Check in the next passes whether DDP averages all that they reach. `is_close`: at each parameter."""
        if self._is_watched and self.ddp is not None:
            self._closely = _CLOSELY if is_close else 0
            self._passes = self._hook.passes
            trained = [one for one in self.parameters if one.requires_grad]
            self._end.watch(trained if is_close else ())

    def _check_pass(self) -> None:
        """Average now if DDP did not average the backward pass that has just ended."""
        if self._gang.is_alone or self.ddp is None:
            return
        if self._hook.passes == self._passes:
            self._average_all()
            return
        self._passes = self._hook.passes
        if self._closely:
            self._closely -= 1
            if not self._closely:
                trained = [one for one in self.parameters if one.requires_grad]
                self._end.watch({trained[0], trained[-1]} if trained else ())

    def check_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Average before an optimiser steps with gradients of this model that DDP has not averaged."""
        if self.ddp is None or not self._is_watched:
            return
        before = self._stepped.get(optimizer)
        if before is None:
            trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
            before = self._stepped[optimizer] = 0 if any(id(one) in trained for one in self.parameters) else -1
        if before < 0:
            return
        if before == self._hook.passes and any(one.grad is not None for one in self.parameters):
            self._average_all()
        self._stepped[optimizer] = self._hook.passes

    def _average_all(self) -> None:
        self.average_late()
        assert self._late is not None
        self._late.average()


def attach(model: torch.nn.Module, shared: SharedModel, gang: Gang) -> None:
    """Route calls of the model through DDP. Attributes, state_dict and pickles remain the model's own.

    The model's class becomes a subclass with the same name: only the class can change what calling an instance does.
    """
    plain = type(model)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        shared = self.__dict__.get(_SLOT)
        if shared is None or shared.is_inside or gang.is_alone or not torch.is_grad_enabled():
            return plain.__call__(self, *args, **kwargs)
        shared.follow()
        if shared.ddp is None:
            return plain.__call__(self, *args, **kwargs)
        shared.is_inside = True
        try:
            return shared.ddp(*args, **kwargs)
        finally:
            shared.is_inside = False

    def reduce_ex(self: Any, protocol: Any) -> Any:
        twin = plain.__new__(plain)
        twin.__dict__.update({name: value for name, value in self.__dict__.items() if name != _SLOT})
        reduced: Any = twin.__reduce_ex__(protocol)
        how, arguments, *rest = reduced
        if how is _new_object and arguments == (plain,):
            # pickle would compare the subclass with the class of the same name, and fail
            how, arguments = _reconstructor, (plain, object, None)
        return (how, arguments, *rest)

    body = {
        "__call__": call,
        "__reduce_ex__": reduce_ex,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
    }
    metaclass: Any = type(plain)
    model.__class__ = metaclass(plain.__name__, (plain,), body)
    # Bypass the module's __setattr__, which would register DDP as a submodule.
    model.__dict__[_SLOT] = shared
