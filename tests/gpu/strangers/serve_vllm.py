"""vLLM, as anybody uses it offline: `LLM(folder)` and `generate`, without graphs, greedy.

A Llama of 70B layer shape from a folder (`checkpoint.py`). By default the engine is a process of its own, as vLLM starts it; `--inline` keeps it in this one, where all prompts of
a batch are known before the first step, so that batches are the same in every run. The lines it prints, and the judging of them, are left to
`stranger.py` and `run.py`; the engine's process is asked for its report through `engine_report.py`.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
# An optional package that need not be there.
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

import json

import checkpoint
import stranger

LAYERS = 4
SHAPE = dict(hidden=8192, inner=28672, heads=64, key_value_heads=8, vocabulary=32000)
TINY = dict(hidden=256, inner=512, heads=8, key_value_heads=2, vocabulary=512)
MOST_TOKENS = 4096
# Of the GPU's memory: weights and cache of the native run.
MEMORY_SHARE = 0.2


def load(options, folder):
    """The engine, with its weights in place and its cache sized."""
    from vllm import LLM

    return LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        max_model_len=MOST_TOKENS,
        max_num_seqs=64,
        max_num_batched_tokens=MOST_TOKENS,
        gpu_memory_utilization=MEMORY_SHARE,
        enable_prefix_caching=False,
        enforce_eager=True,
        disable_log_stats=True,
        worker_extension_cls="engine_report.EngineReport",
    )


def outputs(llm, options):
    """Tokens of each call, and the log-probabilities of the likeliest ones at each step."""
    import torch
    from vllm import SamplingParams

    def generate(batch: int, length: int, new_tokens: int):
        prompts = [
            {"prompt_token_ids": [(7 * row + 13 * place) % 400 + 5 for place in range(length + row)]}
            for row in range(batch)
        ]
        greedy = SamplingParams(
            max_tokens=new_tokens,
            min_tokens=new_tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            logprobs=4,
        )
        made = [answer.outputs[0] for answer in llm.generate(prompts, greedy, use_tqdm=False)]
        places = [place for one in made for step in one.logprobs for _, place in sorted(step.items())]
        return [list(one.token_ids) for one in made], torch.tensor([place.logprob for place in places])

    # The first pass over the prompt and the single steps after it are what a plan is learnt from.
    yield generate(1, 16, 24)
    yield generate(1, 3000, 8)
    yield generate(1, 16, 24)
    if options.inline:
        yield generate(16, 24, 12)
        yield generate(1, 16, 12)


def main() -> None:
    options = stranger.arguments(
        __doc__, inline="the engine in this process, as VLLM_ENABLE_V1_MULTIPROCESSING=0 has it"
    )
    if options.inline:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # Looking for a GPU would start the driver here and have vLLM spawn its engine instead of forking it.
    if stranger.missing("cpu", "vllm"):
        return
    shape, name = (TINY, "llama_tiny") if options.tiny else (SHAPE, "llama_70b")
    folder = checkpoint.llama(name, layers=LAYERS, **shape)
    llm = load(options, folder)
    stranger.run_all(lambda: outputs(llm, options), options.repeat, checkpoint.weights_bytes(folder))
    reports = [json.loads(text) for text in llm.collective_rpc("report_of_this_process") if text]
    stranger.finish(reports[0] if reports else None)


if __name__ == "__main__":
    main()
