"""The results of the sweep as a small JSON file and a page."""

import importlib.metadata
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

STATUSES = {
    "same": "outputs, gradients of all parameters, and greedy generation where the class generates, equal eager's",
    "same as sdpa": "equal to `sdpa`; eager itself differs from both",
    "wrong": "other numbers than eager",
    "refused": "the model with redblue raises an error",
    "unreached": "the forward pass calls no attention function of transformers' registry",
    "eager fails": "the eager model takes none of the inputs that the comparison tries",
    "not buildable": "no tiny config is known, or a package is missing",
}

# Reasons why a class was not compared, in plain words, by the first pattern that its name and recorded reason contain
REASONS = {
    "requires the timm library": "its backbone needs the package timm, which the comparison does not install",
    "'inference_session'": "its forward pass takes an inference session for a video, not tensors",
    "KeyError: 'eager'": "it has no eager attention to compare with",
    "Deimv2DINOv3ConvEncoder": "it needs another backbone than the default backbone of its config",
    "Deimv2LiteEncoder": "it takes feature maps of another backbone than the default backbone of its config",
    "EsmFold2Model": "it takes a record of residues and atoms, not tensors",
    "Qwen2_5OmniToken2WavModel": "its forward pass solves a differential equation for the sound, without gradients",
}


def _plain(record: dict[str, Any]) -> str:
    """The reason why a class was not compared, in plain words if known."""
    text = f"{record['class']} {record.get('reason', '')}"
    known = next((words for pattern, words in REASONS.items() if re.search(pattern, text)), None)
    return known or record.get("reason", "")[:80].replace("|", "\\|")


def write(records: list[dict[str, Any]], json_path: Path, page: Path) -> None:
    """Write both files."""
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    models: dict[str, dict[str, Any]] = defaultdict(dict)
    for record in sorted(records, key=lambda r: (r["module"], r["class"])):
        models[record["module"].split(".")[2]][record["class"]] = _short(record)
    compact = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in models.items())
    json_path.write_text(f'{{"versions": {json.dumps(versions)},\n"models": {{\n{compact}\n}}}}\n', encoding="utf-8")
    page.write_text(_page(records, models, versions), encoding="utf-8")


def _short(record: dict[str, Any]) -> str | dict[str, str]:
    """A class's outcome: "same" if sdpa supports it, too; otherwise the details."""
    if record["status"] == record.get("sdpa") == "same":
        return "same"
    fields: dict[str, Any] = {
        "status": record["status"],
        "sdpa": record.get("sdpa"),
        "reason": record.get("reason", "")[:90],
    }
    return {name: value for name, value in fields.items() if value}


def _page(records: list[dict[str, Any]], models: dict[str, Any], versions: dict[str, str]) -> str:
    counts = Counter(record["status"] for record in records)
    by_sdpa = [r for r in records if r.get("sdpa") == "same" and r["status"] != "unreached"]
    served = [record for record in by_sdpa if record["status"] == "same"]
    compared = [r for r in records if r["status"] in ("same", "same as sdpa", "wrong", "refused")]
    errors = [max(r["errors"]) for r in records if r["status"] == "same" and "rounding" not in r]
    rounded = [r for r in records if "rounding" in r]
    generated = sum(record.get("generates") == "same" for record in records)
    parts = sum("within" in record for record in compared)
    beyond = sum(r["status"] == "same" and r.get("sdpa") in ("refused", "wrong") for r in records)
    lines = [
        "# transformers on redblue",
        "",
        f"This page compares redblue with transformers' `eager` attention for {len(records):,} classes of "
        f"{len(models)} models of transformers {versions['transformers']}. These are all model classes with a forward "
        f"pass whose module dispatches attention through `ALL_ATTENTION_FUNCTIONS`. The models are tiny, with random "
        f"weights, in float32, on a CPU with PyTorch {versions['torch']}. `make transformers-table` writes this page "
        "and [the outcome of each class](transformers.json).",
        "",
        '"Same" means that the largest error of the outputs and the largest error of the gradients of all parameters '
        "are at most 1e-4, relative to the largest number in the output or in all gradients. The largest relative "
        f"error that occurred is {max(errors, default=0):.1g}."
        + "".join(
            f" Exception: {r['class']} amplifies rounding. Relative to eager in float64, the error of eager in float32 "
            f"is {r['rounding']:.1g}, and the error of redblue is at most twice as large. (redblue and eager differ by "
            f"{max(r['errors']):.1g}.)"
            for r in rounded
        ),
        "",
        "| outcome | classes | meaning |",
        "|---|---:|---|",
        *(f"| {name} | {counts[name]:,} | {meaning} |" for name, meaning in STATUSES.items()),
        "",
        f"- `sdpa` computes the attention of {len(by_sdpa):,} classes right. redblue computes {len(served):,} of them "
        f"right ({100 * len(served) / max(1, len(by_sdpa)):.1f} %).",
        f"- redblue computes {beyond:,} classes right that `sdpa` refuses or computes wrong.",
        f"- {generated:,} classes also generated the same tokens, from prompts with padding on the left.",
        f"- {len(compared):,} of {len(records):,} classes could be compared. {parts:,} of them are parts of models, "
        "which were called with the inputs that a whole model of the same module gives them.",
        "",
        "## Refused, or different from eager",
        "",
        "| class | outcome | outcome with `sdpa` | reason |",
        "|---|---|---|---|",
    ]
    for r in sorted(records, key=lambda r: (r["status"], r["class"])):
        if r["status"] in ("refused", "wrong", "same as sdpa"):
            reason = r.get("reason", "").replace("|", "\\|")
            lines.append(f"| {r['class']} | {r['status']} | {r.get('sdpa')} | {reason} |")
    lines += [
        "",
        "`KeyError: 'redblue'`: the model looks up its attention in a table of classes of its own, not in",
        "transformers' registry, and redblue does not extend this table. Classes that are the same with `sdpa` run on",
        'redblue with `attn_implementation="sdpa"` inside `redblue.sdpa()`. GIT has eager attention only, so that',
        "redblue cannot compute its attention.",
        "",
        '"Errors" are the largest relative errors of redblue against eager. "inf" means that eager and redblue have',
        "different numbers of results, or infinite or undefined values at different places.",
        "",
    ]
    lines += ["## Not compared", "", "| outcome | reason | classes |", "|---|---|---|"]
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for r in records:
        if r["status"] in ("not buildable", "eager fails", "unreached"):
            groups[r["status"], _plain(r)].append(r["class"])
    for (status, reason), names in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {status} | {reason} | {', '.join(sorted(names))} |")
    return "\n".join(lines) + "\n"
