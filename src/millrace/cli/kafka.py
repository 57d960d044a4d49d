"""Commands about a Kafka for development."""

import json
from pathlib import Path
from typing import Annotated

import typer

from millrace.broker.broker import PORT, Broker, running, start, stop
from millrace.broker.jars import MAVEN
from millrace.cli.options import plain_mistakes
from millrace.model.errors import ConflictError, NotFoundError
from millrace.model.extra import extra

kafka = typer.Typer(no_args_is_help=True, help="Run a single-node Kafka for development, on this machine only.")

Folder = Annotated[Path, typer.Option(help="The folder of the broker: its data and its output.", metavar="FOLDER")]
FOLDER = Path(".millrace", "kafka")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@kafka.command("start")
def start_(
    folder: Folder = FOLDER,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65_535)] = PORT,
    jars: Annotated[
        Path | None,
        typer.Option(
            help=f"A folder with the jars of Kafka. Default: they are fetched once from Maven Central, or from the "
            f"Maven repository whose URL is in {MAVEN}.",
            metavar="FOLDER", exists=True, file_okay=False,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Start a real Kafka of one node in the background, and print its address. Only this machine reaches it.

    Each jar must have the hash that is pinned in Millrace. The data stays in the folder: the next start continues
    with it.

    Example: [bold]millrace kafka start --port 9092[/bold]
    """
    with plain_mistakes():
        broker = start(folder, port, jars)
        typer.echo(f"Kafka {broker.version} listens on {broker.address}; stop it with millrace kafka stop", err=True)
        typer.echo(broker.address)


@kafka.command()
def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")],
    partitions: Annotated[int, typer.Option(help="The number of its partitions.", min=1)] = 1,
    folder: Folder = FOLDER,
) -> None:
    """Create a topic in the Kafka that runs in a folder; a producer or a consumer creates none.

    Example: [bold]millrace kafka create plays --partitions 4[/bold]
    """
    with plain_mistakes():
        broker = _running(folder)
        with extra("kafka", "millrace kafka create"):
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
            from confluent_kafka.cimpl import NewTopic
        client = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        (made,) = client.create_topics([NewTopic(topic, partitions, 1)]).values()
        try:
            made.result()
        except KafkaException as error:
            raise ConflictError(f"topic {topic!r} cannot be created: {error.args[0].str()}", "choose another") from None
        typer.echo(f"created {topic}")


@kafka.command("stop")
def stop_(folder: Folder = FOLDER) -> None:
    """Stop the Kafka that runs in a folder. Its data stays."""
    with plain_mistakes():
        typer.echo(f"stopped Kafka on {stop(folder).address}")


@kafka.command()
def status(folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """Print the address and the process of the Kafka that runs in a folder; exit code 3 if none runs."""
    with plain_mistakes():
        broker = _running(folder)
        if as_json:
            about = {"address": broker.address, "pid": broker.pid, "version": broker.version, "folder": str(folder)}
            typer.echo(json.dumps(about))
        else:
            typer.echo(f"Kafka {broker.version} listens on {broker.address}, process {broker.pid}, folder {folder}")


def _running(folder: Path) -> Broker:
    broker = running(folder)
    if broker is None:
        raise NotFoundError(f"no broker runs in {folder}", "start one: millrace kafka start")
    return broker
