"""Find the pipeline files of a chain: those that a pipeline reads, and those that read its output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.inputs import Input
from tidemark.config.loader import find_pipeline_file, get_pipelines_folder, list_pipeline_files, load_pipeline
from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.config.pipeline import Pipeline
from tidemark.config.sides import SideName
from tidemark.errors import PipelineFileError


def load_upstreams(pipeline: Pipeline) -> dict[SideName, Pipeline]:
    """Load the pipelines whose output a pipeline reads, by the side of the input.

    Raises:
        PipelineFileError: There is no valid file of such a pipeline any more.
    """
    return {side: _load_upstream(pipeline, side) for side in pipeline.upstreams}


def list_upstreams(pipeline: Pipeline) -> list[Pipeline]:
    """List the pipelines whose output a pipeline reads, directly or through others, each after those that it reads.

    Raises:
        PipelineFileError: There is no valid file of such a pipeline any more.
    """
    upstreams: dict[str, Pipeline] = {}
    for upstream in load_upstreams(pipeline).values():
        upstreams |= {source.name: source for source in (*list_upstreams(upstream), upstream)}
    return list(upstreams.values())


def format_upstream_arguments(pipeline: Pipeline, side: SideName) -> str:
    """Return the command line arguments that select the pipeline whose output an input is; its name without a file."""
    try:
        return format_cli_arguments(_load_upstream(pipeline, side))
    except PipelineFileError:
        return pipeline.upstreams[side].pipeline


def load_readers(pipeline: Pipeline) -> list[tuple[Pipeline, SideName]]:
    """Load the pipelines that read a pipeline's output stream, each with the side of that input.

    Only files in the folder of the pipeline's file and in the pipelines folder are read. Invalid files are left out.
    """
    if not pipeline.output_stream:
        return []
    return [
        (reader, side)
        for reader in _load_files(pipeline)
        for side in reader.upstreams
        if _is_output_of(getattr(reader, side), pipeline)
    ]


def _load_upstream(pipeline: Pipeline, side: SideName) -> Pipeline:
    source: Input = getattr(pipeline, side)
    name = pipeline.upstreams[side].pipeline
    upstream = next((loaded for loaded in _load_files(pipeline, name) if _is_output_of(source, loaded)), None)
    if upstream is None:
        folders = " or ".join(map(str, _list_folders(pipeline)))
        raise PipelineFileError(
            f"{pipeline.name} reads the output of {name}, but there is no valid file of that pipeline in {folders}. "
            "Add the file, or correct it."
        )
    return upstream


def _is_output_of(source: Input, pipeline: Pipeline) -> bool:
    """Return True if an input is the output stream of a pipeline. A candidate version has another output."""
    is_named = source.upstream is not None and source.upstream.pipeline == pipeline.name
    return is_named and source.table == f"{pipeline.output}/{OUTPUT_STREAM}"


def _load_files(pipeline: Pipeline, first: str = "") -> Iterator[Pipeline]:
    """Load the valid pipeline files of a pipeline's folders, those with the stem `first` first."""
    files = {file.resolve(): file for folder in _list_folders(pipeline) for file in list_pipeline_files(folder)}
    for file in sorted(files.values(), key=lambda file: file.stem != first):
        with suppress(PipelineFileError):
            yield load_pipeline(file)


def _list_folders(pipeline: Pipeline) -> list[Path]:
    """List the folder of a pipeline's file, if there is one, and the pipelines folder."""
    folders = [get_pipelines_folder()]
    with suppress(PipelineFileError):
        folders.insert(0, find_pipeline_file(pipeline.command_argument).parent)
    return list(dict.fromkeys(folders))
