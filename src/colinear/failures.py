"""What becomes of a failure: a warning or an error, which names the part that failed, the status and the remedy."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

from . import backends
from .errors import ConvergenceError, ConvergenceWarning
from .status import Status, combine, failed, is_unseen, number_text

if TYPE_CHECKING:
    from .info import Info

ON_FAILURE = ("warn", "raise", "ignore")


def settle(info: Info, on_failure: str) -> None:
    """Warn of a failure, or raise it, as the user wishes. What cannot be seen yet (tracing) can only be warned of, later."""
    if on_failure == "ignore":
        return
    worst = combine([info._status])
    if not isinstance(worst, Status):
        xp = backends.namespace_of(worst)
        assert xp is not None
        more = f". {info.message.rstrip('.')}" if info.message else "; the Info that info=True adds holds its status"
        message = f"{_who(info)} failed{more}."
        xp.warn_later(failed(worst), message, category=ConvergenceWarning)
    elif worst.is_failure:
        message = _explanation(info, worst)
        if on_failure == "raise":
            raise ConvergenceError(message, info)
        warnings.warn(message, ConvergenceWarning, stacklevel=users_level())


def _who(info: Info) -> str:
    names = ", ".join(dict.fromkeys(name for name in (info.rule, info.method) if name))
    return f"{info.function} ({names})" if info.function and names else info.function or names or "colinear"


def _explanation(info: Info, worst: Status) -> str:
    culprit = info
    while True:  # the part that failed, if it was a part
        deeper = next((child for child in culprit.children if combine([child._status]) == worst), None)
        if deeper is None:
            break
        culprit = deeper
    where = "" if culprit is info else f" in {_who(culprit)}"
    facts = [
        f"{name} {number_text(value)}"
        for name in ("residual", "iterations")
        if (value := getattr(culprit, name)) is not None and not is_unseen(value)
    ]
    details = f" ({', '.join(facts)})" if facts else ""
    message = f" {culprit.message.rstrip('.')}." if culprit.message else ""
    return f"{_who(info)}: {worst.name}{where}: {worst.meaning}{details}.{message} {worst.remedy}"


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def users_level() -> int:
    """The stacklevel of the first frame outside this package: the user's own line."""
    level, frame = 1, sys._getframe(1)  # level 1 is the frame that warns: our caller
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<colinear ")):
        level, frame = level + 1, frame.f_back
    return level
