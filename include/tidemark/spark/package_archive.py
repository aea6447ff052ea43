"""This package as one file, which travels with a job to executors that do not have it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

_PACKAGE = Path(__file__).parents[1]


@cache
def build_package_archive() -> Path:
    """A zip of all modules, from which Python imports; it is there as long as this process."""
    folder = tempfile.mkdtemp(prefix="tidemark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "tidemark.zip")
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for module in sorted(_PACKAGE.rglob("*.py")):
            archive.write(module, module.relative_to(_PACKAGE.parent))
    return path
