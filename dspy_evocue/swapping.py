"""Swap the class of an instance for a subclass of its own class, in place, so that it still passes for what it was.

Aliases, copies, pickles and `isinstance` tests keep working, and swapping back undoes it. Which swap an instance needs
follows from what it carries: each layer names an attribute and the subclass that the attribute asks for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

SWAP_LOCK = threading.RLock()
"""Held while classes of instances are swapped, while what asks for a swap is changed, and while a program is walked:
attributes come and go with a swap, and another thread may be looking through them."""

_MARK = "_evocue_is_swapped"
_makers: dict[str, Callable[[type], type]] = {}
_layers: dict[str, str] = {}


def register_layer(maker: Callable[[type], type], *, attribute: str | None = None) -> None:
    """Make a layer known: instances that carry the attribute get the subclass that `maker` makes of their class.

    Without an attribute the layer is only put on by hand (`swap`); it is named so that its instances can be unpickled.
    """
    _makers[maker.__name__] = maker
    if attribute is not None:
        _layers[attribute] = maker.__name__


def settle_class(instance: Any) -> None:
    """Give an instance the class that what it carries asks for."""
    settled = next(cls for cls in type(instance).__mro__ if _MARK not in vars(cls))
    for attribute, maker_name in _layers.items():
        if attribute in vars(instance):
            settled = _makers[maker_name](settled)
    if settled is not type(instance):
        swap(instance, settled)


def swap(instance: Any, cls: type) -> None:
    """Set the class of an instance, whatever its `__setattr__` thinks of it."""
    object.__setattr__(instance, "__class__", cls)


def subclass_like(base: Any, maker: Callable[[type], type], members: dict[str, Any]) -> type:
    """Make a subclass that passes for its base: same name, same module, and instances pickle by way of the base.

    Args:
        base: The class to stand in for.
        maker: The registered maker that is calling, so that an unpickled instance gets its layer back.
        members: What the subclass has of its own.
    """

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        rebuild, arguments, *rest = base.__reduce_ex__(self, protocol)
        arguments = tuple(base if argument is type(self) else argument for argument in arguments)
        return (_rebuild, (maker.__name__, rebuild, arguments), *rest)

    namespace = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": __reduce_ex__,
        _MARK: True,
        # Since Python 3.13 inspect.getsource reads this, and dspy.Refine asks for the source of a module's class.
        **{name: vars(base)[name] for name in ("__firstlineno__",) if name in vars(base)},
        **members,
    }
    metaclass: Any = type(base)
    return metaclass(base.__name__, (base,), namespace)


def _rebuild(maker_name: str, rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    instance = rebuild(*arguments)
    swap(instance, _makers[maker_name](type(instance)))
    return instance
