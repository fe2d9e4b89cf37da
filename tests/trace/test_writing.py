"""The file: appended to by one, cut back to whole records, never another's file."""

from pathlib import Path

import pytest

from gem_trace import TraceError, TraceWriter, read_records
from gem_trace.files import map_file
from gem_trace.format import encode

PAYLOAD = memoryview(bytes(range(256)) * 4)


def events(path: Path) -> list[str]:
    return [str(record.event["event"]) for record in read_records(map_file(path))]


def test_a_trace_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "run.trace"
    for number in range(3):
        writer = TraceWriter(path)
        assert (writer.run, writer.clock) == (("a run", 7) if number == 2 else (None, 0))
        writer.append({"event": "started"})
        if number == 1:
            writer.append({"event": "parameters", "run": "a run", "clock": 7}, [PAYLOAD])
        writer.close()
    assert events(path) == ["started", "started", "parameters", "started"]
    assert path.stat().st_mode & 0o077 == 0


def test_what_is_torn_is_cut_off_before_more_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    writer = TraceWriter(path)
    writer.append({"event": "first"}, [PAYLOAD])
    whole = path.stat().st_size
    writer.append({"event": "second"}, [PAYLOAD])
    writer.close()
    complete = path.read_bytes()
    torn = [complete[:length] for length in range(whole + 1, len(complete), 37)]
    torn.append(complete[:-100] + bytes(100))  # room that the disk gave before the bytes
    for data in torn:
        path.write_bytes(data)
        writer = TraceWriter(path)
        assert writer.cut_at == whole
        writer.append({"event": "third"})
        writer.close()
        assert events(path) == ["first", "third"]


def test_two_cannot_write_one_trace(tmp_path: Path) -> None:
    first = TraceWriter(tmp_path / "run.trace")
    with pytest.raises(TraceError, match="another process is writing"):
        TraceWriter(tmp_path / "run.trace")
    first.append({"event": "first"})
    first.close()
    TraceWriter(tmp_path / "run.trace").close()


@pytest.mark.parametrize("text", ["a text", "x" * 10_000])
def test_another_file_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes").write_text(text)
    with pytest.raises(TraceError, match="is not a trace"):
        TraceWriter(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == text


def test_a_trace_of_another_format_is_left_alone(tmp_path: Path) -> None:
    """Replay would refuse the file at its first record, and with it all that was appended."""
    path = tmp_path / "run.trace"
    path.write_bytes(b"".join(map(bytes, encode({"event": "started", "format": "gemps-trace-1"}))))
    before = path.read_bytes()
    with pytest.raises(TraceError, match=r"has the format gemps-trace-1, and this version .* writes gemps-trace-2"):
        TraceWriter(path)
    assert path.read_bytes() == before


def test_damage_is_refused_with_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    writer = TraceWriter(path)
    for name in ("first", "second", "third"):
        writer.append({"event": name}, [PAYLOAD])
    writer.close()
    data = bytearray(path.read_bytes())
    second = next(record for record in read_records(memoryview(data)) if record.event["event"] == "second")
    data[second.offset + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(TraceError, match=f"damaged at offset {second.offset}"):
        TraceWriter(path)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="choose another file"):
        TraceWriter(tmp_path / "file" / "run.trace")


def test_a_record_without_room_leaves_the_whole_ones(small_disk: Path) -> None:
    path = small_disk / "run.trace"
    writer = TraceWriter(path)
    writer.append({"event": "first"}, [PAYLOAD])
    with pytest.raises(OSError, match="No space left"):
        writer.append({"event": "second"}, [PAYLOAD] * 32)
    writer.append({"event": "third"}, [PAYLOAD])
    writer.close()
    assert events(path) == ["first", "third"]
