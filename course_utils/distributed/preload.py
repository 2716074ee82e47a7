"""Imports of the fork server before any rank exists, so that no rank has to make them; nothing else imports this."""

import logging

import torch._dynamo  # noqa: F401  three seconds, and the first optimizer that is made asks for it

import course_utils.distributed.worker  # noqa: F401

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # Trainer imports it, and it warns of missing kernels
