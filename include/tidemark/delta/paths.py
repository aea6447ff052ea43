"""Restrict paths in settings to the lake root and the roots that the operator allows."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from tidemark.config.safe_yaml import ALLOWED_ROOTS_VARIABLE
from tidemark.errors import ForbiddenPathError

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*)?", re.DOTALL)
_LOCAL = re.compile(r"file:(//)?(?=/)")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_AMBIGUOUS_IN_URI = re.compile(r"[%?#\\]")


def resolve_lake_root(option: str | None = None) -> str:
    """Resolve the lake root from the option, else `TIDEMARK_LAKE`, else `./lake`, to an absolute path or a URI."""
    root = option or os.environ.get("TIDEMARK_LAKE") or "lake"
    return root.rstrip("/") if "://" in root else str(Path(root).resolve())


def resolve_path(lake: str, name: str) -> str:
    """Resolve a path that is relative to the lake root, absolute, or a URI.

    Symbolic links and `..` are resolved, so that Spark and delta-rs open the same table.

    Raises:
        ForbiddenPathError: The path is invalid, or under none of the allowed roots.
    """
    if not name or _CONTROL_CHARACTER.search(name):
        raise ForbiddenPathError(f"{name!r} is not a valid path. Write a path relative to the lake root.")
    is_absolute = name.startswith(("/", "file:/")) or "://" in name
    resolved = _normalize(name if is_absolute else f"{lake}/{name}")
    allowed_roots = (root.strip() for root in os.environ.get(ALLOWED_ROOTS_VARIABLE, "").split(","))
    if not any(is_within(resolved, root) for root in (lake, *allowed_roots) if root):
        raise ForbiddenPathError(
            f"{name} lies outside the lake root {lake}. Move it there, or let the operator allow its root in "
            f"{ALLOWED_ROOTS_VARIABLE}."
        )
    return resolved


def is_within(path: str, root: str) -> bool:
    """Return True if a path, as returned by `resolve_path`, is a root or lies under it."""
    return f"{path}/".startswith(f"{_normalize(root).rstrip('/')}/")


def _normalize(path: str) -> str:
    local = _LOCAL.sub("", path)
    if (uri := _URI.fullmatch(local)) is None:
        return os.path.realpath(local)
    scheme, host, path = uri.groups()
    # Storage clients differ in how they decode and split paths with these characters.
    if _AMBIGUOUS_IN_URI.search(local):
        raise ForbiddenPathError(f"{path} has one of the characters %, ?, # and \\. Rename the file or folder.")
    # `normpath` preserves two slashes at the beginning of a path.
    return f"{scheme.lower()}://{host}/{posixpath.normpath(path or '/').strip('/')}".rstrip("/")
