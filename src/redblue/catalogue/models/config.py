"""Look up quantities in a config.json, whose fields have different names in different model families."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from redblue.base.dtypes import BYTES_PER_WORD, DEFAULT_DTYPE
from redblue.base.errors import RedblueError
from redblue.base.integers import LARGEST, whole_number
from redblue.problem import DIRECTIONS, Problem

# Field names of each quantity, in order of precedence: the first one present in a config.json is read.
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
UNSET = (0, -1)  # values of the quantities in MAY_BE_UNSET that mean "not given"

# Fields of a multimodal model that hold the config of its language model.
INNER = ("text_config", "llm_config", "language_config", "thinker_config")
# Fields that the inner config may inherit from the outer one.
FROM_OUTER = ("architectures", "dtype", "quantization_config", "torch_dtype")
# A nested config that has one of these fields describes a model with attention of its own.
HEADS = {*NAMES["number of heads"], "attention_heads", "num_attention_heads_per_stage"}


@dataclass(frozen=True)
class Layers:
    """One distinct attention shape of a model.

    name: unique within the model. layers: the number of layers with this shape. note: the shape's origin, and caveats.
    """

    name: str
    layers: int
    problem: Problem
    note: str = ""


@dataclass(frozen=True)
class Config:
    """The fields of one config.json, their location (for error messages), and the caller's arguments.

    n: tokens per sequence; None for the model's own number. notes: collects the notes of the resulting Model.
    """

    fields: dict[str, Any]
    where: str
    notes: list[str]
    n: int | None = None
    batch: int = 1
    dtype: str = DEFAULT_DTYPE
    direction: str = "forward"

    @property
    def kind(self) -> str:
        """Class name (diffusers) or model type (transformers)."""
        return str(self.fields.get("_class_name") or self.fields.get("model_type") or "")

    def optional(self, quantity: str) -> int | None:
        """Return a quantity (a key of NAMES, or a field), or None if it is not given.

        Raises RedblueError if it is not a positive whole number.
        """
        for key in NAMES.get(quantity, (quantity,)):
            value = self.fields.get(key)
            if value is None or (quantity in MAY_BE_UNSET and isinstance(value, int) and value in UNSET):
                continue
            return self.whole_number(key, value, advice=" (0 or -1: none)" if quantity in MAY_BE_UNSET else "")
        return None

    def required(self, quantity: str) -> int:
        """Return a quantity that must be given. Raises RedblueError, with the names looked for, if it is missing."""
        value = self.optional(quantity)
        if value is None:
            names = NAMES.get(quantity, (quantity,))
            unset = [f"{key} = {self.fields[key]!r}" for key in names if self.fields.get(key) is not None]
            if unset:
                raise self.error(
                    f"its layers need a {quantity}, but {', '.join(unset)} means that there is none: give one"
                )
            raise self.missing(quantity, names)
        return value

    def int_list(self, key: str, count: int, default: int | None = None) -> list[int]:
        """Return a field as `count` positive whole numbers; a single number is repeated.

        Raises RedblueError if the field is missing and has no default, or has another number of entries.
        """
        value = self.fields.get(key)
        value = default if value is None else value
        if value is None:
            raise self.missing(key, (key,))
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise self.error(f"{key} must have {count} entries, has {len(values)}")
        return [self.whole_number(key, entry) for entry in values]

    def nonempty_list(self, key: str) -> list[Any]:
        """Return a field that must be a list of at least one entry. Raises RedblueError otherwise."""
        value = self.fields.get(key)
        if value is None:
            raise self.missing(key, (key,))
        if not isinstance(value, list) or not value:
            raise self.error(f"{key} must be a list of at least one entry, got {value!r}")
        return value

    def is_true(self, key: str) -> bool:
        """Return whether the field is the JSON value true."""
        return self.fields.get(key) is True

    def whole_number(self, key: str, value: Any, least: int = 1, most: int = LARGEST, advice: str = "") -> int:
        """Return value if it is a whole number in this range. Raises RedblueError, naming the config and the key."""
        try:
            return whole_number(key, value, least, most, advice)
        except RedblueError as error:
            raise self.error(str(error)) from None

    def error(self, text: str) -> RedblueError:
        """Return an error whose message begins with the config's location."""
        return RedblueError(f"{self.where}: {text}")

    def missing(self, quantity: str, names: tuple[str, ...]) -> RedblueError:
        """Return the error for a quantity that none of the fields `names` gives."""
        return RedblueError(
            f"{self.where} has no {quantity}: looked for {', '.join(names)}. Some files omit a field that equals their"
            " library's default: add the field"
        )

    def with_fields(self, fields: dict[str, Any]) -> Config:
        """Return a copy with some fields replaced; a value of None keeps the old field."""
        return replace(self, fields={**self.fields, **{k: v for k, v in fields.items() if v is not None}})

    def note(self, text: str) -> None:
        """Add a note for the resulting Model, once."""
        if text not in self.notes:
            self.notes.append(text)

    def problem(self, n_q: int, n_k: int, d: int, *, copies: int = 1, **sizes: Any) -> Problem:
        """Return the Problem of one layer in the caller's dtype, direction and batch; `copies` of it per sequence."""
        batch = self.batch * copies
        try:
            return Problem(n_q, n_k, d, batch=batch, dtype=self.dtype, direction=self.direction, **sizes)
        except RedblueError as error:
            if self.dtype in BYTES_PER_WORD and self.direction in DIRECTIONS:
                raise self.error(str(error)) from error
            raise  # the caller's dtype or direction is invalid, not the config


def language_model_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the language model inside a multimodal model, with `attn_config` merged into its level."""
    for key in INNER:
        inner = fields.get(key)
        if isinstance(inner, dict) and inner:
            return language_model_fields(
                {**inner, **{name: inner.get(name) or fields.get(name) for name in FROM_OUTER}}
            )
    return {**fields["attn_config"], **fields} if isinstance(fields.get("attn_config"), dict) else fields


def sibling_configs(fields: dict[str, Any]) -> list[str]:
    """Return the field names of a multimodal model's other configs, which `language_model_fields` leaves out."""
    level, names = fields, []
    while inner := next((key for key in INNER if isinstance(level.get(key), dict) and level[key]), None):
        others = {key: value for key, value in level.items() if key != inner and isinstance(value, dict)}
        names += [key for key, value in others.items() if key.endswith("_config") and HEADS & value.keys()]
        level = level[inner]
    return names
