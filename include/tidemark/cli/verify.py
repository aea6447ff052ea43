"""The command `tidemark verify`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import filesize
from rich.markup import escape
from rich.table import Table

from tidemark.cli.terminal import JsonOption, LakeOption, PipelineArgument, out, print_json
from tidemark.commits.sound import Finding, Soundness, check
from tidemark.delta.places import lake_root
from tidemark.errors import CheckFailedError
from tidemark.settings import load_pipeline
from tidemark.wording import counted, in_one_line


def verify(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    content: Annotated[  # noqa: FBT002
        bool, typer.Option("--content", help="Read every page of every file against its checksum, too.")
    ] = False,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Hold a pipeline's ledger, tables and files against each other, and name what is damaged; nothing is written.

    Example: `tidemark verify flights_weather --content`
    """
    found = check(load_pipeline(pipeline), lake_root(lake), content=content)
    if as_json:
        print_json(found.describe())
    else:
        _show(found)
    if found.damages:
        kinds = ", ".join(dict.fromkeys(one.damage for one in found.damages))
        raise CheckFailedError(f"{found.pipeline} is not as it was committed: {kinds}")


def _show(found: Soundness) -> None:
    looked = f"{counted(found.slices, 'slice')}, {counted(found.files, 'file')} ({filesize.decimal(found.bytes)})"
    if found.findings:
        table = Table("damage", "table", "slices", "what", title=found.pipeline, title_justify="left")
        for one in found.findings:
            file = f"\n[dim]{escape(one.file)}[/]" if one.file else ""
            table.add_row(one.damage, one.table, _slices(one), escape(in_one_line(one.detail)) + file)
        out.print(table)
    told = "not as committed" if found.damages else "sound"
    out.print(f"{found.pipeline}: {looked}: {told}", soft_wrap=True)


def _slices(finding: Finding) -> str:
    return "\n".join(f"{start} to {end}" for start, end in finding.slices)
