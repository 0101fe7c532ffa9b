"""What single classes need beyond the tables of tiny.py and inputs.py, as data."""

from typing import Any

CONFIGS: dict[str, dict[str, Any]] = {}
INPUTS: dict[str, dict[str, Any]] = {}
NO_TABLE: dict[str, str] = {}
