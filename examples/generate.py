"""A transformers model that generates: `generate()` of the offloaded model, as of any other. Needs transformers.

    python examples/generate.py                                    # a small Llama with random weights
    python examples/generate.py --layers 16 --hidden 8192 --max-gpu-mem-fraction 0.1

Every token is a forward, so that learning is over within the first answer.

Prints on a GPU:
    phase after the first answer: INFERENCE
    the same tokens as the model gave before it was offloaded: True
    ring and residents within the budget: True

Prints without a GPU:
    phase after the first answer: INFERENCE
    the same tokens as the model gave before it was offloaded: True
"""

import argparse

import flextensor as ft
import torch

HAS_GPU = torch.cuda.is_available()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048 if HAS_GPU else 64)
    parser.add_argument("--max-gpu-mem-fraction", type=float, default=0.02)
    options = parser.parse_args()

    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=max(options.hidden // 128, 1),
        num_key_value_heads=max(options.hidden // 512, 1),
        vocab_size=4096,
    )
    device = "cuda" if HAS_GPU else "cpu"
    model = LlamaForCausalLM(shape).to(torch.bfloat16 if HAS_GPU else torch.float32).eval()
    prompt = torch.arange(1, 9, device=device).unsqueeze(0)
    how = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    before = model.to(device).generate(prompt, **how)
    # Its weights are on the GPU by now: they are taken over there.
    config = ft.OffloadConfig(
        enabled=HAS_GPU,
        include_patterns=["model.layers.*"],
        max_gpu_mem_fraction=options.max_gpu_mem_fraction,
        profiling_iters=5,
    )
    model = ft.offload(model, config)
    model.generate(prompt, **how)
    print(f"phase after the first answer: {ft.get_offload_manager().phase.name}")
    same = torch.equal(model.generate(prompt, **how), before)
    print(f"the same tokens as the model gave before it was offloaded: {same}")
    if HAS_GPU:
        budget = torch.cuda.mem_get_info()[1] * options.max_gpu_mem_fraction
        print(f"ring and residents within the budget: {ft.get_gpu_memory_usage().total_bytes <= budget}")
    ft.release()


if __name__ == "__main__":
    main()
