"""Runs tiny random models in vLLM, and writes tokens and log-probabilities: generate.py FOLDER OUT MODEL...

It is a separate process because vLLM loads its plug-ins once per process.
"""

import gc
import json
import os
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # before vLLM is imported: the model runs in this process
os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other are slow beside other processes
os.environ["VLLM_NO_USAGE_STATS"] = os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch
import transformers
from tokenizers import Tokenizer, models
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.v1.attention.backends.registry import AttentionBackendEnum

TINY = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # large weights, so that wrong attention changes tokens
}
MODELS = {
    "grouped": ("Llama", TINY, {}),
    "bfloat16": ("Llama", TINY, {"dtype": "bfloat16"}),
    "window": ("Mistral", TINY | {"sliding_window": 24}, {"block_size": 16}),
    "softcap": ("Gemma2", TINY | {"sliding_window": 16, "head_dim": 64, "query_pre_attn_scalar": 16}, {}),
    "alibi": ("Bloom", {"vocab_size": 96, "hidden_size": 128, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}, {}),
}
ENCODER = {name: TINY[name] for name in TINY if name != "num_key_value_heads"}
PROMPTS = [[5], [7, 3, 90], list(range(40)), [11] * 33, [*range(40), 17, 18], [i * i % 91 + 3 for i in range(150)]]
GENERATED = SamplingParams(temperature=0, max_tokens=24, logprobs=3, ignore_eos=True, detokenize=False)


def saved(name, folder):
    """A random model on disk, with a tokenizer, which vLLM requires although prompts are token numbers."""
    kind, config, _ = MODELS.get(name, ("Bert", ENCODER, {}))
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}{'Model' if kind == 'Bert' else 'ForCausalLM'}")
    model(getattr(transformers, f"{kind}Config")(**config)).save_pretrained(folder / name)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(TINY["vocab_size"])}, "w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", sep_token="w1")
    tokenizer.save_pretrained(folder / name)
    return str(folder / name)


def ran(name, folder):
    """The results of a model: tokens and log-probabilities of each prompt, or an encoder's embeddings."""
    options = {"dtype": "float32"} | MODELS.get(name, ("", {}, {}))[2]
    options |= {"runner": "pooling"} if name == "encoder" else {}
    # Few tokens per step, so that long prompts are computed in chunks while other requests already generate.
    model = LLM(
        saved(name, folder),
        enforce_eager=True,
        max_model_len=256,
        kv_cache_memory_bytes=1 << 24,
        max_num_batched_tokens=256 if name == "encoder" else 64,
        max_num_seqs=4,
        **options,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    if name == "encoder":
        return [output.outputs.embedding for output in model.embed(prompts, use_tqdm=False)]
    results = []
    for output in model.generate(prompts, GENERATED, use_tqdm=False):
        likely = output.outputs[0].logprobs
        results.append(
            {
                "tokens": list(output.outputs[0].token_ids),
                "logprobs": [{token: p.logprob for token, p in step.items()} for step in likely],
            }
        )
    return results


if __name__ == "__main__":
    folder, out, *names = sys.argv[1:]
    results = {}
    for name in names:
        results[name] = ran(name, Path(folder))
        gc.collect()
        cleanup_dist_env_and_memory()
    results["backend"] = AttentionBackendEnum.CPU_ATTN.get_class().__module__
    Path(out).write_text(json.dumps(results))
