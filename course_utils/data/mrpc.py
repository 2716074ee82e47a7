"""GLUE's MRPC (do two sentences say the same?) from the Hub, or from a folder laid out like the Hub's repository."""

from pathlib import Path

import pyarrow
from datasets import ClassLabel, Dataset, DatasetDict
from pyarrow import parquet

from course_utils.data import hub
from course_utils.errors import CourseError
from course_utils.settings import settings

_COLUMNS = ["sentence1", "sentence2", "label"]


def load_mrpc(source: str | Path = "nyu-mll/glue") -> DatasetDict:
    """MRPC's splits with the features `sentence1`, `sentence2` and `label` (0 `not_equivalent`, 1 `equivalent`).

    `source` is a dataset repository on the Hub, downloaded once into the course's own folder, or a local folder with
    `mrpc/train-*.parquet` and so on (Dolan and Brockett, 2005; the layout is that of `nyu-mll/glue`). Raises `CourseError` where
    the Hub has not been reached yet, or a file is missing or damaged.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        folder = _download(str(source))
    try:
        splits = {split: _read(folder, split) for split in ("train", "validation", "test")}
    except Exception as error:  # `pyarrow` raises kinds of its own
        raise CourseError(
            f"{folder} holds no whole copy of MRPC ({type(error).__name__}); remove that folder, then load it again."
        ) from error
    return DatasetDict(splits)


def _download(source: str) -> Path:
    from huggingface_hub import snapshot_download

    choice = {"repo_type": "dataset", "allow_patterns": "mrpc/*", "cache_dir": settings().home / "data" / "hub"}
    try:
        return Path(snapshot_download(source, **choice, local_files_only=not hub.answers()))
    except Exception as error:  # the Hub's client raises its HTTP library's own errors
        raise CourseError(
            f"{source} could not be had from the Hub ({type(error).__name__}); check the network and the name and try again, "
            "or use data.load_functions(), which needs no network."
        ) from error


def _read(folder: Path, split: str) -> Dataset:
    tables = [parquet.read_table(file, columns=_COLUMNS) for file in sorted(folder.glob(f"mrpc/{split}-*.parquet"))]
    rows = Dataset(pyarrow.concat_tables(tables).select(_COLUMNS).replace_schema_metadata(None))
    return rows.cast_column("label", ClassLabel(names=["not_equivalent", "equivalent"]))
