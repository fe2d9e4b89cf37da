"""docs/protocol.md and the comments of the protos say what the code does: limits, numbers, reasons, bytes, examples."""

import json
import math
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from annotated_types import Ge, Le
from gem_conformance import SCENARIOS, Limits
from gem_conformance.task import wire_name
from gem_server.errors import Reason
from gem_server.service import lane_connection, lane_port, listener
from gem_server.service.status_codes import CODES
from gem_server.setting_tables import LimitSettings
from gem_server.state.sessions import SESSIONS_RETRY_SECONDS
from gemps import lane, limits
from gemps.v1 import (
    commit_pb2,
    errors_pb2,
    parameters_pb2,
    session_pb2,
    transfer_pb2,
)
from google.protobuf.message import Message
from pydantic import ValidationError
from safetensors.numpy import load_file

from gem_core import MAX_CHUNK_BYTES, ElementType, Layout, TensorKind, TensorSpec, WireType, crc32c
from gem_core import layout as core_layout
from gem_core.payload import PayloadFormat
from gem_core.selection import MAX_RUN_NUMBERS
from gem_core.wire_types import BLOCK_ELEMENTS, LARGEST_VALUE, encode, encoded_bytes
from tests.client.real_server import RealServer
from tests.docs import protocol_example
from tests.docs.blocks import blocks_of
from tests.examples.workers import conformance, ended, export_digits, serving, working

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "protocol.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROTOS = ROOT / "proto" / "gemps" / "v1"
SERVICE = "/gemps.v1.WorkerService/"
HEADINGS = [
    "A complete worker",
    "Generating code",
    "Large models",
    "The one rule",
    "Refusals",
    "Connections and limits",
    "Optional parts",
    "A byte-exact example",
    "Conformance",
    "What may change in v1",
]
MINIMAL = ROOT / "examples" / "workers" / "python" / "minimal_worker.py"


def section(heading: str) -> str:
    return re.split(r"^## ", TEXT, flags=re.MULTILINE)[1 + HEADINGS.index(heading)]


def rows(heading: str, first: str) -> list[list[str]]:
    """The cells of the section's table whose first column has this title, without backticks."""
    lines = iter(section(heading).splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            break
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    assert len(found) > 1, f"{heading}: no table of {first}"
    return found[1:]


def named(found: list[list[str]]) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in found}


def test_its_headings_are_in_the_order_of_need() -> None:
    assert re.findall(r"^## (.*)$", TEXT, re.MULTILINE) == HEADINGS


def test_every_limit_of_the_page_is_that_of_the_code() -> None:
    found = named(rows("Connections and limits", "limit"))

    def number(limit: str, pattern: str = r"([\d ]+)") -> float:
        match = re.search(pattern, found[limit][0])
        assert match is not None, limit
        return float(match[1].replace(" ", ""))

    assert number("everything of a message but its chunk's data") == limits.FIELDS_BYTES
    assert number("adapter of Initialize") == limits.ADAPTER_BYTES
    assert number("JoinRequest") == MAX_CHUNK_BYTES
    assert number("recipe of JoinRequest") == limits.RECIPE_BYTES
    assert number("chunk_bytes", r"([\d ]+) by default") == LimitSettings.model_fields["chunk_bytes"].default
    assert number("silence after which a session expires", r"(\d+) by default") == 120
    assert len(found) == 6
    assert dict(listener.CHANNEL_OPTIONS)["grpc.http2.max_ping_strikes"] == 0  # as often as a client likes


@pytest.mark.parametrize(
    ("file", "words", "value"),
    [
        ("worker", r"Messages are at most 2 MiB \+ (\d+) KiB", (limits.MESSAGE_BYTES - MAX_CHUNK_BYTES) / 1024),
        ("transfer", r"1 byte to (\d+) MiB of it each", MAX_CHUNK_BYTES / 2**20),
        ("transfer", r"Blocks of (\d+) consecutive elements", BLOCK_ELEMENTS),
        ("transfer", r"the length is even, and at most (\d+)", MAX_RUN_NUMBERS),
        ("session", r"4 096 to ([\d ]+)", MAX_CHUNK_BYTES),
        ("session", r"([\d ]+) random bytes", limits.SESSION_ID_BYTES),
        ("session", r"1 to (\d+) bytes of UTF-8", limits.TEXT_BYTES),
        ("layout", r"1 to (\d+) bytes of UTF-8", core_layout.MAX_NAME_BYTES),
        ("layout", r"1 to ([\d ]+) tensors", core_layout.MAX_TENSORS),
        ("layout", r"At most (\d+) dimensions", core_layout.MAX_DIMENSIONS),
        ("commit", r"A payload of at most (\d+) KiB may go whole", limits.WHOLE_PAYLOAD_BYTES / 1024),
        ("commit", r"At most 2\^(\d+) \(else MALFORMED\)", math.log2(limits.SAMPLES)),
        ("errors", r"of a delta larger than (1e\d+)", LARGEST_VALUE),
    ],
)
def test_every_limit_in_the_protos_comments_is_that_of_the_code(file: str, words: str, value: float) -> None:
    match = re.search(words, comments(file))
    assert match is not None
    assert float(match[1].replace(" ", "")) == value


