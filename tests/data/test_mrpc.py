import huggingface_hub
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from course_utils import data
from course_utils.data import hub
from course_utils.errors import CourseError
from course_utils.settings import settings


@pytest.fixture
def repository(tmp_path):
    """A few pairs in the layout of the Hub's repository."""
    root = tmp_path / "glue"
    label = ClassLabel(names=["not_equivalent", "equivalent"])
    features = Features(
        {"sentence1": Value("string"), "sentence2": Value("string"), "label": label, "idx": Value("int32")}
    )
    (root / "mrpc").mkdir(parents=True)
    for split, rows in {"train": 6, "validation": 3, "test": 4}.items():
        columns = {
            "sentence1": [f"The {split} sentence number {row} was said ." for row in range(rows)],
            "sentence2": [f"Number {row} of the {split} sentences was uttered ." for row in range(rows)],
            "label": [row % 2 for row in range(rows)],
            "idx": list(range(rows)),
        }
        Dataset.from_dict(columns, features=features).to_parquet(root / "mrpc" / f"{split}-00000-of-00001.parquet")
    return root


def check(dataset):
    assert {name: len(split) for name, split in dataset.items()} == {"train": 6, "validation": 3, "test": 4}
    assert dataset["train"].column_names == ["sentence1", "sentence2", "label"]
    assert dataset["train"].features["label"].names == ["not_equivalent", "equivalent"]
    assert dataset["test"][3] == {
        "sentence1": "The test sentence number 3 was said .",
        "sentence2": "Number 3 of the test sentences was uttered .",
        "label": 1,
    }


def test_a_local_copy_in_the_layout_of_the_hub_goes_the_whole_way_to_batches(repository):
    check(data.load_mrpc(repository))
    dataset = data.load_mrpc(str(repository))
    tokenizer = data.tokenizer_for(dataset, 120)
    batch = next(iter(data.batches(data.tokenize(dataset, tokenizer, 40)["train"], 4, seed=0)))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (4, 40)
    assert ((batch["input_ids"] == tokenizer.sep_token_id).sum(dim=1) == 2).all()


@pytest.mark.parametrize("damage", ["missing", "cut", "of other columns"])
def test_a_copy_that_is_not_whole_is_named(repository, damage):
    file = repository / "mrpc" / "validation-00000-of-00001.parquet"
    whole = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif damage == "of other columns":
        Dataset.from_dict({"other": [1]}).to_parquet(file)
    with pytest.raises(CourseError, match="glue holds no whole copy of MRPC .*; remove that folder") as raised:
        data.load_mrpc(repository)
    assert "\n" not in str(raised.value)
    file.write_bytes(whole)
    check(data.load_mrpc(repository))


@pytest.mark.parametrize("reached", [True, False])
def test_the_hub_is_asked_for_the_folder_alone_and_only_where_it_answers(repository, monkeypatch, reached):
    asked = {}

    def download(source, **choice):
        asked.update(choice, source=source)
        return str(repository)

    monkeypatch.setattr(hub, "answers", lambda: reached)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    check(data.load_mrpc())
    assert (asked["source"], asked["allow_patterns"], asked["repo_type"]) == ("nyu-mll/glue", "mrpc/*", "dataset")
    assert asked["local_files_only"] is not reached
    assert settings().home in asked["cache_dir"].parents


@pytest.mark.parametrize("source", ["nyu-mll/glue", "no/such/folder", "/not there"])
def test_without_the_hub_one_sentence_offers_the_bundled_data(monkeypatch, source):
    monkeypatch.setattr(hub, "answers", lambda: False)
    with pytest.raises(CourseError, match=r"could not be had from the Hub .* or use data.load_functions\(\)") as raised:
        data.load_mrpc(source)
    assert "\n" not in str(raised.value)
