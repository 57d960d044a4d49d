"""Kafka over TLS, with certificates on both sides: a source and a sink, and clients that are refused."""

import ssl
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import registry
from brokers import Kafka
from millrace import MachineError, Pipeline, kafka, to_kafka
from millrace.model.stream import Source
from millrace.sources import kafka_cluster
from millrace.sources.kafka import KafkaFeed
from millrace.sources.registry import Registry
from stream_run import run


def feed(source: Source, folder: Path) -> KafkaFeed:
    return KafkaFeed(source, folder / "journal", 1.0, lambda: 0.0)


@pytest.mark.spark
def test_a_source_and_a_sink_over_tls(spark: SparkSession, kafka_: Kafka, tmp_path: Path) -> None:
    source, sink = kafka_.topic(), kafka_.topic()
    kafka_.send(source, ['{"n": 1}', '{"n": 2}'])
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in kafka_.tls.options.items()))
    numbers = kafka(f"kafka://{kafka_.tls.address}/{source}", "n BIGINT", options=kafka_.tls.options)
    to = to_kafka(f"kafka://{kafka_.tls.address}/{sink}", properties=str(file))
    run(spark, Pipeline("p", sinks=[numbers.to(to)]), tmp_path)
    assert [each.value() for each in kafka_.messages(sink)] == [b'{"n": 1}', b'{"n": 2}']


@pytest.mark.parametrize("missing", ["ssl.ca.location", "ssl.certificate.location"])
def test_a_client_without_its_certificates_is_refused(
    kafka_: Kafka, tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_cluster, "_SECONDS", 3.0)
    options = {name: each for name, each in kafka_.tls.options.items() if name != missing}
    options |= {} if missing == "ssl.ca.location" else {"ssl.key.location": ""}
    source = kafka(f"kafka://{kafka_.tls.address}/{kafka_.topic()}", "n BIGINT", options=options)
    with pytest.raises(MachineError, match=f"Kafka at {kafka_.tls.address}"):
        feed(source, tmp_path).start()


def test_a_registry_over_tls(kafka_: Kafka) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    kafka_.tls.authority.issue_cert("127.0.0.1").configure_cert(server)
    with registry.running(tls=server) as started:
        assert Registry([started.url], {"ssl.ca.location": str(kafka_.tls.ca)}).schema(1) is None
        with pytest.raises(MachineError, match="CERTIFICATE_VERIFY_FAILED"):
            Registry([started.url], {}).schema(1)
