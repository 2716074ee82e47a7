"""What an answer costs: processor seconds and peak memory of eight questions to `course plan`, beside other planners.

The others come from PyPI into an environment of their own: `python -m venv PEERS`, `PEERS/bin/pip install fitcheck-llm
torch-preflight torch-kitsune`, then `python -m benchmarks.plan PEERS`. What one does not take, or asks the Hub for, ends with an
exit code and no answer.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

FILES = {
    "config.json": """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
        "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}""",
    "sft.yaml": """model_name_or_path: gpt2-small
per_device_train_batch_size: 2
max_length: 512
""",
    "model.py": """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))

    def forward(self, inputs):
        return self.layers(inputs).sum()


def batch(b, s):
    return torch.zeros(b, 512)
""",
}
QUESTIONS = {
    "a named model": "llama-2-7b --memory 24GB",
    "the same, asked again": "llama-2-7b --memory 24GB",
    "a large named model in bfloat16": "llama-3.1-70b --memory 80GB --precision bf16 --sequence 2048",
    "QLoRA of a named model": "llama-2-7b --memory 24GB --lora 16 --quantized nf4 --precision autocast",
    "a config.json": "config.json --memory 24GB",
    "a file of TRL": "sft.yaml --memory 24GB",
    "a launch line": "--memory 24GB -- trl sft --config sft.yaml",
    "a module of one's own": "model.py:Net --memory 24GB --loop own",
}
"""To `course plan`, in this order and with an empty store."""
OTHERS = {
    "a named model": {
        "fitcheck": "NousResearch/Llama-2-7b-hf --no-lora --precision fp32",
        "torch-preflight": "estimate --model llama-2-7b --batch-size 8 --seq-len 128 --gpu-memory 24GiB",
    },
    "QLoRA of a named model": {
        "fitcheck": "NousResearch/Llama-2-7b-hf --qlora",
        "kitsune": "lora --hf NousResearch/Llama-2-7b-hf --qlora",
    },
    "a module of one's own": {"kitsune": "predict model.py:Net -s 512 -b 8"},
}


def cost(command: list[str], folder: str) -> tuple[float, float, int]:
    """Processor seconds, MiB at the peak, and the exit code of a process of its own."""
    threads = {"OMP_NUM_THREADS": "1", "COURSE_HOME": f"{folder}/home", "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        command, cwd=folder, env=os.environ | threads, capture_output=True, timeout=1800, check=False
    )
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**10, process.returncode


def main() -> None:
    """Ask all of them, each in a process of its own, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="?", type=Path, help="the environment that has the others")
    peers = parser.parse_args().peers
    print(f"{'question':32s} {'asked of':16s} {'processor s':>11s} {'MiB':>6s}  exit code")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        for question, argv in QUESTIONS.items():
            commands = {"course plan": [sys.executable, "-m", "course_utils.cli", "plan", *argv.split()]}
            if peers:
                others = OTHERS.get(question, {}).items()
                commands |= {other: [str(peers.resolve() / "bin" / other), *flags.split()] for other, flags in others}
            for name, command in commands.items():
                # What children used is summed up by process, so each command has a parent of its own.
                with get_context("spawn").Pool(1) as pool:
                    seconds, peak, code = pool.apply(cost, (command, folder))
                print(f"{question:32s} {name:16s} {seconds:11.1f} {peak:6.0f}  {code}", flush=True)


if __name__ == "__main__":
    main()
