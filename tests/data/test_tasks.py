import json
import os
import subprocess
import sys
from collections import Counter
from itertools import chain

import pytest
from datasets import Dataset

from course_utils import data
from course_utils.data import corpus
from course_utils.errors import CourseError
from course_utils.settings import settings


def test_no_file_is_in_two_splits(functions):
    files = [set(split["file"]) for split in functions.values()]
    assert sum(map(len, files)) == len(set().union(*files))
    assert list(functions) == ["train", "validation", "test"]


def test_rows_are_the_corpus(functions, rows):
    names = functions["train"].features["label"].names
    served = [
        (names[row["label"]], row["file"], row["line"], row["name"], row["text"]) for row in chain(*functions.values())
    ]
    assert sorted(served) == sorted(map(tuple, rows))
    assert names == list(corpus.PACKAGES)


def test_the_first_rows_are_a_fair_sample(functions):
    train = functions["train"]
    first, whole = Counter(train["label"][:600]), Counter(train["label"])
    assert set(first) == set(whole)
    assert all(abs(first[label] / 600 - whole[label] / len(train)) < 0.05 for label in whole)


_DIGEST = """
import hashlib, json
from course_utils import data
functions = data.load_functions()
vocabularies = [data.tokenizer_for(functions, 1200, signs).get_vocab() for signs in (False, True)]
rows = [split.to_dict() for split in functions.values()]
print(hashlib.sha256(json.dumps([rows, vocabularies], sort_keys=True).encode()).hexdigest())
"""


def _digest_process(home, hash_seed):
    environment = {**os.environ, "COURSE_HOME": str(home), "PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": hash_seed}
    return subprocess.Popen([sys.executable, "-c", _DIGEST], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_at_once_build_the_same_data_and_tokenizers(tmp_path):
    """Two share a home, so they also write the same cache at the same time; one has a home of its own."""
    processes = [_digest_process(tmp_path / home, seed) for home, seed in (("one", "1"), ("one", "2"), ("two", "3"))]
    digests = {process.communicate(timeout=100)[0] for process in processes}
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
    kept = {home: sorted(path.name for path in (tmp_path / home / "data").iterdir()) for home in ("one", "two")}
    assert kept["one"] == kept["two"]
    assert len(kept["one"]) == 3
    for name in kept["one"]:
        assert (tmp_path / "one" / "data" / name).read_bytes() == (tmp_path / "two" / "data" / name).read_bytes()


def test_missing_packages_are_said_and_left_out(monkeypatch, tmp_path, caplog):
    for label in corpus.PACKAGES[:5]:
        (tmp_path / label).mkdir()
        for number in range(3):
            words = " + ".join(f"{label}_{number}_{word}" for word in "abcdefgh")
            (tmp_path / label / f"file{number}.py").write_text(f"def add{number}():\n    return {words}\n")
    monkeypatch.setattr(corpus, "standard_library", lambda: tmp_path)
    functions = data.load_functions()
    assert functions["train"].features["label"].names == list(corpus.PACKAGES[:5])
    assert [len(split) for split in functions.values()] == [5, 5, 5]
    assert "multiprocessing, unittest, urllib, wsgiref, xml" in caplog.text
    assert "| asyncio | 1 | 1 | 1 |" in data.card(functions)


def test_the_card_counts_what_is_there(functions):
    card = data.card(functions)
    label = functions["test"].features["label"].str2int("email")
    counts = [split["label"][:].count(label) for split in functions.values()]
    assert "| email | {} | {} | {} |".format(*counts) in card
    assert "| all | {} | {} | {} |".format(*map(len, functions.values())) in card
    assert f"{data.majority_share(functions['validation']):.1%}" in card
    assert "PSF License" in card
    assert sys.version.split()[0] in card
    assert functions["train"].info.description.splitlines()[0] in card


def test_majority_share_by_hand():
    assert data.majority_share(Dataset.from_dict({"label": [2, 0, 2, 1, 2]})) == 0.6
    with pytest.raises(CourseError, match="at least one row"):
        data.majority_share(Dataset.from_dict({"label": []}))


@pytest.mark.usefixtures("kept_corpus")
def test_load_names_its_choices():
    with pytest.raises(CourseError, match="'imdb'; choose one of functions, mrpc"):
        data.load("imdb")
    assert len(data.load("functions")["train"]) > 1_000


@pytest.mark.usefixtures("kept_corpus")
@pytest.mark.parametrize("sequence", [16, 100])
def test_blocks_are_the_token_stream_cut(functions, tokenizers, sequence):
    tokenizer = tokenizers[True]
    blocks = data.load_language(tokenizer, sequence)
    for name, split in blocks.items():
        ordered = sorted(functions[name], key=lambda row: (row["file"], row["line"]))
        ids = tokenizer([row["text"] for row in ordered], add_special_tokens=False)["input_ids"]
        stream = [token for row in ids for token in (*row, tokenizer.sep_token_id)]
        joined = list(chain.from_iterable(split["input_ids"]))
        assert joined == stream[: len(joined)]
        assert 0 <= len(stream) - len(joined) < sequence
        assert {len(block) for block in split["input_ids"]} == {sequence}
        assert split["labels"][:] == split["input_ids"][:]
        assert tokenizer.pad_token_id not in joined


@pytest.mark.usefixtures("kept_corpus")
def test_blocks_longer_than_a_split_are_refused(tokenizers):
    with pytest.raises(CourseError, match="has no block of 9000000; ask for a shorter sequence"):
        data.load_language(tokenizers[False], 9_000_000)


def test_nothing_is_written_outside_the_home(functions, tokenizers, tmp_path):
    data.load_functions()
    data.tokenize(functions, tokenizers[False], 16)
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert [path.parent for path in kept] == [settings().home / "data"]
    assert json.loads(kept[0].read_text().partition("\n")[2]).keys() == set(functions)
    assert not any(split.cache_files for split in functions.values())
