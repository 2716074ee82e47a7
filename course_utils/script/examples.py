"""What `course train` trains on: rows of tokens that any rank can look up by their numbers, in an order that a seed decides."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from course_utils import data, models
from course_utils.data import hub
from course_utils.data.batching import EpochSampler
from course_utils.errors import CourseError
from course_utils.files import atomic_write
from course_utils.memory.step.losses import is_causal
from course_utils.memory.step.model import Source, source_of
from course_utils.script.job import Job
from course_utils.settings import settings, variables
from course_utils.techniques.chunked_loss import IGNORED
from course_utils.techniques.packing import first_fit, lay_out

PACKABLE_FAMILIES = ("llama", "gpt2", "gpt_neox", "gptj", "gpt_neo", "mistral", "qwen2", "qwen3", "gemma", "phi3")
"""Families that are known to separate documents at positions that restart; in others the documents of a row see each other."""
_EXAMPLES_VARIABLE = "COURSE_EXAMPLES"


@dataclass(frozen=True)
class Examples:
    """Rows by number: the `columns` of the model's batches, and for each row its `weights` in the loss and its `tokens`.

    `fixed` goes to the model with every batch; `key` tells these examples from others.
    """

    columns: dict[str, torch.Tensor]
    weights: torch.Tensor
    tokens: torch.Tensor
    fixed: dict
    key: str

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, rows: Sequence[int]) -> dict:
        """The batch of these rows."""
        return {name: column[rows] for name, column in self.columns.items()} | self.fixed

    def hand_over(self, job: Job) -> dict[str, str]:
        """Write these into the folder of `job`; returns the variables by which `load_examples` finds them in other processes."""
        path = job.out / f"examples-{_key_of(job)}.pt"
        with atomic_write(path) as partial:
            torch.save(vars(self), partial)
        return {_EXAMPLES_VARIABLE: str(path.absolute())}


class Order:
    """The rows of each update, counted from 0: whole batches of a new permutation every epoch, whose last rows are left out.

    Raises `CourseError` where there are fewer rows than a batch takes.
    """

    def __init__(self, rows: int, batch: int, seed: int):
        if rows < batch:
            raise CourseError(
                f"The data make {rows} examples, but a batch needs {batch}; use a smaller --batch or --sequence."
            )
        self.batch = batch
        self.batches = rows // batch
        self.sampler = EpochSampler(rows, seed)
        self.epoch = -1

    def __getitem__(self, step: int) -> list[int]:
        epoch, index = divmod(step, self.batches)
        if epoch != self.epoch:
            self.sampler.set_epoch(epoch)
            self.epoch = epoch
            self.order = list(self.sampler)
        return self.order[index * self.batch : (index + 1) * self.batch]


def load_examples(job: Job) -> tuple[Source, Examples]:
    """The model to be trained, and what it is trained on: as it was handed over to this process, or else prepared here."""
    source = _find_source(job)
    path = Path(variables(_EXAMPLES_VARIABLE).get(_EXAMPLES_VARIABLE, ""))
    if path.name == f"examples-{_key_of(job)}.pt":
        return source, Examples(**torch.load(path, mmap=True))  # ranks of one machine share this memory
    return source, _load_task(job, source) if job.data is None else _read_text(job, source)


def _key_of(job: Job) -> str:
    """A word that tells jobs apart which do not train on the same examples."""
    fields = (job.model, job.data, job.tokenizer, job.weights, job.sequence, job.packed)
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:16]


def _load_task(job: Job, source: Source) -> Examples:
    """The course's own task at the settings' scale: which package does a function come from?"""
    functions = data.load_functions()
    functions["train"] = functions["train"].select(range(min(settings().scale.train_rows, len(functions["train"]))))
    split = data.tokenize(functions, data.tokenizer_for(functions, source.config.vocab_size), job.sequence)["train"]
    columns = data.batches(split, 1).dataset.datasets
    weights = torch.ones(len(split))
    return Examples(columns, weights, columns["attention_mask"].sum(1), {}, "the course's own task")


def _find_source(job: Job) -> Source:
    if job.model:
        source = source_of(job.model)
    else:
        labels = data.load_functions()["train"].features["label"].num_classes
        source = source_of(models.configuration("distilbert", labels=labels))
    model_class = models.building.class_of(source.config)
    if job.model and not is_causal(model_class):
        raise CourseError(
            f"{job.model} is not a causal language model ({model_class.__name__}); use GPT-2 or Llama, for example."
        )
    if job.packed and source.config.model_type not in PACKABLE_FAMILIES:
        raise CourseError(
            f"Documents in one row of {source.config.model_type} see each other; leave --packed out, or take one of "
            f"{', '.join(PACKABLE_FAMILIES)}."
        )
    positions = getattr(source.config, "max_position_embeddings", None) or job.sequence
    if job.sequence > positions:
        raise CourseError(
            f"{job.model or 'The model'} has {positions} positions, but --sequence is {job.sequence}; shorten it."
        )
    return source


def _read_text(job: Job, source: Source) -> Examples:
    documents, key = _read_documents(job.data)
    encode, vocabulary = _load_tokenizer(tokenizer_of(job))
    if vocabulary > source.config.vocab_size:
        raise CourseError(
            f"The tokenizer has {vocabulary} entries, but {job.model} only {source.config.vocab_size}; give another --tokenizer."
        )
    tokens = [torch.tensor(ids, dtype=torch.int64) for ids in map(encode, documents) if ids]
    if not tokens:
        raise CourseError(f"The tokenizer finds no tokens in {job.data}; give another --tokenizer or text.")
    if job.packed:
        columns, real = _pack(tokens, job.sequence)
    else:  # one document behind the other; what does not fill a row is left out
        all_tokens = torch.cat(tokens)
        rows = all_tokens[: len(all_tokens) // job.sequence * job.sequence].view(-1, job.sequence)
        columns = {"input_ids": rows, "labels": rows}
        real = torch.full((len(rows),), job.sequence)
    weights = (columns["labels"][:, 1:] != IGNORED).sum(1).float()
    return Examples(columns, weights, real, {"use_cache": False}, key)


def tokenizer_of(job: Job) -> str | Path:
    """The tokenizer's name or folder: the job's, that of the weights, that beside the model, or else "bytes"."""
    return job.tokenizer or job.weights or models.tokenizer_beside(job.model) or "bytes"


def _read_documents(path: Path) -> tuple[list[str], str]:
    """Texts, and what tells this file from others: of `.jsonl` the field `text`, of others what blank lines part."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CourseError(f"--data {path} cannot be read ({error.strerror}); give a file.") from error
    except UnicodeDecodeError as error:
        raise CourseError(f"{path} is not UTF-8 text ({error.reason}); convert it.") from error
    try:
        if path.suffix == ".jsonl":
            texts = [str.strip(json.loads(line)["text"], "\n") for line in content.splitlines() if line.strip()]
        else:
            texts = [part.strip("\n") for part in content.split("\n\n")]
    except (ValueError, KeyError, TypeError) as error:
        raise CourseError(
            f'{path} has a line that is no JSON object with a text as "text"; fix it, or give .txt.'
        ) from error
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise CourseError(f"There is no text in {path}.")
    return texts, hashlib.sha256(content.encode()).hexdigest()[:16]


