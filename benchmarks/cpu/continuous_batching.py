"""Time generation with continuous batching in transformers: redblue compared with transformers' paged attention.

The peer is transformers' "sdpa" (once "paged|sdpa"): it gathers keys and values and builds a dense mask. Models have
random weights and the heads of published models, with fewer layers and a smaller vocabulary. Requests have contexts of
1k to 8k tokens; their prompts are computed once before the rounds and stay in the cache, so that a round times the
generated tokens. Before anything is timed, the generated tokens are checked with float64 and transformers' "eager"
attention. The file is written after every row.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]

from benchmarks.common.machine import facts_of_run
from benchmarks.common.options import add_rounds, at_least, chosen, parser_of
from benchmarks.common.places import RESULTS
from benchmarks.common.results import Figure, Limit, Row, write
from benchmarks.common.timing import THREADS, race, ratio, spread
from benchmarks.cpu.calls import short_name
from redblue.integrations.transformers import register

KEPT = RESULTS / "continuous_batching.json"
PEER, OURS = "sdpa", "redblue"  # names of attention in transformers
REQUESTS = (8, 16)
NEW_TOKENS, CHECKED_TOKENS = 24, 12  # per request, for timing and for the check
CHECKED_PROMPTS = (300, 17, 256, 600, 1, 90, 333, 513)
PAGE, BATCH_TOKENS = 256, 512
ALLOWED = 2.0  # times the peer's greatest loss, as for errors elsewhere
FLOOR = 1e-4  # of the loss, in units of the logits' standard deviation
SHAPES: dict[str, dict[str, Any]] = {
    "Llama 3.2 1B, GQA 32/8, d 64": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "Qwen3 0.6B, GQA 16/8, d 128": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}


def made(title: str, dtype: torch.dtype) -> dict[str, Any]:
    """The model for each contender, with shared weights: the attention is a field of the model."""
    config = transformers.LlamaConfig(
        **SHAPES[title], vocab_size=8192, num_hidden_layers=2, max_position_embeddings=16384, tie_word_embeddings=False
    )
    torch.manual_seed(0)
    ours: Any = transformers.LlamaForCausalLM(config).eval()
    ours = ours.to(dtype)
    weights = {id(x): x for x in itertools.chain(ours.parameters(), ours.buffers())}
    models = {OURS: ours, PEER: copy.deepcopy(ours, dict(weights))}
    for name, model in models.items():
        model.set_attn_implementation(name)
    return models


def prompts(lengths: list[int]) -> list[list[int]]:
    """Random tokens, different for each request: no prefix is shared."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(8192, (n,), generator=generator).tolist() for n in lengths]


def contexts(requests: int, most: int) -> list[int]:
    """Context lengths from an eighth of `most` to `most` tokens, equally often.

    All tokens except the last fill whole pages.
    """
    return [most // 8 // PAGE * PAGE * (1 + i % 8) + 1 for i in range(requests)]


def running(model: Any, inputs: list[list[int]]) -> Any:
    """A context with a running manager of continuous batching, whose cache holds these prompts."""
    pages = sum(-(-(len(prompt) + NEW_TOKENS) // PAGE) + 1 for prompt in inputs)
    settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    config = transformers.ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=pages, max_batch_tokens=BATCH_TOKENS, auto_switch_to_flash=False
    )
    return model.continuous_batching_context_manager(settings, True, None, config)


def generated(manager: Any, inputs: list[list[int]], count: int) -> list[Any]:
    """The results of the requests."""
    names = [manager.add_request(prompt, max_new_tokens=count, record_timestamps=True) for prompt in inputs]
    results: dict[str, Any] = {}
    while len(results) < len(names):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            results[result.request_id] = result
        if (result is not None and result.error) or not manager.is_running():
            raise SystemExit(f"a request failed: {result and result.error}")
    return [results[name] for name in names]


@torch.no_grad()
def loss(exact: Any, prompt: list[int], tokens: list[int]) -> float:
    """The largest distance of a token's exact logit below the greatest logit, in standard deviations of the logits.

    0 if every token is the greedy choice.
    """
    logits = exact(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return float(((logits.max(1).values - chosen) / logits.std(1)).max())


def check(title: str, models: dict[str, Any]) -> None:
    """Raise SystemExit if redblue's tokens lose more than sdpa's tokens, by eager attention in float64."""
    exact = copy.deepcopy(models[OURS]).double()
    exact.set_attn_implementation("eager")
    inputs = prompts(list(CHECKED_PROMPTS))
    losses = {}
    for name, model in models.items():
        with running(model, inputs) as manager:
            tokens = [result.generated_tokens for result in generated(manager, inputs, CHECKED_TOKENS)]
        losses[name] = max(loss(exact, *pair) for pair in zip(inputs, tokens, strict=True))
    if not losses[OURS] <= ALLOWED * max(losses[PEER], FLOOR):
        raise SystemExit(f"{title}: redblue's tokens are wrong: logits below the greatest by {losses}")


def speed(manager: Any, inputs: list[list[int]]) -> float:
    """Tokens per second, from the moment when every request has its first token."""
    times = [result.timestamps for result in generated(manager, inputs, NEW_TOKENS)]
    start = max(stamps[0] for stamps in times)
    later = [stamp for stamps in times for stamp in stamps if stamp > start]
    return len(later) / (max(later) - start)


def measure(title: str, dtype: torch.dtype, requests: int, most: int, rounds: int, models: dict[str, Any]) -> Row:
    """The tokens per second of redblue over those of transformers' sdpa."""
    inputs = prompts(contexts(requests, most))
    with contextlib.ExitStack() as stack:
        managers = {name: stack.enter_context(running(model, inputs)) for name, model in models.items()}
        for manager in managers.values():
            generated(manager, inputs, 2)  # the manager keeps pages only after a step in which their request continues
        rates = race({name: partial(speed, manager, inputs) for name, manager in managers.items()}, rounds)
    case = f"{title}, {requests} requests of {min(map(len, inputs)):,} to {max(map(len, inputs)):,} tokens"
    figure = Figure(f"{OURS} over {PEER}", ratio(rates, OURS, PEER), Limit(2.0))
    return Row(short_name(dtype), case, [figure], rates, unit="tokens/s")


def main() -> None:
    parser = parser_of(__doc__)
    add_rounds(parser, 3)
    parser.add_argument("--only", default="", help="measure only models whose name contains this text")
    most = "tokens of the longest prompt (%(default)s); the shortest has an eighth of them"
    parser.add_argument("--most", type=at_least(8 * PAGE), default=8192, help=most)
    parser.add_argument("--json", type=Path, default=KEPT, help=f"file for the results ({KEPT.name})")
    options = parser.parse_args()
    titles = chosen(parser, options.only, SHAPES)
    torch.set_num_threads(THREADS)
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    register()
    about = facts_of_run(torch=torch.__version__, transformers=transformers.__version__)
    rows: list[Row] = []
    for title in titles:
        for dtype in (torch.float32, torch.bfloat16):
            models = made(title, dtype)
            check(title, models)
            for requests in REQUESTS:
                rows.append(measure(title, dtype, requests, options.most, options.rounds, models))
                medians = {name: spread(rates).median for name, rates in rows[-1].rates.items()}
                shown = ", ".join(f"{name} {rate:.1f} tokens/s" for name, rate in medians.items())
                print(
                    f"{rows[-1].case}, {rows[-1].measure}: {rows[-1].figures[0].value.median:.2f} x ({shown})",
                    flush=True,
                )
                write(options.json, about, rows)


if __name__ == "__main__":
    main()
