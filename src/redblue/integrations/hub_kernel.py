"""Write a Hugging Face kernel repository of redblue's attention, for transformers' attn_implementation="org/repo".

`python -m redblue.integrations.hub_kernel FOLDER` writes it. The repository holds no kernels: it imports redblue, which
must be installed where it is used. docs/guide/transformers.md says how to publish it and how to try it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from redblue.base.errors import RedblueError
from redblue.base.version import __version__

NAME = "redblue-attention"
REVISION = 1  # version of the repository; transformers requests version 1 of a repository that it does not know
# `torch-cpu` is for builds of PyTorch without CUDA. Builds with CUDA load only `torch-universal`, even without a GPU.
VARIANTS = ("torch-cpu", "torch-universal")
MODULE = '''"""Attention for transformers, computed by redblue {version} or later."""

try:
    from redblue.integrations.transformers.hub import flash_attn_forward, supports_flash_attn
except ModuleNotFoundError as error:
    raise ImportError("this kernel is redblue's: pip install 'redblue[transformers]'") from error

__all__ = ["flash_attn_forward", "supports_flash_attn"]
'''
CARD = """---
library_name: kernels
license: apache-2.0
tags:
- kernels
---

Attention for models of transformers on CPUs and GPUs, in float32, bfloat16, float16 and float64, forward and backward.
This repository imports the package `redblue`, which must be installed: `pip install 'redblue[transformers]'`.
"""
OURS = b"imports the package `redblue`"  # text in the card of every version


def write(folder: str | Path) -> Path:
    """Write the repository into a folder, which is made if it is missing. Returns the folder.

    Raises RedblueError if the folder holds something else: only an older version of the repository is replaced.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise RedblueError(f"{folder} is a file: give a folder for the repository")
    card = folder / "README.md"
    if folder.is_dir() and any(folder.iterdir()) and not (card.is_file() and OURS in card.read_bytes()):
        raise RedblueError(f"{folder} holds other files: give a new or empty folder, or one that this command wrote")
    (folder / "build").mkdir(parents=True, exist_ok=True)
    card.write_text(CARD, encoding="utf-8")
    for variant in VARIANTS:
        place = folder / "build" / variant
        place.mkdir(exist_ok=True)
        (place / "__init__.py").write_text(MODULE.format(version=__version__), encoding="utf-8")
        (place / "metadata.json").write_text(json.dumps(_metadata(variant), indent=2) + "\n", encoding="utf-8")
    return folder


def _metadata(variant: str) -> dict[str, object]:
    return {
        "id": f"_{NAME}_{variant}_{REVISION}".replace("-", "_"),  # the name of the imported module
        "name": NAME,
        "version": REVISION,
        "license": "Apache-2.0",
        "backend": {"type": "cpu"},
        "python-depends": [],  # `kernels` allows only packages that it knows
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m redblue.integrations.hub_kernel", description=__doc__)
    parser.add_argument("folder", help="a new or empty folder, or one that this command wrote")
    try:
        print(write(parser.parse_args().folder))
    except (RedblueError, OSError) as error:
        parser.error(str(error))
