"""Fine-tunes by QLoRA; `course plan` reads it and does not run it."""

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.2-1B",
    dtype=torch.bfloat16,
    quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
)
SFTTrainer(
    model=model,
    args=SFTConfig("runs", per_device_train_batch_size=4, max_length=1024),
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    peft_config=LoraConfig(r=16, target_modules=["q_proj", "v_proj"]),
).train()
