import hashlib
import json
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from huggingface_hub import HfApi

from course_utils import data
from course_utils.data import mrpc
from course_utils.errors import CourseError

README = """---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: mrpc/train-*
  - split: validation
    path: mrpc/validation-*
  - split: test
    path: mrpc/test-*
---
"""


@pytest.fixture
def repository(tmp_path):
    """A few pairs in the layout of the Hub's repository."""
    root = tmp_path / "glue"
    label = ClassLabel(names=["not_equivalent", "equivalent"])
    features = Features(
        {"sentence1": Value("string"), "sentence2": Value("string"), "label": label, "idx": Value("int32")}
    )
    for split, rows in {"train": 6, "validation": 3, "test": 4}.items():
        columns = {
            "sentence1": [f"The {split} sentence number {row} was said ." for row in range(rows)],
            "sentence2": [f"Number {row} of the {split} sentences was uttered ." for row in range(rows)],
            "label": [row % 2 for row in range(rows)], "idx": list(range(rows)),
        }  # fmt: skip
        (root / "mrpc").mkdir(parents=True, exist_ok=True)
        Dataset.from_dict(columns, features=features).to_parquet(root / "mrpc" / f"{split}-00000-of-00001.parquet")
    (root / "README.md").write_text(README)
    return root


class _Hub(BaseHTTPRequestHandler):
    """The two addresses of the Hub that the client needs: what a repository holds, and one of its files."""

    def do_HEAD(self):  # noqa: N802
        self._answer(with_body=False)

    def do_GET(self):  # noqa: N802
        self._answer(with_body=True)

    def _answer(self, with_body):
        root, prefix = self.server.root, "/datasets/nyu-mll/glue/resolve/main/"
        self.server.asked.append((self.command, self.path))
        if self.path == "/api/datasets/nyu-mll/glue":
            names = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.*"))
            self._send(
                json.dumps(
                    {"id": "nyu-mll/glue", "sha": "c" * 40, "siblings": [{"rfilename": name} for name in names]}
                ).encode()
            )
        elif self.path.startswith(prefix) and (root / self.path.removeprefix(prefix)).is_file():
            self._send((root / self.path.removeprefix(prefix)).read_bytes(), with_body)
        else:
            self.send_error(404)

    def _send(self, body, with_body=True):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.end_headers()
        if with_body:
            self.wfile.write(body[: self.server.most_bytes])

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch, repository):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        server.root, server.asked, server.most_bytes = repository, [], None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(mrpc, "_hub", lambda: HfApi(endpoint=f"http://127.0.0.1:{server.server_port}"))
        yield server
        server.shutdown()


def check(dataset):
    assert {name: len(split) for name, split in dataset.items()} == {"train": 6, "validation": 3, "test": 4}
    assert dataset["train"].column_names == ["sentence1", "sentence2", "label"]
    assert dataset["train"].features["label"].names == ["not_equivalent", "equivalent"]
    assert dataset["test"][3] == {
        "sentence1": "The test sentence number 3 was said .",
        "sentence2": "Number 3 of the test sentences was uttered .",
        "label": 1,
    }


def test_a_local_copy_in_the_layout_of_the_hub(repository):
    check(data.load_mrpc(repository))
    check(data.load_mrpc(str(repository)))


def test_pairs_go_the_whole_way_to_batches(repository):
    dataset = data.load_mrpc(repository)
    tokenizer = data.tokenizer_for(dataset, 120)
    batch = next(iter(data.batches(data.tokenize(dataset, tokenizer, 40)["train"], 4, seed=0)))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (4, 40)
    assert ((batch["input_ids"] == tokenizer.sep_token_id).sum(dim=1) == 2).all()


@pytest.mark.parametrize("keep", [0, 0.5, 0.99])
def test_an_incomplete_local_file_is_named(repository, keep):
    file = repository / "mrpc" / "validation-00000-of-00001.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(
        CourseError, match=r"validation-00000-of-00001.parquet is damaged or incomplete .* copy the mrpc folder"
    ):
        data.load_mrpc(repository)
    file.write_bytes(whole)
    check(data.load_mrpc(repository))


def test_a_missing_file_or_column_is_named(repository):
    file = repository / "mrpc" / "test-00000-of-00001.parquet"
    Dataset.from_dict({"other": [1]}).to_parquet(file)
    with pytest.raises(CourseError, match=r"test-00000-of-00001.parquet is damaged or incomplete"):
        data.load_mrpc(repository)
    file.unlink()
    with pytest.raises(CourseError, match=r"There is no file mrpc/test-\*.parquet"):
        data.load_mrpc(repository)


def test_the_hub_is_asked_once(hub):
    check(data.load_mrpc())
    check(data.load("mrpc"))
    assert [path for _, path in hub.asked].count("/api/datasets/nyu-mll/glue") == 1
    assert not any("README" in path for _, path in hub.asked)


def test_a_partial_download_is_completed(hub, tmp_path):
    check(data.load_mrpc())
    for file in (tmp_path / "home").rglob("test-*.parquet"):
        file.unlink()
    check(data.load_mrpc())


def test_an_interrupted_download_is_said_and_a_second_call_completes_it(hub):
    hub.most_bytes = 1_000
    with pytest.raises(CourseError, match="could not be had from the Hub .* try again"):
        data.load_mrpc()
    hub.most_bytes = None
    check(data.load_mrpc())


def test_a_repository_without_mrpc_is_said(hub, repository):
    shutil.rmtree(repository / "mrpc")
    with pytest.raises(CourseError, match="could not be had from the Hub"):
        data.load_mrpc()


def test_a_damaged_download_is_said_and_a_second_call_repairs_it(hub, tmp_path):
    data.load_mrpc()
    (file,) = (tmp_path / "home").rglob("train-*.parquet")
    file.resolve().write_bytes(file.read_bytes()[:100])
    with pytest.raises(CourseError, match=r"train-.*parquet is damaged or incomplete .*; call load_mrpc\(\) again"):
        data.load_mrpc()
    check(data.load_mrpc())


@pytest.mark.parametrize("source", ["nyu-mll/glue", "no/such/folder", "/not there"])
def test_without_the_hub_one_sentence_offers_the_bundled_data(monkeypatch, source):
    def refuse(*_, **__):
        raise OSError("the network is down")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(CourseError, match=r"could not be had from the Hub .* or use data.load_functions\(\)") as raised:
        data.load_mrpc(source)
    assert "\n" not in str(raised.value)


def test_a_hub_that_accepts_and_never_answers_is_given_up(monkeypatch):
    """The client's own limit is what ends this wait: the listener never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(mrpc, "_hub", lambda: HfApi(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        monkeypatch.setattr(mrpc, "SECONDS_TO_WAIT", 0.2)
        with pytest.raises(CourseError, match="could not be had from the Hub"):
            data.load_mrpc()
