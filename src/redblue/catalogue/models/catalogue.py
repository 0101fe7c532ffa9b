"""A model by name (from models.toml) or by path: both are config.json fields, read in the same way.

What comes back is the list of its distinct attention shapes: one model may mix several (sliding and global layers,
prefill and decode, the levels of a U-Net). A config.json is read as plain JSON. One that is laid out in a way not
known here is refused, with the name of the missing field, never guessed.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError, UnknownName
from redblue.base.integers import whole_number
from redblue.catalogue.models import diffusion, transformer
from redblue.catalogue.models.config import Config, Layers, beside, innermost
from redblue.problem import Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What a config.json says beside the shapes, and what that means for them.
CAVEATS = {
    "index_topk": "each query attends at most index_topk keys, chosen at run time: the shapes are the dense ones",
    "num_kv_shared_layers": "the last num_kv_shared_layers layers reuse earlier layers' K and V: they read them all the"
    " same, in the same shapes",
    "attention_k_eq_v": "K and V of the global layers come from one projection: they count as two arrays",
    "cross_layer_interval": "the layers that attend to the image (cross_layer_interval) are not listed",
    "num_refiner_layers": "the num_refiner_layers layers over the text or the image alone are not listed",
    "quantization_config": "the weights are quantised (quantization_config): Q, K and V count in the dtype shown",
}


@dataclass(frozen=True)
class Model:
    """A model's distinct attention shapes; it iterates, counts and indexes as the sequence of its `layers`.

    Two shapes may be two uses of the same layers (prefill and decode; self- and cross-attention): see their names.
    source: where the figures are from. notes: what is not listed, or was assumed.
    """

    name: str
    title: str
    layers: tuple[Layers, ...]
    source: str
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Layers]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Layers:
        return self.layers[index]

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(layers.problem for layers in self.layers)


def list_models() -> list[str]:
    """The names in the catalogue."""
    return sorted(_catalogue())


def model(
    name_or_path: str | os.PathLike,
    *,
    n: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    direction: str = "forward",
) -> Model:
    """The attention shapes of a model of the catalogue, or of a config.json (its path, or its folder's).

    n: tokens; by default the positions that the config declares but at most 4096, or for image models the tokens of
    the image size that it declares. For a U-Net n counts the tokens at its finest level, for a VAE at its middle.
    dtype: of Q, K and V; by default what the config says, else float16.
    A name of the catalogue goes before a path; write ./name for the path.

    Raises UnknownName for a name that is not in the catalogue, RedblueError for a file that is no config.json, lacks a
    field, or holds a wrong value or a layout that is not read here.
    """
    tokens, batch = None if n is None else whole_number("n", n), whole_number("batch", batch)
    name, title, source, where, fields = _open(name_or_path)
    others, fields = beside(fields), innermost(fields)
    notes = [text for key, text in CAVEATS.items() if fields.get(key)]
    notes += [
        f"only the language model is listed: give {key} as a config.json of its own for the rest" for key in others
    ]
    config = Config(fields, where, notes, tokens, batch)
    config = replace(config, dtype=dtype or _dtype(config), direction=direction)
    layers = diffusion.read(config) if "_class_name" in fields else transformer.read(config)
    return Model(name, title, tuple(_numbered(layers)), source, tuple(notes))


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("models.toml").read_text("utf-8"))


def _open(name_or_path: str | os.PathLike) -> tuple[str, str, str, str, dict[str, Any]]:
    """Name, title, source, the words for error messages, and the fields."""
    entry = _catalogue().get(name_or_path) if isinstance(name_or_path, str) else None
    if entry:
        source = f"{entry['source']} ({entry['date']})"
        return str(name_or_path), entry["title"], source, f"catalogue entry {name_or_path}", entry["config"]
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise RedblueError(f"a model is a name or the path of a config.json, got {name_or_path!r}")
    path = Path(name_or_path)
    is_name = isinstance(name_or_path, str) and path.name == name_or_path and path.suffix != ".json"
    if name_or_path == "" or (is_name and not path.exists()):
        raise UnknownName("model", str(name_or_path), list_models(), "Or give the path of a config.json")
    if path.is_dir():
        if not (path / "config.json").exists() and (path / "model_index.json").exists():
            raise RedblueError(f"{path} is a pipeline: give the folder of one of its parts, such as {path / 'unet'}")
        path = path / "config.json"
    where = f"config.json at {path}" if path.name == "config.json" else f"config {path}"
    try:
        fields = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        names = ", ".join(list_models())
        raise RedblueError(f"cannot read {path} ({error.strerror}): give a config.json, or one of {names}") from error
    except (ValueError, RecursionError) as error:
        raise RedblueError(f"{where} is not JSON ({error}): give a model's config.json") from error
    if not isinstance(fields, dict):
        raise RedblueError(f"{where} holds a JSON {type(fields).__name__}: a config.json is an object of named fields")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    title = fields.get("architectures") or fields.get("_class_name") or fields.get("model_type") or name
    return name, str(title[0] if isinstance(title, list) else title), str(path), where, fields


def _dtype(config: Config) -> str:
    said = config.fields.get("torch_dtype") or config.fields.get("dtype")
    known = str(said).removeprefix("torch.")
    if known in BYTES_PER_WORD:
        return known
    if said is not None:
        config.note(f"dtype {said!r} is not one of {', '.join(BYTES_PER_WORD)}: float16 is taken")
    return "float16"


def _numbered(layers: list[Layers]) -> Iterator[Layers]:
    """Shapes of one name (sizes may differ from layer to layer) get numbers, so that every name is unique."""
    total, seen = Counter(entry.name for entry in layers), Counter()
    for entry in layers:
        seen[entry.name] += 1
        yield replace(entry, name=f"{entry.name} {seen[entry.name]}") if total[entry.name] > 1 else entry
