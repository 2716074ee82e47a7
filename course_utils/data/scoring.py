"""Accuracy and F1 of predictions."""

from collections.abc import Sequence

from course_utils.errors import CourseError


def metrics(labels: Sequence[int], predictions: Sequence[int], classes: int | None = None) -> dict[str, float]:
    """`{"accuracy": ..., "f1": ...}`, both in 0..1.

    With two `classes`, F1 is that of class 1; otherwise it is the mean of the F1 of every
    class that occurs among labels or predictions (macro F1). Without `classes`, two are assumed where only 0 and 1
    occur. An F1 without any positive is 0. Takes lists, arrays or tensors of one dimension; raises `CourseError` where
    they are empty or differ in length.
    """
    from sklearn.metrics import accuracy_score, f1_score

    truth, answers = [int(value) for value in labels], [int(value) for value in predictions]
    if not truth or len(truth) != len(answers):
        raise CourseError(
            f"There are {len(truth)} labels and {len(answers)} predictions; give one prediction for each label."
        )
    average = "binary" if classes == 2 or (classes is None and {*truth, *answers} <= {0, 1}) else "macro"
    return {
        "accuracy": float(accuracy_score(truth, answers)),
        "f1": float(f1_score(truth, answers, average=average, zero_division=0.0)),
    }
