"""The task text: corpus, held-out part, windows, and what the transformer writes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gem_worker.errors import TaskError
from gem_worker.model_sizes import TransformerSizes
from gem_worker.models.transformer import Transformer
from gem_worker.tasks import TaskOptions, create_task, epoch_order, held_out_batches, training_batches
from gem_worker.text_corpus import read_corpus
from gem_worker.text_generation import generate_text, transformer_of
from torch.nn import functional

from tests.worker.serving import processes_in

TINY = TransformerSizes(layers=1, width=16, heads=2)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """900 numbered lines to train on, and 100 held-out ones with characters that only they have."""
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"line {n:03}\n" if n < 900 else f"LINE {n:03}\n" for n in range(1000)), encoding="utf-8")
    return path


def bytes_of(batches: torch.Tensor) -> set[int]:
    return set(batches.unique().tolist())


def test_the_default_text_is_all_topics_of_pydoc_sorted_by_name() -> None:
    from pydoc_data.topics import topics

    found = read_corpus("", 64)
    text = bytes(found.train).decode() + bytes(found.held_out).decode()
    assert text == "".join(f"{topics[name]}\n" for name in sorted(topics))
    assert "pydoc_data.topics" in found.source
    assert found.facts()["train_bytes"] + found.facts()["held_out_bytes"] == len(text.encode())


def test_the_last_tenth_is_held_out_and_at_most_a_mebibyte(tmp_path: Path, corpus: Path) -> None:
    found = read_corpus(str(corpus), 64)
    assert bytes(found.train) + bytes(found.held_out) == corpus.read_bytes()
    assert len(found.held_out) == 900
    large = tmp_path / "large.txt"
    large.write_bytes(b"x" * (11 * 2**20))
    assert len(read_corpus(str(large), 64).held_out) == 2**20


def test_the_held_out_part_begins_with_a_whole_character(tmp_path: Path) -> None:
    path = tmp_path / "euro.txt"
    for count in range(30, 36):
        path.write_text("€" * count, encoding="utf-8")
        found = read_corpus(str(path), 1)
        assert bytes(found.held_out).decode() == "€" * (len(found.held_out) // 3)


def test_no_worker_trains_on_held_out_text(corpus: Path) -> None:
    task = create_task("text", TaskOptions(text=str(corpus), context=32))
    held_out = set(b"LINE")
    batches = training_batches(task.train, 64, seed=0, rank=0)
    for epoch, (inputs, labels) in batches:
        assert not held_out & (bytes_of(inputs) | bytes_of(labels))
        if epoch == 5:
            break
    seen = [bytes_of(labels) for _, labels in held_out_batches(task.test, 8)]
    assert all(held_out <= found for found in seen)


def test_labels_are_the_next_bytes(corpus: Path) -> None:
    task = create_task("text", TaskOptions(text=str(corpus), context=16))
    data = corpus.read_bytes()
    for inputs, labels in [next(training_batches(task.train, 4, 0, 0))[1], next(held_out_batches(task.test, 4))]:
        assert inputs.shape == labels.shape == (4, 16)
        assert inputs.dtype is labels.dtype is torch.int64
        for row, following in zip(inputs.tolist(), labels.tolist(), strict=True):
            assert bytes([*row, following[-1]]) in data
            assert following[:-1] == row[1:]


def test_an_epoch_is_one_pass_cut_at_an_offset_that_follows_from_seed_rank_and_epoch(corpus: Path) -> None:
    train = create_task("text", TaskOptions(text=str(corpus), context=100)).train
    order = epoch_order(train, seed=1, rank=2, epoch=3)
    assert len(order) == len(train) == (900 * 9 - 1) // 100
    assert np.array_equal(order, epoch_order(train, seed=1, rank=2, epoch=3))
    starts = np.sort(order)
    assert not np.array_equal(starts, order)
    assert (np.diff(starts)[:-1] == 100).all()
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert not np.array_equal(order, epoch_order(train, *other))
    offsets = {int(epoch_order(train, 1, 2, epoch).min()) for epoch in range(20)}
    assert len(offsets) > 10
    assert max(offsets) < 100


@pytest.mark.long
def test_two_processes_have_the_same_text_vocabulary_and_batches(tmp_path: Path) -> None:
    code = (
        "import json; from gem_worker.tasks import create_task, training_batches; task = create_task('text');"
        "_, (inputs, labels) = next(training_batches(task.train, 8, 3, 1));"
        "print(json.dumps([task.classes, len(task.train), len(task.test), inputs.tolist(), labels.tolist()]))"
    )
    with processes_in(tmp_path) as processes:
        children = [processes.start(f"process-{n}", "-c", code, PYTHONHASHSEED=str(n)) for n in range(2)]
        assert [child.wait() for child in children] == [0, 0], children[0].output + children[1].output
        first, second = (json.loads(child.output) for child in children)
    assert first == second
    assert first[0] == 256


def test_the_bits_are_those_of_a_character_whatever_its_bytes(tmp_path: Path) -> None:
    for letter, length in (("x", 1), ("é", 2), ("€", 3)):
        path = tmp_path / f"{length}.txt"
        path.write_text(letter * 600, encoding="utf-8")
        task = create_task("text", TaskOptions(text=str(path), context=6))
        assert task.bits_per_character(float(np.log(2))) == pytest.approx(length, rel=0.1)
    assert create_task("digits").bits_per_character(1.0) is None


def test_a_folder_is_its_visible_files_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a.md", "b/1.txt", ".git/config", "b/.hidden"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{name}\n" * 20, encoding="utf-8")
    found = read_corpus(str(tmp_path), 4)
    lines = (bytes(found.train) + bytes(found.held_out)).decode().split()
    assert lines == ["a.md"] * 20 + ["b/1.txt"] * 20 + ["b/2.txt"] * 20


def test_texts_that_cannot_be_learnt_are_told_with_the_fix(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    for name, context, part in (
        ("missing.txt", 64, "missing.txt does not exist; name a file with UTF-8 text"),
        ("empty.txt", 64, "empty.txt holds no text; name a file"),
        ("folder", 64, "folder holds no text; name a file"),
        ("latin.txt", 64, "latin.txt is not UTF-8: byte 0xe9 at position 3; convert it"),
        (corpus.name, 900, "has 900; use a smaller --context or a longer --text"),
    ):
        with pytest.raises(TaskError) as caught:
            create_task("text", TaskOptions(text=str(tmp_path / name), context=context))
        assert part in str(caught.value)
        assert "\n" not in str(caught.value)
    create_task("text", TaskOptions(text=str(corpus), context=899))


@pytest.fixture(scope="module")
def alphabet() -> Transformer:
    """A model that has learnt `abcdefgh` again and again."""
    torch.manual_seed(0)
    model = Transformer(16, 256, TINY)
    text = torch.tensor(list(b"abcdefgh" * 12))
    windows = text.unfold(0, 17, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(windows[:, :-1]), windows[:, 1:]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


@pytest.mark.long
def test_what_was_learnt_is_written_also_after_a_prompt_longer_than_the_context(alphabet: Transformer) -> None:
    assert generate_text(alphabet, "abc", length=9, temperature=0) == "defghabcd"
    assert generate_text(alphabet, "abcdefgh" * 10, length=9, temperature=0) == "abcdefgha"


def test_a_text_follows_from_its_seed_and_wanders_with_the_temperature(alphabet: Transformer) -> None:
    first, again, other = (generate_text(alphabet, "a", length=40, temperature=5, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert generate_text(alphabet, "a", length=40, temperature=0.01, seed=1) == ("bcdefgha" * 5)


def test_prompts_may_be_empty_or_have_characters_that_were_never_learnt(alphabet: Transformer) -> None:
    for prompt in ("", "€ß\udcff"):
        assert len(generate_text(alphabet, prompt, length=5, temperature=0)) == 5
    assert generate_text(alphabet, "a", length=0) == ""


def test_a_model_is_known_from_its_tensors_and_other_models_are_refused(alphabet: Transformer) -> None:
    found = transformer_of(alphabet.state_dict(), "the file")
    inputs = torch.tensor([list(b"abcdefgh")])
    assert torch.equal(found(inputs), alphabet.eval()(inputs))
    tensors = alphabet.state_dict()
    for damaged in (
        torch.nn.Linear(3, 2).state_dict(),
        {name: value for name, value in tensors.items() if name != "heads"},
        tensors | {"heads": torch.ones(3)},
        tensors | {"norm.weight": torch.ones(3)},
        tensors | {"layers.x": torch.ones(3)},
    ):
        with pytest.raises(TaskError, match=r"the file does not hold the model transformer; give a model"):
            transformer_of(damaged, "the file")
