"""Lengths of examples, from files that people have."""

from datasets import Dataset

from course_utils.memory.planning.reading.lengths import lengths_of


def test_lengths_come_from_what_people_have(tmp_path):
    (tmp_path / "lengths.txt").write_text("3\n17\n5\n")
    (tmp_path / "data.jsonl").write_text('{"input_ids": [1, 2, 3]}\n{"length": 17}\n\n{"length": 5}\n')
    Dataset.from_dict({"input_ids": [[1] * n for n in (3, 17, 5)]}).save_to_disk(tmp_path / "saved")
    for name in ("lengths.txt", "data.jsonl", "saved"):
        assert sorted(lengths_of(tmp_path / name)) == [3, 5, 17], name
