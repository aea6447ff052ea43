"""Implement the commands `tidemark server ...` for this machine's warm server."""

from __future__ import annotations

import typer
from rich.text import Text

from tidemark.cli.common import print_result
from tidemark.config.cluster import WARM_SERVER_IDLE_MINUTES
from tidemark.spark.warm_server import WarmServer

app = typer.Typer(
    help="Show or stop the Spark server that the option `--warm` starts on this machine.\n\n"
    f"It ends by itself after {WARM_SERVER_IDLE_MINUTES} minutes without a command.\n\n"
    "Example: `tidemark server show`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command()
def show() -> None:
    """Show whether the warm server runs, its port, its process and its log.

    Example: `tidemark server show`
    """
    server = WarmServer.from_environment()
    address = server.find()
    log = str(server.log)
    if address is None:
        print_result({"running": False, "log": log}, lambda: Text("no warm server runs"))
        return
    print_result(
        {"running": True, "port": address.port, "pid": address.pid, "log": log},
        lambda: Text(f"the warm server runs: port {address.port}, process {address.pid}, log {log}"),
        soft_wrap=True,
    )


@app.command()
def stop() -> None:
    """Stop the warm server. Refused while a command uses it.

    Example: `tidemark server stop`
    """
    was_running = WarmServer.from_environment().stop()
    print_result({"stopped": was_running}, lambda: Text("stopped" if was_running else "no warm server runs"))
