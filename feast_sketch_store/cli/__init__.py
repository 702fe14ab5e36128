"""The command line, ``feast-sketch``: maintenance of the views of a feature repository."""

from feast_sketch_store.cli.changes import diff_command, history_command
from feast_sketch_store.cli.common import cli
from feast_sketch_store.cli.other_stores import export, import_, survey
from feast_sketch_store.cli.planning import plan
from feast_sketch_store.cli.reports import health_command, inspect, settings, verify
from feast_sketch_store.cli.serving import serve
from feast_sketch_store.cli.upkeep import (
    check_bucket_command,
    delete,
    discard,
    pin,
    publish,
    rebuild,
    refill,
    reshard_command,
    seal,
    unpin,
    vacuum,
)

__all__ = ["cli"]

_COMMANDS = (
    *(inspect, verify, health_command, settings),
    *(seal, publish, discard, vacuum, pin, unpin, refill),
    *(rebuild, reshard_command, delete),
    *(diff_command, history_command),
    *(survey, import_, export, plan),
    *(serve, check_bucket_command),
)
for _command in _COMMANDS:
    cli.add_command(_command)
