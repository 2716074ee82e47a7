"""Chapter 11b: runs of its comparisons with a seed of their own, at the scale that they are stored at."""

from functools import cache

from benchmarks.claims import claim
from benchmarks.learning_rates import Task
from course_utils import memory
from course_utils.lessons import c11b_distillation as students
from course_utils.lessons import c11b_fewer_bits as lesson
from course_utils.settings import SCALES

_train_teacher = cache(students.train_teacher)


@cache
def _task() -> Task:
    return Task(SCALES["laptop"])


def _loss(name: str, seed: int) -> float:
    low = lesson.low_states(lesson.hidden_shapes(_task().model(0)))
    return _task().run(low[name].contender, seed)["loss"]


@cache
def _loss_alone(seed: int, epochs: int = 1) -> float:
    return students.held_out_token_loss(students.train_student(seed, epochs=epochs))


@cache
def _loss_with_teacher(seed: int, temperature: float) -> float:
    student = students.train_student(seed, students.loss_from_teacher(_train_teacher(), temperature))
    return students.held_out_token_loss(student)


@cache
def _loss_of_tuning(seed: int, name: str, **fields) -> float:
    """Held-out loss after fine-tuning, at the best rate of the stored sweep."""
    scale = SCALES["laptop"]
    recipe = memory.Recipe(batch=16, sequence=scale.sequence, **fields)
    return lesson.held_out_loss(lesson.fine_tune(_make_start(seed), recipe, scale, lesson.best_rate(name), seed), scale)


@cache
def _make_start(seed: int):
    return lesson.pretrain(SCALES["laptop"], seed)


@claim("11b-behind")
def adapters_end_above_adamw_where_it_learns(seed):
    """With some seeds AdamW lowers the held-out loss by nothing, and adapters end below it."""
    places = {"LoRA of rank 16": lesson.ADAPTER_PLACES["all-linear"], "LoRA on q v": lesson.ADAPTER_PLACES["q v"]}
    plain = _loss_of_tuning(seed, lesson.BASELINE)
    learns = plain < lesson.held_out_loss(_make_start(seed), SCALES["laptop"]) - 0.05
    ends = [_loss_of_tuning(seed, name, lora=16, lora_targets=layers) for name, layers in places.items()]
    return all(end > plain for end in ends) if learns else all(end < plain for end in ends)


@claim("11b-adapters")
def adapters_of_random_weights_end_above_galore(seed):
    return _loss("LoRA, bytes as GaLore's", seed) > _loss("GaLore, a quarter", seed)


@claim("11b-teacher")
def a_teacher_lowers_the_loss(seed):
    return all(_loss_with_teacher(seed, temperature) < _loss_alone(seed) - 0.05 for temperature in (1.0, 2.0))


@claim("11b-temperature")
def a_temperature_of_4_ends_above_2(seed):
    return _loss_with_teacher(seed, 4.0) > _loss_with_teacher(seed, 2.0)


@claim("11b-epoch")
def a_second_epoch_lowers_it_more(seed):
    return _loss_alone(seed, epochs=2) < min(_loss_with_teacher(seed, temperature) for temperature in (1.0, 2.0))


@claim("11b-again")
def only_small_adapters_are_lost_when_rounded_again(seed):
    """At the low rate as much of B A is off as there was; at the high rate less than half."""
    scale, start = SCALES["laptop"], _make_start(seed)
    four = memory.Recipe(batch=16, sequence=scale.sequence, lora=16, quantized="nf4")
    low, high = (
        lesson.merge_adapters(start, lesson.fine_tune(start, four, scale, rate, seed))[1] for rate in (3e-4, 3e-3)
    )
    return high < 0.5 < 0.8 < low
