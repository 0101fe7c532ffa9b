"""Time whole models of transformers, forward and as a training step, with PyTorch's attention and with redblue's.

Models have random weights and the shapes of published models; some have fewer layers, as their docstrings say. The peer
is the attention that transformers chooses by default. redblue is called in two ways ("doors"):
attn_implementation="redblue", and `rb.sdpa()` around the unchanged model. Before a model is timed, outputs and
gradients are compared with transformers' "eager" attention in float64. The file is written after every model; rows that
are not measured again are kept, so that a run can be split.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from torch.utils.flop_counter import FlopCounterMode  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.gate import MAX_OURS, relative_errors, within
from benchmarks.common.machine import facts_of_run
from benchmarks.common.options import add_rounds, chosen, parser_of
from benchmarks.common.places import RESULTS
from benchmarks.common.results import Figure, Limit, Row, merged, read, write
from benchmarks.common.timing import MAX_SECONDS, MIN_ROUNDS, THREADS, race, rate, ratio, shown_ratio
from benchmarks.cpu.calls import short_name
from redblue.integrations.transformers import register

KEPT = RESULTS / "whole_models.json"
DTYPES = (torch.float32, torch.bfloat16)
PEER, ADAPTER, OVERRIDE = "PyTorch", 'attn_implementation="redblue"', "rb.sdpa()"
DIRECTIONS = ("forward", "training")
CHECKED = 640  # tokens of a sequence; longer than the windows
ATTENTION_PRODUCTS = ("bmm", "baddbmm")  # eager attention multiplies batches of matrices; linear layers do not


class Case(NamedTuple):
    """A model and its inputs. model: makes it with a seed set. inputs: makes the keyword arguments of its call."""

    model: Callable[[], Any]
    inputs: Callable[[], dict[str, torch.Tensor]]


def tokens(batch: int, n: int, vocabulary: int = 1000) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, n), generator=torch.Generator().manual_seed(1))


def bert() -> Any:
    """BERT base, 3 of its 12 layers."""
    return transformers.BertModel(transformers.BertConfig(num_hidden_layers=3))


def bert_inputs() -> dict[str, torch.Tensor]:
    """Eight sentences of 64 to 256 tokens, padded to the longest."""
    lengths = torch.tensor([256, 64, 230, 100, 128, 90, 200, 160])
    return {"input_ids": tokens(8, 256), "attention_mask": (torch.arange(256) < lengths[:, None]).long()}


def gpt2() -> Any:
    """GPT-2 small, 3 of its 12 layers, without its output head."""
    return transformers.GPT2Model(transformers.GPT2Config(n_layer=3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def llama() -> Any:
    """Llama's architecture with 16 heads of 64 on 4 key heads, 2 layers."""
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=2,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=8192,
    )
    return transformers.LlamaModel(config)


def packed_inputs() -> dict[str, torch.Tensor]:
    """Sixteen documents of 100 to 412 tokens in one row of 4096, separated by their positions."""
    lengths = [412, 100, 300, 256, 180, 332, 128, 384, 220, 292, 256, 256, 160, 352, 200, 268]
    return {"input_ids": tokens(1, 4096), "position_ids": torch.cat([torch.arange(n) for n in lengths])[None]}


def vit() -> Any:
    """ViT-B/16 at 224 pixels, 3 of its 12 layers."""
    return transformers.ViTModel(transformers.ViTConfig(num_hidden_layers=3), add_pooling_layer=False)


def pixels() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(1))}


def whisper() -> Any:
    """The encoder of Whisper base, 3 of its 6 layers."""
    config = transformers.WhisperConfig(
        d_model=512,
        encoder_layers=3,
        encoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_layers=1,
        decoder_attention_heads=8,
    )
    return transformers.WhisperModel(config).encoder


def sound() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(1))}


def t5() -> Any:
    """T5 small, 2 of its 6 layers on both sides; its relative position bias has a gradient."""
    return transformers.T5Model(transformers.T5Config(num_layers=2, dropout_rate=0.0))


