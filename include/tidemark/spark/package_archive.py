"""Package Tidemark as one file for executors on which it is not installed."""

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
    """Build a zip of all modules that Python can import from; it is deleted when this process exits."""
    folder = tempfile.mkdtemp(prefix="tidemark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "tidemark.zip")
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for module in sorted(_PACKAGE.rglob("*.py")):
            archive.write(module, module.relative_to(_PACKAGE.parent))
    return path
