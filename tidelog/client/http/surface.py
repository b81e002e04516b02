"""Methods made of plans look to the user as if they were written by hand."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

F = TypeVar("F", bound=Callable[..., Any])


def like(plan: Callable[..., Any], method: F, returns: Callable[[Any], Any]) -> F:
    """`method` with the name, the words and the parameters of `plan`.

    `returns` makes what the method returns of what the plan results in, or emits.
    """
    method.__name__ = plan.__name__
    method.__doc__ = plan.__doc__
    signature = inspect.signature(plan)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=returns(_result(signature.return_annotation))
    )
    return method


def _result(annotation: Any) -> Any:
    """What a plan returns; what a flow emits."""
    effects, _, result = get_args(annotation)
    if result is not None:
        return result
    emitted = [get_args(one) for one in get_args(effects) if get_args(one)]
    return emitted[0][0] if emitted else None
