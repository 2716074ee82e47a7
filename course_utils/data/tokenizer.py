"""A WordPiece tokenizer trained on the spot, on the training split alone."""

from datasets import DatasetDict
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from course_utils.data.batching import texts_of
from course_utils.errors import CourseError

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}

_WORD_PATTERN = r"\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+|[\p{Lt}\p{Lm}\p{Lo}\p{M}]+|\p{N}+"


def tokenizer_for(dataset: DatasetDict, vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` entries for `dataset`, trained on its training split in about a second.

    Case is kept, and names are cut where their parts meet, at underscores and capitals: `_BaseEventLoop` is `Base`, `Event`,
    `Loop`. Punctuation and layout are left out: they would fill half of a short sequence and say next to nothing about what a
    function is for. The same texts and vocabulary give the same tokenizer, entry by entry. Raises `CourseError` where
    `vocabulary` has no room for the characters of the data.
    """
    texts = texts_of(dataset["train"])
    untrained = _tokenizer({})
    characters = sorted(
        {letter for text in texts for word, _ in untrained.pre_tokenizer.pre_tokenize_str(text) for letter in word}
    )
    fixed = [*SPECIAL.values(), *characters, *(f"##{character}" for character in characters)]
    if len(fixed) > vocabulary:
        raise CourseError(
            f"A vocabulary of {vocabulary} cannot hold the {len(fixed)} single characters; use at least {len(fixed)}."
        )
    # Left to itself the trainer numbers continuation pieces in the order of a randomly seeded hash map, and breaks ties
    # between merges by number: two runs then differ. Naming every character beforehand settles the numbers.
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=fixed, show_progress=False)
    untrained.train_from_iterator(texts, trainer)
    tokenizer = _tokenizer(dict(sorted(untrained.get_vocab().items(), key=lambda entry: entry[1])))
    marks = [(SPECIAL[name], tokenizer.token_to_id(SPECIAL[name])) for name in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    special = {f"{name}_token": token for name, token in SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def _tokenizer(entries: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocab=entries, unk_token=SPECIAL["unk"], max_input_chars_per_word=100))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD_PATTERN), behavior="removed", invert=True)
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer
