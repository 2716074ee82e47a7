"""Several lanes at once, each a sandbox in which one submission is graded after the other."""

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Semaphore

from course_staff.grading.sandbox import Lane


class LanePool:
    """Lanes, and the threads that work in them: the same ones to the end, because a sandbox ends with the thread that started
    it."""

    def __init__(self, lanes: list[Lane]):
        self.lanes = lanes
        self._threads = ThreadPoolExecutor(len(lanes))
        self._free: queue.SimpleQueue = queue.SimpleQueue()
        for lane in lanes:
            self._free.put(lane)

    def try_out(self) -> None:
        """Start the first one; raises `CourseError` with the cause if that fails."""
        self._threads.submit(self.lanes[0].try_out).result()

    def take(
        self, students: Iterable[str], step: Callable[[str, Lane], None], at_once: int | None = None
    ) -> Iterator[str]:
        """Call `step` for each student, in `at_once` lanes at a time (by default all); yields students as they are finished."""
        turn = Semaphore(at_once or len(self.lanes))

        def take_in_turn(student: str) -> None:
            with turn:
                lane = self._free.get()
                try:
                    step(student, lane)
                finally:
                    lane.clear()
                    self._free.put(lane)

        pending = {self._threads.submit(take_in_turn, student): student for student in students}
        for future in as_completed(pending):
            future.result()
            yield pending[future]

    def close(self) -> None:
        """End what runs, and start nothing more."""
        for lane in self.lanes:
            lane.stop()
        self._threads.shutdown(cancel_futures=True)
        for lane in self.lanes:
            lane.close()
