"""A WordPiece tokenizer trained on the spot, on the training split alone."""

from hashlib import sha256

import tokenizers
from datasets import DatasetDict
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from course_utils.data.cache import cached
from course_utils.errors import CourseError

VERSION = 1
"""Raise it with any change to the rules: trained tokenizers are kept by this number."""

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}

_WORDS = r"\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+|[\p{Lt}\p{Lm}\p{Lo}\p{M}]+|\p{N}+"
# The last space of an indentation is left out: the decoder puts one between any two tokens.
_SIGNS = r"\n *(?= )|\n|[^\s\p{L}\p{M}\p{N}]"


def tokenizer_for(dataset: DatasetDict, vocabulary: int, signs: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` entries for `dataset`, trained on its training split and kept on disk.

    Case is kept, and names are cut where their parts meet, at underscores and capitals: `_BaseEventLoop` is `Base`,
    `Event`, `Loop`. Without `signs`, punctuation and layout are left out: they would fill half of a short sequence and
    say next to nothing about what a function is for. With `signs`, each is a token, as is a line break with the
    indentation after it, so that text a language model writes has lines.
    The same texts and arguments give the same tokenizer, entry by entry. Raises `CourseError` where `vocabulary` has no
    room for the characters of the data.
    """
    texts = _texts(dataset)
    digest = sha256("\0".join(texts).encode()).hexdigest()
    parameters = {
        "version": VERSION,
        "library": tokenizers.__version__,
        "texts": digest,
        "vocabulary": vocabulary,
        "signs": signs,
    }
    entries = cached("tokenizer", parameters, lambda: _train(texts, vocabulary, signs))
    return _wrap(_tokenizer(entries, signs))


def _texts(dataset: DatasetDict) -> list[str]:
    train = dataset["train"]
    columns = [name for name in ("text", "sentence1", "sentence2") if name in train.column_names]
    if not columns:
        raise CourseError(
            f"There is no text or sentence1 among the columns {', '.join(train.column_names)}; load the data anew."
        )
    return [text for name in columns for text in train[name]]


def _train(texts: list[str], vocabulary: int, signs: bool) -> dict[str, int]:
    bare = _tokenizer({}, signs)
    characters = sorted(
        {character for text in texts for word, _ in bare.pre_tokenizer.pre_tokenize_str(text) for character in word}
    )
    fixed = [*SPECIAL.values(), *characters, *(f"##{character}" for character in characters)]
    if len(fixed) > vocabulary:
        raise CourseError(
            f"A vocabulary of {vocabulary} cannot hold the {len(fixed)} single characters; use at least {len(fixed)}."
        )
    # Left to itself the trainer numbers continuation pieces in the order of a randomly seeded hash map, and breaks ties
    # between merges by number: two runs then differ. Naming every character beforehand settles the numbers.
    bare.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=fixed, show_progress=False)
    )
    return dict(sorted(bare.get_vocab().items(), key=lambda entry: entry[1]))


def _tokenizer(entries: dict[str, int], signs: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocab=entries, unk_token=SPECIAL["unk"], max_input_chars_per_word=100))
    pattern = f"{_SIGNS}|{_WORDS}" if signs else _WORDS
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    named = [(SPECIAL[name], tokenizer.token_to_id(SPECIAL[name])) for name in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=named
    )
    special = {f"{name}_token": token for name, token in SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