def comments(file: str) -> str:
    """The file's comments, without the breaks of their lines."""
    lines = (PROTOS / f"{file}.proto").read_text(encoding="utf-8").splitlines()
    return " ".join(line.strip().lstrip("/").strip() for line in lines if line.strip().startswith("//"))


def chunk_byte_limits() -> tuple[int, int]:
    """What `gemps serve` takes as limits.chunk_bytes, and so what Join may tell."""
    limits = {type(one): one for one in LimitSettings.model_fields["chunk_bytes"].metadata}
    return limits[Ge].ge, limits[Le].le


@pytest.mark.parametrize("wire_type", [one for one in WireType if one is not WireType.SHARED_MEMORY])
def test_no_server_offers_chunks_that_are_too_small_for_a_block_or_an_element(wire_type: WireType) -> None:
    smallest, _ = chunk_byte_limits()
    with pytest.raises(ValidationError, match="chunk_bytes"):
        LimitSettings(chunk_bytes=smallest - 1)
    sent = [one for one in ElementType if one is not ElementType.OTHER]
    kinds = (TensorKind.PARAMETER, ElementType.FLOAT32), *((TensorKind.BUFFER, one) for one in sent)
    layout = Layout([TensorSpec(f"{at}", (3000,), type_, kind) for at, (kind, type_) in enumerate(kinds)])
    format_ = PayloadFormat(layout, wire_type)
    cuts = list(format_.cut(smallest))
    assert all(0 < end - start <= smallest for start, end in cuts)
    assert (cuts[0][0], cuts[-1][1]) == (0, format_.byte_count)


def test_every_reason_has_one_row_with_its_cause() -> None:
    found = rows("Refusals", "reason")
    expected = [value.name.removeprefix("ERROR_REASON_") for value in errors_pb2.ErrorReason.DESCRIPTOR.values]
    assert sorted(name for row in found for name in row[0].split(", ")) == sorted(expected[1:])
    assert all(row[1] for row in found)


def test_every_reason_has_its_code_in_the_protos_comments() -> None:
    codes: list[str] = []
    for line in (PROTOS / "errors.proto").read_text(encoding="utf-8").partition("enum ErrorReason")[2].splitlines():
        if heading := re.match(r"  // ([A-Z]+(?:_[A-Z]+)*(?:, [A-Z_]+)*)(?::|$)", line):
            codes = heading[1].split(", ")
        elif (value := re.match(r"  ERROR_REASON_(\w+) = [1-9]", line)) is not None:
            assert CODES[Reason[value[1]]].name in codes, value[1]


@pytest.mark.parametrize("name", ["Pull", "Heartbeat", "Initialize"])
def test_a_call_of_a_session_that_has_left_is_refused_as_unknown(name: str, server: RealServer) -> None:
    request = {
        "Pull": parameters_pb2.PullRequest(session_id=protocol_example.SESSION_ID),
        "Heartbeat": session_pb2.HeartbeatRequest(session_id=protocol_example.SESSION_ID),
        "Initialize": parameters_pb2.InitializeRequest(
            header=parameters_pb2.InitializeHeader(session_id=protocol_example.SESSION_ID)
        ),
    }[name].SerializeToString()
    with grpc.insecure_channel(server.address) as channel:
        assert read(channel, name, request) == ("UNKNOWN_SESSION", None)


def test_the_digest_is_that_of_the_text_beside_it() -> None:
    text = next(block.text for block in blocks_of(PAGE) if "int64 0: 5:steps" in block.text)
    layout = Layout(
        [
            TensorSpec("weight", (1, 2), ElementType.FLOAT32, TensorKind.PARAMETER),
            TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
        ]
    )
    assert layout.canonical_text() == text
    assert f"has {len(text)} bytes and the digest `{layout.digest.hex()}`" in section("A byte-exact example")


