"""Many sets released at once, in a process per core; a question is not run again if its sources were released before."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from course_staff.notebooks.files import notebook_text, read_notebook
from course_staff.release.cache import Part, ReleaseCache, parts_of
from course_staff.release.release import check_facts, digest_of, exercise_notebook, file_names, json_text, set_entry
from course_staff.release.source import AuthoredQuestion, load_solutions


@lru_cache(maxsize=2)
def _load_once(path: Path) -> list[AuthoredQuestion]:
    return load_solutions(path)


def release_sets(
    paths: Sequence[Path], exercises: Path, sets: Path, store: ReleaseCache, jobs: int, on_part: Callable[[Part], None]
) -> Iterator[dict[Path, str]]:
    """The two files that each of the solutions is released as, in the folders `exercises` and `sets`, with their texts;
    writes none of them, runs every known mistake.

    `on_part(part)` is called for each part that had to be run; it is in the `store` by then, so that an interrupted run goes on
    from there. Raises `CourseError` if a question is not fit to be handed out.
    """
    parts = {path: parts_of(path) for path in paths}
    texts = {part: text for of_path in parts.values() for part in of_path if (text := store.find(part))}
    todo = [part for of_path in parts.values() for part in of_path if part not in texts]
    for path in dict.fromkeys(path for path, _ in todo):
        check_facts(_load_once(path))  # these fail at once
    with closing(release_parts(todo, jobs)) as released_parts:
        for part, released in released_parts:
            store.keep(part, released)
            on_part(part)
            texts[part] = released
    for path, (notebook, *questions) in parts.items():
        entries = [texts[question] for question in questions]
        set_text = json_text({"name": path.stem, "source": digest_of(path), "questions": entries})
        yield dict(zip(file_names(path, exercises, sets), (texts[notebook], set_text), strict=True))


def release_parts(parts: Sequence[Part], jobs: int) -> Iterator[tuple[Part, str | dict]]:
    """Each part with its text or entry as soon as that is there, computed by this many processes at once.

    Raises `CourseError` if a question is not fit to be handed out.
    """
    if min(jobs, len(parts)) <= 1:
        for part in parts:
            yield part, _release_part(part)
        return
    with ProcessPoolExecutor(min(jobs, len(parts)), get_context("spawn"), _take_one_core) as pool:
        # The last sets take longest, and nothing that is long should begin last.
        running = {pool.submit(_release_part, part): part for part in reversed(parts)}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _take_one_core() -> None:
    """Use one thread: as many threads in each process as there are cores would wait for each other."""
    import torch

    torch.set_num_threads(1)


def _release_part(part: Part) -> str | dict:
    from nbformat import from_dict

    path, name = part
    all_authored = _load_once(path)
    if name is None:
        return notebook_text(from_dict(exercise_notebook(read_notebook(path), all_authored)))
    return set_entry(next(authored for authored in all_authored if authored.question.id == name))
