"""The tokenizer trained on the spot: what it learns, and what it refuses."""

import pytest
from datasets import Dataset, DatasetDict

from course_utils import data
from course_utils.data.tokenizer import SPECIAL
from course_utils.errors import CourseError


def test_special_tokens_come_first_and_are_named(tokenizer):
    assert tokenizer.convert_ids_to_tokens(range(5)) == list(SPECIAL.values())
    assert (tokenizer.pad_token, tokenizer.unk_token, tokenizer.mask_token) == ("[PAD]", "[UNK]", "[MASK]")
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id) == (2, 3)
    assert len(tokenizer) == 1_500


def test_single_and_pair_templates(tokenizer):
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("self", "return")["input_ids"])
    assert tokens == ["[CLS]", "self", "[SEP]", "return", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("self")["input_ids"]) == ["[CLS]", "self", "[SEP]"]


def test_names_are_cut_where_their_parts_meet(functions):
    tokenizer = data.tokenizer_for(functions, 4_000)
    assert tokenizer.tokenize("_BaseEventLoop.call_soon(self)") == ["Base", "Event", "Loop", "call", "soon", "self"]
    assert tokenizer.tokenize("def HTTPError") == ["def", "HTTP", "Error"]


def test_decoded_text_encodes_to_the_same_ids(functions, tokenizer):
    for text in functions["test"]["text"]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"] == ids


def test_the_training_split_has_no_unknown_token_and_the_others_next_to_none(functions, tokenizer):
    for name, split in functions.items():
        ids = [token for row in tokenizer(split["text"][:])["input_ids"] for token in row]
        assert ids.count(tokenizer.unk_token_id) <= (0 if name == "train" else 0.001 * len(ids))


def test_only_the_training_split_is_seen():
    splits = {"train": ["alpha beta alpha beta"], "validation": ["omega"]}
    dataset = DatasetDict({name: Dataset.from_dict({"text": texts}) for name, texts in splits.items()})
    tokenizer = data.tokenizer_for(dataset, 60)
    assert tokenizer.tokenize("alpha omega") == ["alpha", "[UNK]"]


def test_the_same_texts_train_the_same_tokenizer(functions):
    first, second = (data.tokenizer_for(functions, 800) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    assert first("def f(self): return 1")["input_ids"] == second("def f(self): return 1")["input_ids"]


def test_a_vocabulary_too_small_is_refused(functions):
    with pytest.raises(CourseError, match="A vocabulary of 20 cannot hold"):
        data.tokenizer_for(functions, 20)


def test_data_without_text_is_refused():
    with pytest.raises(CourseError, match="no text among label"):
        data.tokenizer_for(DatasetDict({"train": Dataset.from_dict({"label": [1]})}), 100)
