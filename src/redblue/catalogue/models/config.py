"""The fields of a config.json, under the many names that they go by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError
from redblue.base.integers import LARGEST
from redblue.problem import DIRECTIONS, Problem

# The names that one figure goes by; the first that a config.json gives counts.
NAMES = {
    "number of heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
    ),
    "number of KV heads": (
        "num_key_value_heads",
        "n_head_kv",
        "num_kv_heads",
        "kv_n_heads",
        "multi_query_group_num",
        "num_attention_groups",
        "num_query_groups",
    ),
    "head dimension": ("head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels", "d_kv"),
    "hidden size": ("hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
    "number of layers": (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "depth",
        "num_transformer_layers",
        "encoder_layers",
        "decoder_layers",
    ),
    "number of positions": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "model_max_length",
        "max_context_length",
        "max_target_positions",
    ),
    "sliding window": ("sliding_window", "window_size", "local_attention"),
}
MAY_BE_UNSET = {"head dimension", "number of positions", "sliding window", "max_window_layers"}
UNSET = (0, -1)  # what these may hold for "not given"

INNER = ("text_config", "llm_config", "language_config", "thinker_config")  # a multimodal model's language model
# What the inner fields may leave to the outer ones.
FROM_OUTER = ("architectures", "dtype", "quantization_config", "torch_dtype")
HEADS = {*NAMES["number of heads"], "attention_heads", "num_attention_heads_per_stage"}  # what says: a model of its own


@dataclass(frozen=True)
class Layers:
    """One distinct attention shape of a model.

    layers: how many layers have it. note: where it comes from, and caveats.
    """

    name: str
    layers: int
    problem: Problem
    note: str = ""


@dataclass(frozen=True)
class Config:
    """The fields of one config.json, where they are from (for messages), and what the caller asked for.

    n: tokens, None for the model's own number. notes: collects what the reader has to say.
    """

    fields: dict[str, Any]
    where: str
    notes: list[str]
    n: int | None = None
    batch: int = 1
    dtype: str = "float16"
    direction: str = "forward"

    @property
    def kind(self) -> str:
        """The class name (diffusers) or the model type (transformers)."""
        return str(self.fields.get("_class_name") or self.fields.get("model_type") or "")

    def find(self, figure: str) -> int | None:
        """The whole number that goes by one of the figure's names; None if it is not given."""
        for key in NAMES.get(figure, (figure,)):
            value = self.fields.get(key)
            if value is None or (figure in MAY_BE_UNSET and isinstance(value, int) and value in UNSET):
                continue
            return self.whole(key, value, " (0 or -1: none)" if figure in MAY_BE_UNSET else "")
        return None

    def need(self, figure: str) -> int:
        """The same, which must be given."""
        value = self.find(figure)
        if value is None:
            names = NAMES.get(figure, (figure,))
            given = [f"{key} = {self.fields[key]!r}" for key in names if self.fields.get(key) is not None]
            if given:
                raise self.error(f"{', '.join(given)} means that it has no {figure}, which its layers need: give one")
            raise self.missing(figure, names)
        return value

    def each(self, key: str, count: int, default: int | None = None) -> list[int]:
        """`count` whole numbers; a single one stands for all."""
        value = self.fields.get(key)
        value = default if value is None else value
        if value is None:
            raise self.missing(key, (key,))
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise self.error(f"{key} must have {count} entries, has {len(values)}")
        return [self.whole(key, item) for item in values]

    def several(self, key: str) -> list[Any]:
        """A list of at least one entry, which must be given."""
        value = self.fields.get(key)
        if value is None:
            raise self.missing(key, (key,))
        if not isinstance(value, list) or not value:
            raise self.error(f"{key} must be a list of at least one entry, got {value!r}")
        return value

    def flag(self, key: str) -> bool:
        return self.fields.get(key) is True

    def whole(self, key: str, value: Any, otherwise: str = "") -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{key} must be a whole number of at least 1{otherwise}, got {value!r}")
        if value > LARGEST:
            raise self.error(f"{key} must be at most {LARGEST:,} (2^60), got {value!r}: correct it")
        return value

    def error(self, text: str) -> RedblueError:
        return RedblueError(f"{self.where}: {text}")

    def missing(self, figure: str, names: tuple[str, ...]) -> RedblueError:
        return RedblueError(
            f"{self.where} has no {figure}: looked for {', '.join(names)}. Some files leave out what equals their"
            " library's default: add the field"
        )

    def given(self, fields: dict[str, Any]) -> Config:
        """The same with some fields replaced; None leaves a field as it is."""
        return replace(self, fields={**self.fields, **{k: v for k, v in fields.items() if v is not None}})

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def problem(self, n_q: int, n_k: int, d: int, *, copies: int = 1, **sizes: Any) -> Problem:
        """The problem in the dtype, direction and batch asked for; `copies` of it per sequence."""
        batch = self.batch * copies
        try:
            return Problem(n_q, n_k, d, batch=batch, dtype=self.dtype, direction=self.direction, **sizes)
        except RedblueError as error:
            if self.dtype in BYTES_PER_WORD and self.direction in DIRECTIONS:
                raise self.error(str(error)) from error
            raise  # not for anything in the config


def innermost(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of the language model inside a multimodal one; `attn_config` joins the level that it is in."""
    for key in INNER:
        inner = fields.get(key)
        if isinstance(inner, dict) and inner:
            return innermost({**inner, **{name: inner.get(name) or fields.get(name) for name in FROM_OUTER}})
    return {**fields["attn_config"], **fields} if isinstance(fields.get("attn_config"), dict) else fields


def beside(fields: dict[str, Any]) -> list[str]:
    """The names of the other models in a multimodal one: what `innermost` leaves out."""
    level, names = fields, []
    while inner := next((key for key in INNER if isinstance(level.get(key), dict) and level[key]), None):
        others = {key: value for key, value in level.items() if key != inner and isinstance(value, dict)}
        names += [key for key, value in others.items() if key.endswith("_config") and HEADS & value.keys()]
        level = level[inner]
    return names
