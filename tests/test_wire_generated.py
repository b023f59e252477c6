"""The committed protobuf module is what the committed ``pulsar.proto`` generates."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from harness.wire import pulsar_pb2

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "harness" / "wire"


def module_body(source: str) -> list[str]:
    """Statements after the version check, which names the generator's version and nothing else."""
    statements = [ast.dump(node) for node in ast.parse(source).body]
    return [statement for statement in statements if "ValidateProtobufRuntimeVersion" not in statement]


def stub_body(source: str) -> list[str]:
    # Generators before protobuf 7 leave the Optional around bool out.
    source = source.replace("_Optional[bool]", "bool")
    return [ast.dump(node) for node in ast.parse(source).body]


def test_generating_again_gives_the_same_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, "harness/wire/pulsar.proto"], cwd=ROOT, check=True)
    generated = tmp_path / "harness" / "wire"
    for name, body in (("pulsar_pb2.py", module_body), ("pulsar_pb2.pyi", stub_body)):
        assert body((generated / name).read_text()) == body((COMMITTED / name).read_text())


def test_module_runs_with_the_oldest_allowed_protobuf() -> None:
    assert "\n    6,\n    31,\n" in (COMMITTED / "pulsar_pb2.py").read_text()
    assert '"protobuf>=6.31"' in (ROOT / "pyproject.toml").read_text()


def test_every_command_has_a_body_with_its_own_number() -> None:
    command = pulsar_pb2.BaseCommand.DESCRIPTOR
    numbers = {field.number for field in command.fields} - {pulsar_pb2.BaseCommand.TYPE_FIELD_NUMBER}
    assert numbers == set(pulsar_pb2.BaseCommand.Type.values())


def test_numbers_of_the_protocol() -> None:
    """Numbers that the clauses rely on, written down a second time."""
    types = {
        "CONNECT": 2, "CONNECTED": 3, "SUBSCRIBE": 4, "PRODUCER": 5, "SEND": 6, "SEND_RECEIPT": 7, "SEND_ERROR": 8,
        "MESSAGE": 9, "ACK": 10, "FLOW": 11, "UNSUBSCRIBE": 12, "SUCCESS": 13, "ERROR": 14, "CLOSE_PRODUCER": 15,
        "CLOSE_CONSUMER": 16, "PRODUCER_SUCCESS": 17, "PING": 18, "PONG": 19, "REDELIVER_UNACKNOWLEDGED_MESSAGES": 20,
        "PARTITIONED_METADATA": 21, "LOOKUP": 23, "LOOKUP_RESPONSE": 24, "SEEK": 28, "ACTIVE_CONSUMER_CHANGE": 31,
        "ACK_RESPONSE": 38, "NEW_TXN": 50, "END_TXN": 56, "WATCH_TOPIC_LIST": 64, "TOPIC_MIGRATED": 68,
    }  # fmt: skip
    assert {name: pulsar_pb2.BaseCommand.Type.Value(name) for name in types} == types
    errors = {
        "MetadataError": 1, "PersistenceError": 2, "ConsumerBusy": 5, "ChecksumError": 9, "TopicTerminatedError": 15,
        "ProducerBusy": 16, "NotAllowedError": 22, "ProducerFenced": 25,
    }  # fmt: skip
    assert {name: pulsar_pb2.ServerError.Value(name) for name in errors} == errors
    fields = {
        pulsar_pb2.MessageMetadata: {
            "compression": 8, "uncompressed_size": 9, "num_messages_in_batch": 11, "deliver_at_time": 19,
            "highest_sequence_id": 24, "uuid": 26, "num_chunks_from_msg": 27, "total_chunk_msg_size": 28,
            "chunk_id": 29,
        },
        pulsar_pb2.CommandSend: {"num_messages": 3, "highest_sequence_id": 6, "is_chunk": 7, "message_id": 9},
        pulsar_pb2.MessageIdData: {
            "ledgerId": 1, "entryId": 2, "partition": 3, "batch_index": 4, "ack_set": 5, "batch_size": 6,
            "first_chunk_message_id": 7,
        },
        pulsar_pb2.CommandConnected: {"max_message_size": 3},
        pulsar_pb2.CommandAck: {"validation_error": 4, "request_id": 8},
    }  # fmt: skip
    for message, numbers in fields.items():
        assert {name: message.DESCRIPTOR.fields_by_name[name].number for name in numbers} == numbers
