"""The ways to do the work, each a `Peer`, by name."""

from benchmarks.peers.batch import AsWritten, Binned, Floor, Integers
from benchmarks.peers.flink import Flink
from benchmarks.peers.own import Tidemark
from benchmarks.peers.peer import Peer
from benchmarks.peers.single import Polars
from benchmarks.peers.structured_streaming import StructuredStreaming

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Floor(),
        Binned(),
        Integers(),
        AsWritten(),
        Tidemark(),
        StructuredStreaming(),
        StructuredStreaming(hourly=True),
        Flink("batch"),
        Flink("streaming"),
        Polars(),
    )
}
