"""Two causal language models that are run for real in a second."""

from transformers import GPT2Config, LlamaConfig

LLAMA = LlamaConfig(
    vocab_size=5000, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
    max_position_embeddings=512, architectures=["LlamaForCausalLM"],
)  # fmt: skip
GPT2 = GPT2Config(
    vocab_size=5000, n_embd=128, n_layer=4, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0,
    architectures=["GPT2LMHeadModel"],
)  # fmt: skip
