"""GLUE's MRPC (do two sentences say the same?) from the Hub, or from a folder laid out like the Hub's repository."""

from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import pyarrow
import pyarrow.parquet
from datasets import ClassLabel, Dataset, DatasetDict

from course_utils.data.cache import folder
from course_utils.errors import CourseError

SPLITS = ("train", "validation", "test")
LABELS = ("not_equivalent", "equivalent")
SECONDS_TO_WAIT = 4
"""For the Hub's first answer; a machine without a network has its error at once or after this."""

_COLUMNS = ("sentence1", "sentence2", "label")


def load_mrpc(source: str | Path = "nyu-mll/glue") -> DatasetDict:
    """MRPC's splits with the features `sentence1`, `sentence2` and `label` (0 `not_equivalent`, 1 `equivalent`).

    `source` is a dataset repository on the Hub, downloaded once into the course's own folder, or a local folder with
    `mrpc/train-*.parquet` and so on (Dolan and Brockett, 2005; the layout is that of `nyu-mll/glue`). Raises
    `CourseError` where the Hub does not answer, or a file is missing or incomplete; a later call then tries afresh.
    """
    local = Path(source).expanduser()
    if local.is_dir():
        return _read(local, f"copy the mrpc folder into {local} again")
    files = _kept_copy(str(source)) or _download(str(source))
    return _read(files, "call load_mrpc() again to download it anew", discard=True)


def _kept_copy(source: str) -> Path | None:
    """The folder of an earlier, whole download; found without the network."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        kept = _hub().snapshot_download(source, repo_type="dataset", cache_dir=_hub_folder(), local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return Path(kept) if all(_files(Path(kept), split) for split in SPLITS) else None


def _download(source: str) -> Path:
    try:
        return _fetch(source)
    # The Hub's client raises its HTTP library's own errors, and that library has changed between its versions.
    except Exception as error:
        raise CourseError(
            f"{source} could not be had from the Hub ({type(error).__name__}); check the network and the name and try "
            "again, or use data.load_functions(), which needs no network."
        ) from error


def _fetch(source: str) -> Path:
    # Not snapshot_download: it asks for the list of files without any time limit.
    listed = _hub().dataset_info(source, timeout=SECONDS_TO_WAIT).siblings or []
    wanted = [file.rfilename for file in listed if any(fnmatch(file.rfilename, _pattern(split)) for split in SPLITS)]
    if not wanted:
        raise FileNotFoundError(f"{source} has no folder mrpc")
    with _no_progress_bars():
        fetched = [_fetch_file(source, file) for file in wanted]
    return fetched[0].parent.parent


def _fetch_file(source: str, file: str) -> Path:
    options = {"repo_type": "dataset", "cache_dir": _hub_folder(), "etag_timeout": SECONDS_TO_WAIT}
    return Path(_hub().hf_hub_download(source, file, **options))


def _hub():
    from huggingface_hub import HfApi

    return HfApi()


def _hub_folder() -> Path:
    return folder() / "hub"


@contextmanager
def _no_progress_bars():
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


def _pattern(split: str) -> str:
    return f"mrpc/{split}-*.parquet"


def _files(root: Path, split: str) -> list[Path]:
    return sorted(root.glob(_pattern(split)))


def _read(root: Path, remedy: str, discard: bool = False) -> DatasetDict:
    return DatasetDict({split: _read_split(root, split, remedy, discard) for split in SPLITS})


def _read_split(root: Path, split: str, remedy: str, discard: bool) -> Dataset:
    files = _files(root, split)
    if not files:
        raise CourseError(f"There is no file mrpc/{split}-*.parquet in {root}; {remedy}.")
    table = pyarrow.concat_tables([_read_file(file, remedy, discard) for file in files])
    return Dataset(table.replace_schema_metadata(None)).cast_column("label", ClassLabel(names=list(LABELS)))


def _read_file(file: Path, remedy: str, discard: bool) -> pyarrow.Table:
    try:
        return pyarrow.parquet.read_table(file, columns=list(_COLUMNS)).select(_COLUMNS)
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        if discard:
            # The Hub's cache links to a blob; while that is there, a download takes it for whole.
            file.resolve().unlink(missing_ok=True)
            file.unlink(missing_ok=True)
        raise CourseError(f"The file {file} is damaged or incomplete ({type(error).__name__}); {remedy}.") from error
