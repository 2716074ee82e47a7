"""Several documents in one row of a batch, none of which sees another (Krell et al. 2021)."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from course_utils.techniques.chunked_loss import IGNORED


def first_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Rows of documents, by their numbers: the longest first, each into the first row with room, in tokens, for it."""
    rows, free = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        fits = [row for row, left in enumerate(free) if left >= lengths[number]]
        if not fits:
            rows.append([])
            free.append(room)
        row = fits[0] if fits else -1
        rows[row].append(number)
        free[row] -= lengths[number]
    return rows


def pack(documents: Sequence[Int[Tensor, " _"]], rows: Sequence[Sequence[int]], room: int) -> dict[str, Tensor]:
    """A batch for a language model: rows as of `lay_out`, and the mask of `may_see`."""
    columns, owner = lay_out(documents, rows, room)
    return {**columns, "attention_mask": may_see(owner)}


def lay_out(
    documents: Sequence[Int[Tensor, " _"]], rows: Sequence[Sequence[int]], room: int
) -> tuple[dict[str, Tensor], Int[Tensor, "rows room"]]:
    """Columns of rows with these documents, one behind the other, and padding up to `room`; and each place's document, by number.

    A label is the token at its own place, since Transformers shifts labels itself; a document's first token has none, as no token
    predicts it. All are (rows, room) in int64. Raises `RuntimeError` where the documents of a row are longer than `room`.
    """
    ids, positions = torch.zeros(2, len(rows), room, dtype=torch.int64)
    labels, owner = torch.full((2, len(rows), room), IGNORED)
    for row, numbers in enumerate(rows):
        end = 0
        for number in numbers:
            start, end = end, end + len(documents[number])
            ids[row, start:end] = documents[number]
            positions[row, start:end] = torch.arange(end - start)
            labels[row, start + 1 : end] = documents[number][1:]
            owner[row, start:end] = number
    return {"input_ids": ids, "position_ids": positions, "labels": labels}, owner


def may_see(owner: Int[Tensor, "rows room"]) -> Bool[Tensor, "rows 1 room room"]:
    """The mask of the keys that each query may see: those of its document, up to its own place."""
    same_document = owner[:, :, None] == owner[:, None, :]
    return same_document.tril()[:, None]
