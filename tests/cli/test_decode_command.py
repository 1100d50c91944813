"""``upriver decode`` as a person uses it: pasted hex, dumps, diagrams, files, captures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from captures import pcap, pcapng, segment, stream
from click.testing import CliRunner, Result

from upriver.cli.main import cli
from upriver.model import Datatype, VBucketState
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft001
from upriver.wire.protocol_enums import Command, StreamFlag

pytestmark = pytest.mark.story

MUTATION = Dcp(collections=True).encode(
    m.Mutation(
        vbucket=528,
        seqno=4,
        rev=1,
        key=b"hello",
        value=b'{"x":1}',
        datatype=Datatype.JSON,
        collection=0x555,
        cas=1_790_000_000_000_000_000,
        opaque=0x1210,
    )
)
NOOP = Dcp().encode(m.StreamNoop(opaque=5))


def run(*arguments: str, stdin: bytes | str | None = None) -> Result:
    return CliRunner().invoke(cli, ["decode", *arguments], input=stdin)


def test_every_field_of_a_packet_is_shown() -> None:
    result = run("--collections", MUTATION.hex())
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == f"mutation  dcp, server to client, {len(MUTATION)} bytes"
    shown = {line[49:75].strip(): line[75:].strip() for line in lines[1:]}
    assert shown["by seqno"] == "4"
    assert shown["vbucket"] == "528"
    assert shown["collection id"] == str(0x555)
    assert shown["key"] == "hello"
    assert shown["value"] == '{"x":1}'
    assert shown["datatype"] == "JSON"
    assert shown["cas"] == "1790000000000000000 (2026-09-21 14:13:20 UTC)"


def test_bytes_in_the_breakdown_are_the_packets_own() -> None:
    result = run(NOOP.hex())
    shown = "".join(line[7:49].strip().replace(" ", "") for line in result.output.splitlines()[1:])
    assert shown == NOOP.hex()


@pytest.mark.parametrize(
    "text",
    [
        NOOP.hex(),
        NOOP.hex().upper(),
        NOOP.hex(" "),
        NOOP.hex(":"),
        NOOP.hex(" ", 4),
        ", ".join(f"0x{byte:02x}" for byte in NOOP),
        "".join(f"\\x{byte:02x}" for byte in NOOP),
        f"# a noop\n{NOOP[:12].hex()}\n{NOOP[12:].hex()}  # its second half\n",
    ],
)
def test_hex_in_any_form(text: str) -> None:
    for result in (run(stdin=text), run("--file", "-", stdin=text)):
        assert result.exit_code == 0, result.output
        assert result.output.startswith("stream noop  dcp, server to client, 24 bytes")


@pytest.mark.parametrize(
    "command", [["xxd"], ["xxd", "-g1"], ["hexdump", "-C"], ["od", "-A", "x", "-t", "x1z"]]
)
def test_hex_dumps_of_real_tools(command: list[str], tmp_path: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    packet = tmp_path / "packet.bin"
    packet.write_bytes(MUTATION)
    dump = subprocess.run([*command, str(packet)], capture_output=True, text=True, check=True)
    if command[0] == "od":
        dump.stdout = "\n".join(line.replace(" ", "  ", 1) for line in dump.stdout.splitlines())
    result = run("--collections", "--json", stdin=dump.stdout)
    assert json.loads(result.output)["bytes"] == MUTATION.hex()


def test_a_dump_whose_text_column_looks_like_hex() -> None:
    """The column at the right spells the bytes; here it spells hex digits."""
    packet = Dcp().encode(kv.Get(key=b"deadbeef" * 3))
    rows = []
    for at in range(0, len(packet), 16):
        row = packet[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}: {row.hex(' ', 2):<39}  {text}")
    result = run("--json", stdin="\n".join(rows))
    assert json.loads(result.output)["bytes"] == packet.hex()


def test_the_box_diagrams_of_the_drafts() -> None:
    diagram = """
        Byte/     0       |       1       |       2       |       3       |
           /              |               |               |               |
          |0 1 2 3 4 5 6 7|0 1 2 3 4 5 6 7|0 1 2 3 4 5 6 7|0 1 2 3 4 5 6 7|
          +---------------+---------------+---------------+---------------+
         0| 0x80          | 0x57          | 0x00          | 0x01          |
          +---------------+---------------+---------------+---------------+
         4|       1e      |       00      |       02      |       10      |
          +---------------+---------------+---------------+---------------+
         8| 0x00          | 0x00          | 0x00          | 0x20          |
    """
    packet = Draft001().encode(m.Mutation(vbucket=0x210, seqno=4, key=b"m", value=b"v"))
    rows = [
        f"{at:8}| " + " | ".join(f"0x{byte:02x} ('?')" for byte in packet[at : at + 4]) + " |"
        for at in range(12, len(packet), 4)
    ]
    result = run("--json", stdin=diagram + "\n".join(rows))
    decoded = json.loads(result.output)
    assert (decoded["draft"], decoded["command"]) == ("001", "mutation")
    assert decoded["bytes"] == packet.hex()


def test_a_misprinted_packet_is_explained_and_corrected() -> None:
    result = run("815a00000000000c000000000000002d000000000000000001", "--from", "server")
    assert result.exit_code == 1
    assert result.output.startswith("set stream state  draft 000")
    assert "wrong: the magic (byte 0) is a response's, but this is a command" in result.output
    assert "right: 805a00000100000c000000010000002d000000000000000001" in result.output


def test_the_sender_decides_between_drafts() -> None:
    packet = "805200000000000c000000000000002d0000000000000000"  # close stream, or stream start
    ambiguous = run(packet)
    assert ambiguous.output.startswith("close stream  dcp, client to server")
    assert "also: stream start in 000" in ambiguous.output
    assert run(packet, "--from", "server").output.startswith("stream start  draft 000, server")


def test_a_given_draft_is_the_only_one_tried() -> None:
    packet = Draft001().encode(m.SnapshotMarker(vbucket=1)).hex()
    assert run(packet, "--draft", "001").exit_code == 0
    refused = run(packet, "--draft", "002")
    assert refused.exit_code == 1
    assert "is not an opcode" in refused.output


def test_packets_of_one_input_are_read_in_one_draft() -> None:
    """A deletion reads in two drafts, the marker before it in one: that one is meant."""
    packets = [m.SnapshotMarker(vbucket=1), m.Deletion(vbucket=1, seqno=2, key=b"k")]
    stdin = b"".join(Draft001().encode(packet) for packet in packets)
    shown = [json.loads(line) for line in run("--json", stdin=stdin).output.splitlines()]
    assert [packet["draft"] for packet in shown] == ["001", "001"]


def test_json_names_everything() -> None:
    request = m.StreamRequest(vbucket=3, start=1, end=9, flags=StreamFlag.TO_LATEST)
    shown = json.loads(run("--json", Dcp().encode(request).hex()).output)
    assert shown["from"] == "client"
    assert shown["message"]["flags"] == ["to_latest"]
    assert shown["message"]["snapshot_start"] == 1
    assert shown["problems"] == []
    assert shown["corrected"] == shown["bytes"]
    state = m.SetStreamState(vbucket=0, state=VBucketState.PENDING)
    assert (
        json.loads(run("--json", Dcp().encode(state).hex()).output)["message"]["state"] == "pending"
    )


def test_what_is_left_over_is_named() -> None:
    result = run(stdin=NOOP + NOOP[:7])
    assert result.exit_code == 1
    assert "7 bytes are left of an incomplete packet" in result.output


@pytest.mark.parametrize(
    ("arguments", "stdin", "problem"),
    [
        (["80zz"], None, "'z' is not a hex digit"),
        (["805"], None, "an odd number of hex digits"),
        ([], "", "no packet given"),
        ([NOOP.hex(), "--file", "-"], "", "not both"),
        (["--file", "no-such-file"], None, "does not exist"),
        (["--draft", "005", NOOP.hex()], None, "'005' is not one of"),
    ],
)
def test_bad_input_gets_one_clear_line(
    arguments: list[str], stdin: str | None, problem: str
) -> None:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 2
    assert problem in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("write", [pcap, pcapng])
@pytest.mark.parametrize("link", [101, 1, 113, 276, 0])
def test_captures(write: object, link: int, tmp_path: Path) -> None:
    header = {101: b"", 1: bytes(12) + b"\x08\x00", 113: bytes(16), 276: bytes(20), 0: bytes(4)}
    requests = stream([Dcp().encode(m.Open(name="n")), NOOP])
    answers = stream([Dcp().encode(m.PlainResponse(command=Command.OPEN))], to_server=False)
    frames = [header[link] + frame for frame in (requests[0], answers[0], requests[1])]
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(write(frames, link=link))  # type: ignore[operator]
    result = run("--file", str(capture), "--json")
    shown = [json.loads(line) for line in result.output.splitlines()]
    assert [packet["command"] for packet in shown] == ["open", "stream_noop", "open"]


def test_a_capture_out_of_order_repeated_and_with_a_gap(tmp_path: Path) -> None:
    parts = [MUTATION[:10], MUTATION[10:30], MUTATION[30:]]
    start = 2**32 - 15  # the sequence numbers wrap
    first = [
        segment(parts[1], start + 10),
        segment(parts[0], start),
        segment(parts[0] + parts[1], start),
        segment(parts[2], start + 30),
    ]
    after_gap = segment(NOOP, start + len(MUTATION) + 1000)
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(pcap([*first, after_gap]))
    result = run("--file", str(capture), "--json", "--collections")
    shown = [json.loads(line)["bytes"] for line in result.output.splitlines()]
    assert shown == [MUTATION.hex(), NOOP.hex()]


def test_a_broken_capture_says_so(tmp_path: Path) -> None:
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(pcapng([segment(NOOP, 1)])[:-8])
    result = run("--file", str(capture))
    assert result.exit_code == 2
    assert "truncated" in result.output


def test_as_a_real_process() -> None:
    command = [sys.executable, "-m", "upriver", "decode"]
    result = subprocess.run(command, input=MUTATION, capture_output=True, check=False)
    assert result.returncode == 0
    assert b"mutation" in result.stdout
    version = subprocess.run(
        [sys.executable, "-m", "upriver", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("upriver, version 0.")