def test_wire_types_have_their_sizes_and_bytes() -> None:
    found = named(rows("Optional parts", "`WireType`"))
    assert set(found) == {one.name for one in WireType} - {"SHARED_MEMORY"}
    sizes: dict[str, Callable[[int], int]] = {
        "4 n": lambda n: 4 * n,
        "2 n": lambda n: 2 * n,
        "ceil(n / 2) + 4 * ceil(n / 256)": lambda n: -(-n // 2) + 4 * -(-n // 256),
        "ceil(n / 4) + 4 * ceil(n / 256)": lambda n: -(-n // 4) + 4 * -(-n // 256),
    }
    four = np.array([1, -0.1, 0.25, 70000], np.float32)
    for name, (size, data) in found.items():
        wire_type = WireType[name]
        assert bytes(encode(wire_type, four)).hex(" ") == data
        assert sizes[size](300) == encoded_bytes(wire_type, 300)


def test_wire_types_have_their_numbers() -> None:
    values = transfer_pb2.WireType.DESCRIPTOR.values_by_name
    assert {one.name: one.value for one in WireType} == {
        name.removeprefix("WIRE_TYPE_"): value.number for name, value in values.items() if value.number
    }


def test_every_file_of_vectors_is_told() -> None:
    told = {name for row in rows("Optional parts", "file") for name in row[0].split(", ")}
    files = {path.name: json.loads(path.read_text("utf-8")) for path in (ROOT / "proto" / "vectors").iterdir()}
    assert told == set(files)
    assert all(files.values())


def test_the_checksum_of_the_nine_digits_is_right() -> None:
    assert f"0x{crc32c(b'123456789'):08X}" in section("A complete worker")


def test_the_wire_types_of_a_task_have_the_names_that_the_page_tells() -> None:
    words = " ".join(section("Conformance").split())
    told = re.search(r"Wire types are ((?:`\w+`(?:, | and )?)+), at least one in each list", words)
    assert told is not None
    offers = [
        offer for one in SCENARIOS.values() for offer in (one.task.delta_wire_types, one.task.parameter_wire_types)
    ]
    assert all(offers)
    assert set(re.findall(r"`(\w+)`", told[1])) == {wire_name(one) for offer in offers for one in offer}


def test_the_kit_waits_as_long_as_the_page_says() -> None:
    limits = Limits()
    told = f"The kit waits {limits.start:g} s for a `Join` and {limits.answer:g} s for each further call or message"
    assert told in " ".join(section("Conformance").split())


def test_its_first_block_is_the_minimal_worker() -> None:
    assert blocks_of(PAGE)[0].text == MINIMAL.read_text(encoding="utf-8")
    assert len(MINIMAL.read_text(encoding="utf-8").splitlines()) <= 90


def test_the_minimal_worker_trains(tmp_path: Path) -> None:
    digits = export_digits(tmp_path)
    data = tmp_path / "data"
    budget = ("--rule", "gem", "--eta", "0.05", "--steps", "200", "--min-workers", "2", "--exit-when-finished")
    worker = [sys.executable, str(MINIMAL), str(digits)]
    with serving(tmp_path, *budget, "--data-dir", str(data)) as (address, server):
        with working(worker, "a", address, tmp_path) as first, working(worker, "b", address, tmp_path) as second:
            assert [ended(first, tmp_path, "a"), ended(second, tmp_path, "b")] == [0, 0]
        assert server.wait(120) == 0
    weights = load_file(data / "latest" / "model.safetensors")["weights"]
    held_out = json.loads(digits.read_text(encoding="utf-8"))["held_out"]
    scores = np.pad(np.array(held_out["inputs"]) / 16, ((0, 0), (0, 1)), constant_values=1) @ weights
    assert (scores.argmax(1) == held_out["labels"]).mean() >= 0.85


def test_the_minimal_worker_passes_the_basic_scenarios_of_the_kit() -> None:
    outcomes = conformance([sys.executable, str(MINIMAL.with_name("minimal_conformance.py"))], "--basic")
    assert len(outcomes) >= 4
    assert set(outcomes.values()) == {"passed"}


@pytest.mark.parametrize(
    ("flag", "tools", "made"),
    [
        ("--python_out", (), "gemps/v1/worker_pb2_grpc.py"),
        ("--python_out", (), "google/rpc/error_details_pb2.py"),
        ("--cpp_out", ("protoc", "grpc_cpp_plugin"), "gemps/v1/worker.grpc.pb.h"),
        ("--cpp_out", ("protoc", "grpc_cpp_plugin"), "google/rpc/error_details.pb.h"),
        ("--java_out", ("protoc", "grpc_java_plugin"), "dev/gemps/v1/WorkerServiceGrpc.java"),
        ("--go_out", ("protoc", "protoc-gen-go", "protoc-gen-go-grpc"), "gemps/v1/worker_grpc.pb.go"),
    ],
)
def test_the_commands_that_generate_code_run_as_printed(
    flag: str, tools: tuple[str, ...], made: str, tmp_path: Path
) -> None:
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"there is no {missing[0]} here")
    generate(flag, tmp_path)
    assert len(list(tmp_path.rglob(made))) == 1


def generate(flag: str, tmp_path: Path) -> None:
    """Run the block of commands that has this flag, behind the first one, in a folder like a checkout's root."""
    first, *others = (one.text for one in blocks_of(PAGE) if one.section == "Generating code" and one.shell)
    (block,) = (one for one in others if flag in one)
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", first + block], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def python_that_reads_refusals() -> str:
    (block,) = (one for one in blocks_of(PAGE) if one.section == "Refusals" and one.language == "python")
    return block.text


def test_the_python_code_for_refusals_runs_with_what_its_protoc_line_makes(tmp_path: Path) -> None:
    """Not with googleapis-common-protos, whose folder google/rpc is further behind on the path."""
    generate("--python_out", tmp_path)
    said = (
        "from types import SimpleNamespace\nerror = SimpleNamespace(trailing_metadata=lambda: None)\n"
        f"{python_that_reads_refusals()}\nimport sys\nprint(sys.modules['google.rpc.error_details_pb2'].__file__)"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "generated")}
    done = subprocess.run(
        [sys.executable, "-c", said], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_the_python_code_for_refusals_reads_those_of_the_real_server() -> None:
    started = RealServer(max_sessions=1)
    try:
        with grpc.insecure_channel(started.address) as channel:
            beat = session_pb2.HeartbeatRequest(session_id=protocol_example.SESSION_ID).SerializeToString()
            assert read(channel, "Heartbeat", beat) == ("UNKNOWN_SESSION", None)
            other = session_pb2.JoinRequest()
            other.CopyFrom(protocol_example.JOIN)
            other.worker_name, other.session_id = "other", bytes(16)
            call(channel, "Join", other.SerializeToString())
            join = protocol_example.JOIN.SerializeToString()
            assert read(channel, "Join", join) == ("TOO_MANY", SESSIONS_RETRY_SECONDS)
    finally:
        started.stop()


def read(channel: grpc.Channel, name: str, request: bytes) -> tuple[object, object]:
    """Reason and delay of the refusal of a call, as the page's code reads them."""
    with pytest.raises(grpc.RpcError) as refused:
        call(channel, name, request)
    found: dict[str, object] = {"error": refused.value}
    exec(python_that_reads_refusals(), found)
    return found["reason"], found["delay"]


def printed() -> list[str]:
    blocks = (block.text for block in blocks_of(PAGE) if block.section == "A byte-exact example")
    return [text for text in blocks if text.startswith("W ")]


def test_the_example_is_what_the_generated_code_makes() -> None:
    assert printed() == list(protocol_example.blocks())


def bytes_of(block: str) -> bytes:
    """The bytes of a printed block, read as a person would."""
    rows_of_hex = (re.match(r" *((?:[0-9a-f]{2} )*[0-9a-f]{2})(?= {2}|$)", line) for line in block.splitlines()[1:])
    return b"".join(bytes.fromhex(match[1]) for match in rows_of_hex if match)


@pytest.fixture
def server() -> Iterator[RealServer]:
    """With the example's incarnation, and its parameters, which another session of the same worker has uploaded."""
    started = RealServer(rule="gem")
    try:
        central = started.server.central
        started.in_loop(lambda: setattr(central, "incarnation", protocol_example.INCARNATION))
        started.in_loop(lambda: setattr(started.server.lane, "incarnation", protocol_example.INCARNATION))
        with grpc.insecure_channel(started.address) as channel:
            other = session_pb2.JoinRequest()
            other.CopyFrom(protocol_example.JOIN)
            other.session_id = bytes(reversed(protocol_example.SESSION_ID))
            call(channel, "Join", other.SerializeToString())
            theta = protocol_example.THETA
            upload = parameters_pb2.InitializeRequest(
                header=parameters_pb2.InitializeHeader(session_id=other.session_id, byte_count=len(theta)),
                chunk=theta,
                footer=protocol_example.footer(theta),
            )
            channel.stream_unary(f"{SERVICE}Initialize")(iter([upload.SerializeToString()]), timeout=30)
            call(channel, "Leave", session_pb2.LeaveRequest(session_id=other.session_id).SerializeToString())
        yield started
    finally:
        started.stop()


def call(channel: grpc.Channel, name: str, request: bytes) -> bytes:
    answer: bytes = channel.unary_unary(SERVICE + name)(request, timeout=30)
    return answer


def test_the_real_server_takes_the_printed_bytes_and_answers_with_the_printed_bytes(server: RealServer) -> None:
    join, joined, pull, pulled, commit, committed = map(bytes_of, printed())
    with grpc.insecure_channel(server.address) as channel:
        answer = session_pb2.JoinResponse.FromString(call(channel, "Join", join))
        for field in protocol_example.LEFT_OUT:
            answer.ClearField(field)  # type: ignore[arg-type]
        assert in_order(answer) == joined
        # Messages of a stream hold one part or several, in any order: end to end they are one message again.
        pulls = channel.unary_stream(f"{SERVICE}Pull")(pull, timeout=30)
        assert in_order(parameters_pb2.PullResponse.FromString(b"".join(pulls))) == pulled
        commits = channel.stream_stream(f"{SERVICE}Commit")(iter([commit]), timeout=30)
        assert in_order(commit_pb2.CommitResponse.FromString(b"".join(commits))) == committed


def lane_comments() -> str:
    return re.sub(r"^// ?", "", (PROTOS / "lane.proto").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_lanes_kinds_and_states_are_those_of_the_code() -> None:
    sizes: dict[str, set[tuple[int, int]]] = {}
    states = {}
    for state in lane.State:
        tables = [table[state] for table in (lane.FROM_WORKER, lane.FROM_SERVER)]
        states[state.name] = [", ".join(lane.Kind(kind).name for kind in table) for table in tables]
        for kind, rule in (one for table in tables for one in table.items()):
            sizes.setdefault(lane.Kind(kind).name, set()).add((rule.least, rule.most))
    sizes["MESSAGE"].discard((1, limits.FIRST_MESSAGE_BYTES))
    kinds = re.findall(r"^  (\d) (\w+) +\w+ +(?:(\d+) to |up to )?(\d+)  ", lane_comments(), re.MULTILINE)
    assert len(kinds) == len(lane.Kind)
    for number, name, least, most in kinds:
        ((at_least, at_most),) = sizes[name]
        assert (int(number), int(most)) == (lane.Kind[name], at_most)
        assert at_least == (int(least) if least else 0 if at_most > 8 else at_most)
    table = lane_comments().partition("  state ")[2].partition("\n\n")[0].splitlines()[1:]
    found = [re.split(r" {2,}", line.strip()) for line in table]
    assert {row[0]: (row[2:] or ["", ""]) for row in found} == states


def test_the_lanes_limits_are_those_of_the_code() -> None:
    text = " ".join(lane_comments().split())
    assert limits.FIRST_MESSAGE_BYTES == lane.BUFFERED_BYTES + limits.WHOLE_PAYLOAD_BYTES
    for told in (
        f"within {lane_connection.HELLO_SECONDS:g} s of the connection",
        f"keeps {lane_port.MAX_STRANGERS} connections",
        f"begins a commit has at most {lane.BUFFERED_BYTES // 1024} KiB, and the bytes of the payload",
        f"Another MESSAGE of more than {lane.BUFFERED_BYTES // 1024} KiB",
        f"at most {lane.HEAD_BYTES // 1024} KiB before the chunk's data",
        f"at most one PING in {lane_connection.PING_SECONDS:g} s",
        f"a reply for {lane_connection.WRITE_SECONDS:g} s",
    ):
        assert told in text


def test_the_real_server_takes_the_printed_bytes_on_its_lane(server: RealServer) -> None:
    (block,) = (one.text for one in blocks_of(PAGE) if one.heading == "The lane")
    assert block == protocol_example.lane_block()
    hello, welcome, commit_head, answer_head = (bytes_of(part) for part in re.split(r"^(?=W)", block, flags=re.M)[1:])
    join, _, pull, _, commit, committed = map(bytes_of, printed())
    with grpc.insecure_channel(server.address) as channel:
        joined = session_pb2.JoinResponse.FromString(call(channel, "Join", join))
        list(channel.unary_stream(f"{SERVICE}Pull")(pull, timeout=30))
        with socket.create_connection(("127.0.0.1", joined.lane_port), 30) as connection:
            connection.sendall(hello)
            assert exactly(connection, len(welcome)) == welcome
            connection.sendall(commit_head + commit)
            assert exactly(connection, len(answer_head)) == answer_head
            answer = commit_pb2.CommitResponse.FromString(exactly(connection, len(committed)))
            assert in_order(answer) == committed
            connection.sendall(struct.pack("<IB", 0, lane.Kind.CANCEL))
            assert connection.recv(1) == b""


def exactly(connection: socket.socket, size: int) -> bytes:
    return connection.recv(size, socket.MSG_WAITALL)


def in_order(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)
