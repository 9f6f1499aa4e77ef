"""transformers, as anybody uses it: `from_pretrained`, then `generate` with a key-value cache, greedy, in a batch, by beams and sampled.

A Llama of 8B layer shape from a folder (`checkpoint.py`). The lines it prints, and the judging of them, are left to `stranger.py` and `run.py`.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import checkpoint
import stranger
import torch

LAYERS = 4
SHAPE = dict(hidden=4096, inner=14336, heads=32, key_value_heads=8, vocabulary=32000)
TINY = dict(hidden=256, inner=512, heads=8, key_value_heads=2, vocabulary=512)
NEW_TOKENS, TINY_NEW_TOKENS = 40, 6
LONG_PROMPT, TINY_LONG_PROMPT = 2048, 64


def load(options):
    """The model, where a program of one line would put it."""
    from transformers import AutoModelForCausalLM

    # It does not give the same bits twice for one query on a cache that grows, so that two native runs may differ.
    torch.backends.cuda.enable_cudnn_sdp(False)
    shape, name = (TINY, "llama_tiny") if options.tiny else (SHAPE, "llama_8b")
    folder = checkpoint.llama(name, layers=LAYERS, **shape)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=options.device)


def prompt(model, options, *lengths: int) -> dict[str, torch.Tensor]:
    """One prompt for each length, padded on the left."""
    longest, vocabulary = max(lengths), model.config.vocab_size
    tokens, mask = torch.zeros(2, len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        drawn = (torch.arange(length) * 7919 + row * 104729) % (vocabulary - 10) + 5
        tokens[row, longest - length :] = drawn
        mask[row, longest - length :] = 1
    return {"input_ids": tokens.to(options.device), "attention_mask": mask.to(options.device)}


def outputs(model, options):
    """Tokens of each call; of the greedy ones the logits of every step too."""

    def generate(inputs, new_tokens, **kind):
        # An end token would shorten the work by chance.
        torch.manual_seed(5)
        length = dict(max_new_tokens=new_tokens, min_new_tokens=new_tokens, pad_token_id=0)
        made = model.generate(**inputs, **length, **kind, output_logits=True, return_dict_in_generate=True)
        return made.sequences[:, inputs["input_ids"].shape[1] :].tolist(), made.logits

    new = TINY_NEW_TOKENS if options.tiny else NEW_TOKENS
    long = TINY_LONG_PROMPT if options.tiny else LONG_PROMPT
    yield generate(prompt(model, options, 16), new, do_sample=False)
    yield generate(prompt(model, options, 16, 9, 4), new, do_sample=False)
    yield generate(prompt(model, options, long), new // 2, do_sample=False)
    yield generate(prompt(model, options, 16), new // 2, do_sample=False, num_beams=3)[0]
    yield generate(prompt(model, options, 16), new // 2, do_sample=True, top_k=50, temperature=0.8)[0]


def main() -> None:
    options = stranger.arguments(__doc__)
    if stranger.missing(options.device, "transformers", "accelerate", "safetensors"):
        return
    import lab

    lab.settle()
    model = load(options)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    stranger.run_all(lambda: outputs(model, options), options.repeat, weights)
    stranger.finish(stranger.own_report())


if __name__ == "__main__":
    main()
