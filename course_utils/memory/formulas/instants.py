"""A closed form: which kinds of memory are in use at the instants where a training step can have its peak."""

Parts = dict[str, int]


def instants(*, parameters: int, state: int, activations: int, temporaries: int) -> dict[str, Parts]:
    """Bytes of each kind at three instants of a step; all arguments are bytes, gradients are as large as parameters.

    At the start of backward all activations are there and no gradient is; at its end it is the other way round; during
    the update the optimizer's temporaries join. The predicted peak is the largest sum, not the sum of all kinds.
    """
    always = {"parameters": parameters, "optimizer state": state}
    return {
        "start of backward": {**always, "activations": activations},
        "end of backward": {**always, "gradients": parameters},
        "update": {**always, "gradients": parameters, "temporaries": temporaries},
    }


def predicted_peak(by_instant: dict[str, Parts]) -> int:
    """Bytes at the fullest instant."""
    return max(sum(parts.values()) for parts in by_instant.values())
