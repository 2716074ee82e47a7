"""The words that a `Job` knows; in a file of their own, because the command's help must not wait for torch."""

STRATEGIES = (
    "none",
    "ddp",
    "zero1",
    "fsdp2",
    "hsdp",
    "deepspeed-1",
    "deepspeed-2",
    "deepspeed-3",
)
PRECISIONS = ("fp32", "fp64", "bf16", "autocast", "fp16")
LOGS = ("csv", "tensorboard")
SHARDED = ("fsdp2", "hsdp")
