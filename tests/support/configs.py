"""The recorded Hugging Face configs, and changed copies of them."""

import json
from pathlib import Path
from typing import Any

from redblue.catalogue.models import Model

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
GOOD = sorted(path.stem for path in CONFIGS.glob("*.json") if not path.stem.startswith("bad_"))


def shapes(model: Model) -> list[tuple]:
    """List (name, layers, n_q, n_k, heads, kv_heads, d, d_v, mask) of each shape."""
    return [
        (s.name, s.layers, p.n_q, p.n_k, p.heads, p.kv_heads, p.d, p.d_v, p.mask) for s in model for p in [s.problem]
    ]


def fields_of(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def changed(folder: Path, name: str, **fields: Any) -> Path:
    """Write the config with changed fields into the folder; a value of ... removes the field."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({k: v for k, v in {**fields_of(name), **fields}.items() if v is not ...}))
    return path