def gemma2() -> Any:
    """Gemma 2's architecture: softcap 50, 8 heads of 256 on 4 key heads, a window of 512 in one of 2 layers."""
    config = transformers.Gemma2Config(
        vocab_size=8192,
        hidden_size=1152,
        intermediate_size=4608,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        sliding_window=512,
    )
    return transformers.Gemma2Model(config)


CASES = {
    "BERT base, b 8, 64 to 256 tokens, padded": Case(bert, bert_inputs),
    "GPT-2 small, n 1024": Case(gpt2, lambda: {"input_ids": tokens(1, 1024)}),
    "Llama-shaped, GQA 16/4, n 2048": Case(llama, lambda: {"input_ids": tokens(1, 2048)}),
    "ViT-B/16, b 8": Case(vit, pixels),
    "Whisper base, encoder": Case(whisper, sound),
    "T5 small, b 4, n 512": Case(t5, lambda: {"input_ids": tokens(4, 512), "decoder_input_ids": tokens(4, 128)}),
    "Gemma-2-shaped, n 2048": Case(gemma2, lambda: {"input_ids": tokens(1, 2048)}),
    "Llama-shaped, 16 packed documents, n 4096": Case(llama, packed_inputs),
}


def made(case: Case, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """The model in evaluation mode, and its inputs, in one number type."""
    torch.manual_seed(0)
    model = case.model().eval().to(dtype)
    inputs: dict[str, Any] = {name: x.to(dtype) if x.is_floating_point() else x for name, x in case.inputs().items()}
    return model, inputs | ({"use_cache": False} if getattr(model.config, "use_cache", False) else {})


def loss_of(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """A number on which every attended output depends."""
    out = model(**inputs).last_hidden_state
    mask = inputs.get("attention_mask")
    out = out if mask is None else out * mask[..., None].to(out.dtype)
    weights = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
    return (out * weights).float().pow(2).mean() if out.dtype != torch.float64 else (out * weights).pow(2).mean()


def step(model: Any, inputs: dict[str, torch.Tensor]) -> None:
    """Forward and backward through the whole model, without the optimizer, which is the same for all."""
    model.zero_grad(set_to_none=True)
    loss_of(model, inputs).backward()


@torch.no_grad()
def forward(model: Any, inputs: dict[str, torch.Tensor]) -> None:
    model(**inputs)


@contextlib.contextmanager
def through(door: str, model: Any, default: str) -> Iterator[None]:
    """A context in which the model uses the attention of one door."""
    model.set_attn_implementation("redblue" if door == ADAPTER else default)
    with rb.sdpa() if door == OVERRIDE else contextlib.nullcontext():
        yield


def results(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The loss and the gradients of the largest parameters that have one."""
    step(model, inputs)
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    named.sort(key=lambda pair: (-pair[1].numel(), pair[0]))
    with torch.no_grad():
        loss = loss_of(model, inputs)
    return [loss, *(gradient.clone() for _, gradient in named[:8])]


def shortened(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with at most CHECKED tokens: eager attention in float64 keeps all scores of all layers."""
    return {
        name: x[:, :CHECKED] if torch.is_tensor(x) and not x.is_floating_point() else x for name, x in inputs.items()
    }


def check(title: str, model: Any, inputs: dict[str, torch.Tensor], default: str, doors: list[str]) -> None:
    """Compare the doors with eager attention in float64. Raises SystemExit if redblue's errors exceed the peer's."""
    exact_model = copy.deepcopy(model).double()
    exact_model.set_attn_implementation("eager")
    doubled = {k: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for k, x in inputs.items()}
    exact = results(exact_model, doubled)
    errors = {}
    for door in doors:
        with through(door, model, default):
            errors[door] = relative_errors(results(model, inputs), exact)
    floor = 1e-6 if next(model.parameters()).dtype == torch.float32 else 1e-2
    allowed = [max(error, floor) for error in errors[PEER]]
    for door in doors:
        if not within(errors[door], allowed, MAX_OURS):
            raise SystemExit(f"{title}: {door} is wrong: errors {errors[door]}, {PEER}'s {errors[PEER]}")


def attention_share(model: Any, inputs: dict[str, torch.Tensor]) -> float:
    """The share of attention in the FLOPs of the model's products, including scores of masked pairs."""
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    counts = {str(op).split(".")[-1]: flops for op, flops in counter.get_flop_counts()["Global"].items()}
    return sum(counts.get(op, 0) for op in ATTENTION_PRODUCTS) / sum(counts.values())


def default_implementation(model: Any, inputs: dict[str, torch.Tensor]) -> str:
    """The attention that transformers chooses; "eager" if its choice refuses the model."""
    default = model.config._attn_implementation
    try:
        forward(model, inputs)
    except (NotImplementedError, ValueError):
        return "eager"
    return default


RUNS: dict[str, Callable[..., None]] = dict(zip(DIRECTIONS, (forward, step), strict=True))


def named(dtype: torch.dtype, direction: str) -> str:
    """The name of a measure, such as "fp32 forward"."""
    return f"{short_name(dtype)} {direction}"


def measure(title: str, dtype: torch.dtype, directions: list[str], rounds: int, seconds: float) -> list[Row]:
    """One row per direction: the speed of the model through each door over its speed with PyTorch's attention."""
    model, inputs = made(CASES[title], dtype)
    default = default_implementation(model, inputs)
    doors = [PEER, ADAPTER, *([OVERRIDE] if default == "sdpa" else [])]
    check(title, model, shortened(inputs), default, doors)
    share = attention_share(model, inputs)
    rows = []
    for direction in directions:
        run = RUNS[direction]

        def speed(door: str, run: Callable[..., None] = run) -> float:
            with through(door, model, default):
                return rate(partial(run, model, inputs), 1, 0)

        rates = race({door: partial(speed, door) for door in doors}, rounds, seconds)
        figures = [Figure(f"{door} over {default}", ratio(rates, door, PEER), Limit(1.0)) for door in doors[1:]]
        today = datetime.date.today().isoformat()
        parameters = {"default": default, "attention_share": share, "date": today}
        rows.append(Row(named(dtype, direction), title, figures, rates, unit="calls/s", parameters=parameters))
    return rows


def table(rows: list[Row]) -> str:
    """The rows as Markdown: the median of each ratio, and its 95 % interval if there are enough rounds."""
    lines = [
        f"| model | attention's share of the products | | transformers' choice | {ADAPTER} | {OVERRIDE} |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratios = [shown_ratio(row.rates, door, PEER) for door in row.rates if door != PEER] + ["-"]
        seconds = 1 / statistics.median(row.rates[PEER])
        share = row.parameters["attention_share"]
        chosen = f"{row.parameters['default']}, {seconds:.2f} s"
        lines.append(f"| {row.case} | {share:.0%} | {row.measure} | {chosen} | {ratios[0]} | {ratios[1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__)
    add_rounds(parser, 7)
    parser.add_argument(
        "--seconds",
        type=float,
        default=MAX_SECONDS,
        help=f"a row ends after this time, but not before round {MIN_ROUNDS}",
    )
    parser.add_argument("--only", default="", help="measure only models whose name contains this text")
    parser.add_argument(
        "--measure",
        default="",
        help='measure only types and directions that contain this text, such as "bf16 training"',
    )
    parser.add_argument("--json", type=Path, default=KEPT, help=f"file for the results ({KEPT.name})")
    options = parser.parse_args()
    titles = chosen(parser, options.only, CASES)
    if not any(options.measure in named(dtype, direction) for dtype in DTYPES for direction in DIRECTIONS):
        parser.error(f"--measure: {options.measure!r} is in no name such as {named(DTYPES[0], DIRECTIONS[0])!r}")
    torch.set_num_threads(THREADS)
    register()
    about = facts_of_run(torch=torch.__version__, transformers=transformers.__version__)
    rows: list[Row] = []
    for title in titles:
        for dtype in DTYPES:
            directions = [each for each in DIRECTIONS if options.measure in named(dtype, each)]
            for row in measure(title, dtype, directions, options.rounds, options.seconds) if directions else []:
                rows.append(row)
                cells = ", ".join(f"{figure.value.median:.2f} {figure.what}" for figure in row.figures)
                print(f"{title}, {row.measure}: {cells}", flush=True)
                write(options.json, about, merged(options.json, rows))
    print(table(read(options.json)[1]))


if __name__ == "__main__":
    main()
