"""Where a path that a user gave may lie: under the lake root, or under a root that the operator allows."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from tidemark.config.safe_yaml import ROOTS
from tidemark.errors import PlaceError

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*)?", re.DOTALL)
_LOCAL = re.compile(r"file:(//)?(?=/)")
_ODD = re.compile(r"[\x00-\x1f\x7f]")
_ODD_IN_A_URI = re.compile(r"[%?#\\]")


def lake_root(option: str | None = None) -> str:
    """The lake root: the option, else `TIDEMARK_LAKE`, else `./lake`; an absolute path or a URI."""
    root = option or os.environ.get("TIDEMARK_LAKE") or "lake"
    return root.rstrip("/") if "://" in root else str(Path(root).resolve())


def place(lake: str, name: str) -> str:
    """The place that a name stands for: relative to the lake root, absolute, or a URI.

    Symbolic links and `..` are resolved, so that every engine that is given it finds the same.

    Raises:
        PlaceError: it lies under no root that is allowed.
    """
    if not name or _ODD.search(name):
        raise PlaceError(f"{name!r} names no place; write a path relative to the lake root")
    is_absolute = name.startswith(("/", "file:/")) or "://" in name
    found = _resolved(name if is_absolute else f"{lake}/{name}")
    further = (root.strip() for root in os.environ.get(ROOTS, "").split(","))
    if not any(is_within(found, root) for root in (lake, *further) if root):
        raise PlaceError(
            f"{name} lies outside the lake root {lake}; put it there, or let the operator allow its root in {ROOTS}"
        )
    return found


def is_within(found: str, root: str) -> bool:
    """Whether a place (`place`) is a root or lies under it."""
    return f"{found}/".startswith(f"{_resolved(root).rstrip('/')}/")


def _resolved(text: str) -> str:
    local = _LOCAL.sub("", text)
    if (uri := _URI.fullmatch(local)) is None:
        return os.path.realpath(local)
    scheme, host, path = uri.groups()
    # Storage clients decode and cut paths each in its own way.
    if _ODD_IN_A_URI.search(local):
        raise PlaceError(f"{text} has one of the characters %, ?, # and \\; rename what it stands for")
    # A path that begins with two slashes keeps both.
    return f"{scheme.lower()}://{host}/{posixpath.normpath(path or '/').strip('/')}".rstrip("/")
