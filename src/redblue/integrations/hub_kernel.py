"""Write a Hugging Face kernel repository of redblue's functions, for transformers' attn_implementation="org/repo".

`python -m redblue.integrations.hub_kernel FOLDER` writes it. The repository holds no kernels: it imports redblue, which
must be installed where it is used. docs/guide/flash-attn.md says how to publish it and how to try it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from redblue.base.errors import RedblueError
from redblue.base.version import __version__

NAME = "redblue-flash-attn"
REVISION = 1  # version of the repository; transformers requests version 1 of a repository that it does not know
# `torch-cpu` is for builds of PyTorch without CUDA. Builds with CUDA load only `torch-universal`, even without a GPU.
VARIANTS = ("torch-cpu", "torch-universal")
FUNCTIONS = (
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
)
MODULE = '''"""FlashAttention 2's functions, served by redblue {version} or later."""

try:
    from redblue.integrations.flash_attn import (
{imports}
    )
except ModuleNotFoundError as error:
    raise ImportError("this kernel is redblue's: pip install 'redblue[torch]'") from error

__all__ = [
{names}
]
'''
CARD = """---
library_name: kernels
license: apache-2.0
tags:
- kernels
---

FlashAttention 2's functions for CPUs and GPUs, in float32, bfloat16, float16 and float64, forward and backward. This
repository imports the package `redblue`, which must be installed: `pip install 'redblue[torch]'`.
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
        (place / "__init__.py").write_text(_module(), encoding="utf-8")
        (place / "metadata.json").write_text(json.dumps(_metadata(variant), indent=2) + "\n", encoding="utf-8")
    return folder


def _module() -> str:
    imports = "\n".join(f"        {name}," for name in FUNCTIONS)
    names = "\n".join(f'    "{name}",' for name in FUNCTIONS)
    return MODULE.format(version=__version__, imports=imports, names=names)


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