def _load_tokenizer(name: str | Path) -> tuple[Callable[[str], list[int]], int]:
    """A function from a text to its tokens, and how many kinds there are."""
    if name == "bytes":
        return lambda text: list((text + "\n").encode()), 256
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=not hub.is_reachable())
    except Exception as error:  # Transformers raises many kinds
        raise CourseError(
            f"There is no tokenizer {name} that can be read here; name a folder or a model of the Hub that has one as "
            "--tokenizer, or --tokenizer bytes."
        ) from error
    # Transformers makes an empty tokenizer where there are no files.
    if tokenizer("a")["input_ids"] == tokenizer("b")["input_ids"]:
        raise CourseError(f"{name} has no tokenizer; give the one of its weights as --tokenizer, or --tokenizer bytes.")
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"] + end, len(tokenizer)


def _pack(documents: list[torch.Tensor], sequence: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Rows of whole documents that do not see each other: by positions that restart, as Transformers understands them.

    Longer documents are cut, and a piece of one token has none to tell. What is left of a row is one document more, which no
    loss counts; beside the rows, how many tokens of each are real.
    """
    pieces = [piece for document in documents for piece in document.split(sequence) if len(piece) > 1]
    rows = first_fit([len(piece) for piece in pieces], sequence)
    columns, owner = lay_out(pieces, rows, sequence)
    real = (owner != IGNORED).sum(1)
    for positions, end in zip(columns["position_ids"], real.tolist(), strict=True):
        positions[end:] = torch.arange(sequence - end)
    return columns, real
