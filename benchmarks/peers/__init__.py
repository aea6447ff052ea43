"""Implementations of the work, by name."""

from benchmarks.peers.batch import BinnedJoin, IntegerJoin, IntervalJoin, ReadAndShuffle
from benchmarks.peers.flink import Flink
from benchmarks.peers.own import Tidemark
from benchmarks.peers.peer import Peer
from benchmarks.peers.single import Polars
from benchmarks.peers.structured_streaming import StructuredStreaming

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        ReadAndShuffle(),
        BinnedJoin(),
        IntegerJoin(),
        IntervalJoin(),
        Tidemark(),
        StructuredStreaming(),
        StructuredStreaming(hourly=True),
        Flink("batch"),
        Flink("streaming"),
        Polars(),
    )
}
