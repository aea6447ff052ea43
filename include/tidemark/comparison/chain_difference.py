"""Test which rows of the tables of a chain reproduce a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tidemark.config.types import from_micros
from tidemark.pipeline_tests.arrivals import CaseRows, InputRow
from tidemark.pipeline_tests.case_file import Case, ExpectedRow
from tidemark.pipeline_tests.case_settings import CaseSettings, Expectation
from tidemark.pipeline_tests.chain import TESTED, Chain
from tidemark.pipeline_tests.cuts import OWN_SLICES
from tidemark.pipeline_tests.differences import is_match, parse_expected
from tidemark.pipeline_tests.group_replay import CaseGroup, GroupReplay
from tidemark.pipeline_tests.outputs import Types, Values
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class ChainRow:
    """A row of a table that a chain reads."""

    input_name: str
    """Name of the input in a test file."""
    clock: int
    """Arrival in microseconds UTC."""
    tiebreak: int
    event_time: int
    """Event time in ms UTC."""
    values: dict[str, Any]
    """The columns that matter."""

    @property
    def identity(self) -> str:
        """Text that differs for different rows."""
        return repr((self.input_name, self.clock, self.tiebreak, self.values))

    def position(self) -> tuple[int, int, str]:
        """Return the place in the order of arrival."""
        return self.clock, self.tiebreak, self.input_name


@dataclass(frozen=True)
class ChainDifferenceCheck:
    """Tests whether rows reproduce the difference."""

    spark: SparkSession
    chain: Chain
    schemas: Mapping[str, T.StructType]
    """Columns of the inputs, by the names of the inputs."""
    targets: Sequence[ChainRow]
    """The rows that the difference consists of."""
    values: Values
    """Values of the emission that differs."""
    only_batch: bool
    """True if only the pipeline emits it."""

    def __call__(self, contexts: Sequence[Sequence[ChainRow]]) -> list[bool]:
        """Test whether each set of rows, added to those of the difference, reproduces it. Each is a lane."""
        cases = [self._create_case([*self.targets, *context]) for context in contexts]
        group = CaseGroup(self.schemas, cases)
        replay = GroupReplay(self.spark, self.chain, self._grid, group, (OWN_SLICES,), collects_emissions_only=True)
        outputs = replay.outputs[TESTED]
        return [self.shows(lane.emissions, outputs.types["emissions"]) for lane in outputs.lanes]

    def shows(self, emissions: Sequence[Values], types: Types) -> bool:
        """Return True if these emissions of the last join show the difference."""
        values = {name: value for name, value in self.values.items() if name in types}
        [expected] = parse_expected([ExpectedRow(values, "", {})], "emissions", types)
        return any(is_match(expected, row) for row in emissions) == self.only_batch

    @cached_property
    def _grid(self) -> Grid:
        return Grid.from_config(self.chain.pipeline.slices)

    def _create_case(self, rows: Sequence[ChainRow]) -> tuple[Case, CaseRows]:
        inputs = [
            InputRow(row.input_name, {**row.values, ARRIVAL_COLUMN: from_micros(row.clock)}, row.clock) for row in rows
        ]
        return Case("", "", CaseSettings(given=[], drain=True, expect=Expectation()), (), {}), CaseRows(
            tuple(inputs), None
        )
