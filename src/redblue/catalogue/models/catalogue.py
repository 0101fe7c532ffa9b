"""Read a model's attention shapes from models.toml (by name) or from a config.json (by path).

Both hold the fields of a config.json and are read by the same code. The result lists the model's distinct attention
shapes: one model may mix several (sliding and global layers, prefill and decode, the levels of a U-Net). A config.json
with an unknown layout is refused with an error that names the field; no shape is ever guessed.
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

from redblue.base.arguments import checked_arguments
from redblue.base.dtypes import BYTES_PER_WORD, DEFAULT_DTYPE
from redblue.base.errors import RedblueError, UnknownName
from redblue.catalogue.models import diffusion, transformer
from redblue.catalogue.models.config import Config, Layers, language_model_fields, sibling_configs
from redblue.problem import Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Fields of a config.json that qualify the shapes, and the note that each adds to the model.
CAVEATS = {
    "index_topk": "each query attends at most index_topk keys, chosen at run time: the shapes are the dense ones",
    "num_kv_shared_layers": "the last num_kv_shared_layers layers reuse earlier layers' K and V: each still reads them"
    " in the same shapes",
    "attention_k_eq_v": "K and V of the global layers come from one projection: they count as two arrays",
    "cross_layer_interval": "the layers that attend to the image (cross_layer_interval) are not listed",
    "num_refiner_layers": "the num_refiner_layers layers over the text or the image alone are not listed",
    "quantization_config": "the weights are quantised (quantization_config): Q, K and V count in the dtype shown",
}


@dataclass(frozen=True)
class Model:
    """A model's distinct attention shapes; len(), iteration and indexing work on `layers`.

    Two entries of `layers` may describe two uses of the same layers (prefill and decode, self- and cross-attention);
    their names tell them apart. source: the origin of the sizes. notes: shapes left out, and assumptions made.
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
    """Return the names in the catalogue, sorted."""
    return sorted(_catalogue())


@checked_arguments
def model(
    name_or_path: str | os.PathLike,
    *,
    n: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    direction: str = "forward",
) -> Model:
    """Return the attention shapes of a model in the catalogue, or of a config.json.

    name_or_path: a name of the catalogue, or the path of a config.json or of its folder. A name takes precedence over a
    path of the same spelling; write ./name for the path.
    n: tokens per sequence. Default: the number of positions in the config, at most 4096; for image models, the tokens
    of the config's image size. In a U-Net, n counts tokens of the finest level; in a VAE, of the middle block.
    batch, direction: as in Problem.
    dtype: number type of Q, K and V. Default: the type in the config, else float16.

    Raises UnknownName for a name that is not in the catalogue. Raises RedblueError for an invalid argument, and for a
    file that is not a config.json, that lacks a field, or that holds an invalid value or an unsupported layout.
    """
    name, title, source, where, fields = _open(name_or_path)
    siblings, fields = sibling_configs(fields), language_model_fields(fields)
    notes = [text for key, text in CAVEATS.items() if fields.get(key)]
    notes += [
        f"only the language model is listed: for the rest, give {key} as a separate config.json" for key in siblings
    ]
    config = Config(fields, where, notes)
    tokens = None if n is None else config.whole_number("n", n)
    batch = config.whole_number("batch", batch)
    config = replace(config, n=tokens, batch=batch, dtype=dtype or _dtype(config), direction=direction)
    layers = diffusion.read(config) if "_class_name" in fields else transformer.read(config)
    return Model(name, title, tuple(_numbered(layers)), source, tuple(notes))


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("models.toml").read_text("utf-8"))


def _open(name_or_path: str | os.PathLike) -> tuple[str, str, str, str, dict[str, Any]]:
    """Return name, title, source, the location for error messages, and the fields of the config."""
    entry = _catalogue().get(name_or_path) if isinstance(name_or_path, str) else None
    if entry:
        source = f"{entry['source']} ({entry['date']})"
        return str(name_or_path), entry["title"], source, f"catalogue entry {name_or_path}", entry["config"]
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise RedblueError(f"a model is a name or the path of a config.json, got {name_or_path!r}")
    path = Path(name_or_path)
    is_name = isinstance(name_or_path, str) and path.name == name_or_path and path.suffix != ".json"
    if name_or_path == "" or (is_name and not os.path.exists(path)):
        raise UnknownName("model", str(name_or_path), list_models(), "Or give the path of a config.json")
    if os.path.isdir(path):  # unlike Path.is_dir, os.path accepts names that are too long
        if not os.path.exists(path / "config.json") and os.path.exists(path / "model_index.json"):
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
    """Return the number type in the config, or the default (with a note if the config names an unknown type)."""
    declared = config.fields.get("torch_dtype") or config.fields.get("dtype")
    dtype = str(declared).removeprefix("torch.")
    if dtype in BYTES_PER_WORD:
        return dtype
    if declared is not None:
        config.note(f"dtype {declared!r} is not one of {', '.join(BYTES_PER_WORD)}: {DEFAULT_DTYPE} is assumed")
    return DEFAULT_DTYPE


def _numbered(layers: list[Layers]) -> Iterator[Layers]:
    """Append 1, 2, ... to names that occur more than once (layers of one kind may differ in size)."""
    total, so_far = Counter(entry.name for entry in layers), Counter()
    for entry in layers:
        so_far[entry.name] += 1
        yield replace(entry, name=f"{entry.name} {so_far[entry.name]}") if total[entry.name] > 1 else entry
