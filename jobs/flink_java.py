"""Compile and run the Java jobs of this folder with Flink's jars."""

import shutil
import subprocess
from pathlib import Path

from tidemark.errors import FaultError, UserError

PROJECT = Path(__file__).resolve().parents[1]
FLINK = PROJECT / ".venv-flink" / "bin" / "python"
"""The interpreter with Flink."""
_OPENED_PACKAGES = ("java.base/java.util=ALL-UNNAMED", "java.base/java.lang=ALL-UNNAMED")
"""Packages that Flink's serializers access."""


def require_flink() -> None:
    """Check that Flink is installed.

    Raises:
        UserError: It is not.
    """
    if not FLINK.exists() or not _list_jars():
        raise UserError(f"Flink is not installed in {FLINK.parents[1].name}. Run make flink-reference.")


def run_java(job: str, folder: Path, *arguments: Path | str) -> None:
    """Compile a job of this folder and run it to its end.

    Args:
        job: Name of the class and of its file.
        folder: Folder for the compiled classes.
        arguments: Arguments of the job.

    Raises:
        UserError: There is no compiler.
        FaultError: The job failed.
    """
    if not (compiler := shutil.which("javac")):
        raise UserError("javac, which compiles Flink's jobs, is not installed. Install a JDK 17, not a JRE.")
    jars = f"{_list_jars()[0]}/*"
    run_process(compiler, "-nowarn", "-Xlint:-deprecation", "-d", folder, "-cp", jars, _source(job))
    opened = [option for package in _OPENED_PACKAGES for option in ("--add-opens", package)]
    java = Path(compiler).with_name("java")
    # Small jobs end before the second compiler pays off.
    run_process(java, "-XX:TieredStopAtLevel=1", *opened, "-cp", f"{folder}:{jars}", job, *arguments)


def run_process(*command: Path | str) -> None:
    """Run a command to its end.

    Raises:
        FaultError: It failed.
    """
    if (code := subprocess.run(command, check=False).returncode) != 0:  # noqa: S603 - all of it is ours
        raise FaultError(f"Flink failed with exit code {code}. Its output is above.")


def _list_jars() -> list[Path]:
    """List the folders with Flink's jars: one, or none if Flink is not installed completely."""
    return list(FLINK.parents[1].glob("lib/python*/site-packages/pyflink/lib"))


def _source(job: str) -> Path:
    return Path(__file__).with_name(f"{job}.java")
