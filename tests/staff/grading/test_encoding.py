"""Values cross as they are; nothing else crosses, and bytes from a stranger never do more than fail."""

import contextlib
import json
import math
import pickle
import random
import struct

import pytest
import torch

from course_staff.grading.encoding import DEEPEST_MESSAGE, LONGEST_MESSAGE, EncodingError, dump, load
from course_utils.grading.values import same

VALUES = [
    None,
    True,
    -0.0,
    math.inf,
    1e-320,
    10**3000,
    "Zoë \n 🙂 \x00",
    [],
    {},
    [1, [2.5, [None]]],
    {"tensor": ["list", "dict"], "dict": {"a": 1}},
    torch.tensor(3.0),
    torch.zeros(0, 3),
    torch.tensor([True, False]),
    torch.tensor([math.nan, -math.inf], dtype=torch.float64),
    torch.arange(6).reshape(2, 3).t(),
    [torch.randn(2, 3).to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8)],
    torch.randn(4, dtype=torch.complex64).conj(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_as_they_were(value):
    back = load(dump({"v": value}))["v"]
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        value, back = [v.float() for v in value], [v.float() for v in back]
    assert same(value, back)


def test_nan_and_the_sign_of_zero_stay():
    assert math.isnan(load(dump(math.nan)))
    assert math.copysign(1, load(dump(-0.0))) == -1


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        {1: 2},
        (1, 2),
        {"f": print},
        1j,
        set(),
        type("Own", (int,), {})(3),
        type("Text", (str,), {})("x"),
        10**5000,
        "\ud800",
        nested(DEEPEST_MESSAGE + 2),
        nested(100_000),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.empty(LONGEST_MESSAGE // 8 + 1, dtype=torch.float64),
        "x" * (LONGEST_MESSAGE + 1),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_what_is_no_value_is_refused_in_a_sentence(value):
    with pytest.raises(EncodingError, match=r"\.$"):
        dump(value)


def message(tree, rest=b""):
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return struct.pack(">Q", len(text)) + text + rest


def tensor(dtype, shape, *extra):
    return {"tensor": [dtype, shape, *extra]}


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"short",
        pickle.dumps({"a": 1}),
        struct.pack(">Q", 2**63) + b"x",
        message(b"{"),
        message(b"[" * 100_000),
        message(b"[" * 30 + b"]" * 30),
        message(b"9" * 5000),
        message({"a": 1}),
        message({}),
        message({"dict": {}, "tensor": []}),
        message({"object": "os.system"}),
        message({"dict": [1, 2]}),
        message({"tensor": []}),
        message({"tensor": 3}),
        message(tensor("float32", [2]), b"1234"),
        message(tensor("float32", [1]), b"12345"),
        message(tensor("float32", [-1])),
        message(tensor("float32", [2**40]), b"1234"),
        message(tensor("float32", [2**40, 0])),
        message(tensor("float32", [10**3999] * 3000)),
        message(tensor("float32", 2), b"12345678"),
        message([tensor("bool", [0])] * 20_001),
        message([[]] * 200_001),
        message(tensor("qint8", [1]), b"1"),
        message(tensor("save", [1]), b"1"),
        message(tensor(["float32"], [1]), b"1234"),
        message(tensor("int64", [1], True), b"12345678"),
        message([], b"more"),
    ],
)
def test_bytes_that_are_no_values_are_refused(bad):
    with pytest.raises(EncodingError):
        load(bad)


def test_damaged_bytes_give_values_or_a_refusal_and_nothing_else():
    generator = random.Random(0)
    intact = dump({"a": [1, 2.5, "x"], "t": torch.arange(4.0), "b": [True, None]})
    for _ in range(3000):
        damaged = bytearray(intact)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        with contextlib.suppress(EncodingError):
            load(bytes(damaged))


def test_a_truth_value_is_one_whatever_its_byte():
    flags = load(message(tensor("bool", [3]), b"\x00\x01\xff"))
    assert flags.tolist() == [False, True, True]
    assert flags.sum() == 2
