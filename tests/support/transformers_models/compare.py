"""One model class on eager, sdpa and redblue: outputs, gradients of all parameters, and greedy generation."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from support.transformers_models import inputs, parts, tiny
from support.transformers_models.fixes import CLASSES, CONFIGS
from support.transformers_models.known_inputs import INPUTS

# Relative to the largest number in an output, or in all gradients; for float32, random weights and a few layers.
TOLERANCE = 1e-4
MAX_PARAMETERS = 3e7
NEW_TOKENS = 5
OWN_CODE = "its attention does not go through transformers' registry"
NO_ATTENTION = "it has no attention"


class Outcome(dict):
    """The outcome: redblue's `status` and `reason`, `sdpa`, the largest relative errors, and what was compared."""


def compare(cls: type, sdpa: bool = True) -> Outcome:
    """Compare a class. status: same, same as sdpa, wrong, refused, unreached, not buildable, eager fails."""
    try:
        config, reference = _reference(cls)
    except Exception as error:
        return Outcome(status="not buildable", reason=_text(error))
    try:
        arguments, expected = _inputs(cls, reference)
    except Refused as refused:
        return Outcome(status="eager fails", reason=str(refused))

    def model(implementation: str) -> Any:
        return _model(cls, config, implementation, reference.state_dict())

    return _compared(model, reference, arguments, expected, sdpa)


def compare_parts(cls: type, wanted: set[type]) -> dict[type, Outcome]:
    """Compare the wanted classes that are parts of a class, with the inputs that they get from it."""
    try:
        _, reference = _reference(cls)
        part_pairs = parts.parts_of(reference, _inputs(cls, reference)[0], wanted)
    except Exception:
        return {}
    return {part: _compared_part(*part_pairs[part], cls.__name__) for part in part_pairs}


def _compared_part(model: Any, arguments: dict[str, Any], whole: str) -> Outcome:
    try:
        expected = _run(model, arguments)
        make = partial(parts.with_implementation, model)
        return Outcome(_compared(make, model, arguments, expected, True), within=whole)
    except Exception as error:
        return Outcome(status="eager fails", reason=_text(error))


class Refused(Exception):
    """The eager model accepts none of the guessed inputs; the text is the first error."""


def _reference(cls: type) -> tuple[Any, Any]:
    """A tiny config of a class, and the eager model. Raises whatever prevents it."""
    config = tiny.tiny(cls.config_class, CONFIGS, **CLASSES.get(cls.__name__, {}))  # pyright: ignore
    return config, _model(cls, config, "eager", None)


def _inputs(cls: type, reference: Any) -> tuple[dict[str, Any], Any]:
    """The first guess that the eager model accepts, and its results. Raises Refused."""
    trials = []
    for arguments in inputs.guesses(reference, INPUTS.get(cls.__name__, {})):
        try:
            expected = _run(reference, arguments)
            break
        except Exception as error:
            trials.append(_text(error))
    else:
        raise Refused(trials[0] if trials else "no input is known")
    return arguments, expected


def _compared(
    model: Callable[[str], Any], reference: Any, arguments: dict[str, Any], expected: Any, sdpa: bool
) -> Outcome:
    """Compare the models of the implementations. model: makes one, with the weights of `reference`."""
    outcome = Outcome(inputs=sorted(arguments))
    result, actual = _against(model, "redblue", reference, arguments, expected)
    if sdpa:
        peer, in_sdpa = _against(model, "sdpa", reference, arguments, expected)
        outcome["sdpa"] = peer["status"]
        if result["status"] == peer["status"] == "wrong" and max(_errors(in_sdpa, actual)) <= TOLERANCE:
            result["status"] = "same as sdpa"
    return Outcome(outcome | result)


def _against(
    make: Callable[[str], Any], implementation: str, reference: Any, arguments: Any, expected: Any
) -> tuple[dict[str, Any], Any]:
    """Compare one implementation with eager; also return its results."""
    try:
        model = make(implementation)
        with Calls() as calls:
            actual = _run(model, arguments)
    except Exception as error:
        return {"status": "refused", "reason": _text(error)}, None
    if implementation == "redblue" and not calls[0]:
        has_attention = any("attention" in type(part).__name__.lower() for part in model.modules())
        return {"status": "unreached", "reason": OWN_CODE if has_attention else NO_ATTENTION}, None
    errors = _errors(expected, actual)
    if not max(errors) <= TOLERANCE:
        repeated = _errors(expected, _run(reference, arguments))
        if not max(repeated) <= TOLERANCE:
            return {"status": "eager fails", "reason": "eager gives other numbers when it is run again"}, None
        rounding = _rounding(reference, arguments, expected, actual)
        if rounding is not None:
            return {"status": "same", "errors": _rounded(errors), "rounding": rounding}, actual
        reason = f"errors {errors[0]:.2g} of outputs, {errors[1]:.2g} of gradients"
        return {"status": "wrong", "reason": reason}, actual
    result: dict[str, Any] = {"status": "same", "errors": _rounded(errors)}
    generated = _generated(reference, model, arguments) if implementation == "redblue" else None
    if generated is not None:
        result["generates"] = generated
        if generated not in ("same", "eager fails"):
            result |= {
                "status": "wrong" if generated == "other tokens" else "refused",
                "reason": f"generate: {generated}",
            }
    return result, actual


def _rounded(errors: tuple[float, float]) -> list[float]:
    return [float(f"{error:.2g}") for error in errors]


def _rounding(reference: Any, arguments: Any, expected: Any, actual: Any) -> float | None:
    """The error of eager itself, against eager in float64, if the other model's is at most twice as large."""
    try:
        exact = _run(copy.deepcopy(reference).double(), _in_float64(arguments))
    except Exception:
        return None
    own, other = (max(_errors(exact, each)) for each in (expected, actual))
    return own if own > TOLERANCE and other <= 2 * own < math.inf else None


def _in_float64(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return {name: _in_float64(part) for name, part in value.items()} if isinstance(value, dict) else value


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:160]


def _model(cls: type, config: Any, implementation: str, states: Any) -> Any:
    """The model with random weights, or with the given ones."""
    config = copy.deepcopy(config)
    config._attn_implementation = implementation
    config._experts_implementation = "eager"
    if states is None:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                count = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
            except (NotImplementedError, RuntimeError):
                count = 0
        if count > MAX_PARAMETERS:
            raise tiny.Unbuildable(f"{count / 1e6:.0f} million parameters: no tiny config is known")
    torch.manual_seed(0)
    model = cls(config).float().eval()
    if states is not None:
        model.load_state_dict(states, strict=False)
        return model
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() > 1:
                p.copy_(
                    noise
                    * (0.5 if p.shape[0] == tiny.VOCABULARY else 1 / math.sqrt(max(1, p.numel() / max(1, p.shape[0]))))
                )
            else:
                p.copy_(torch.nan_to_num(p) + 0.1 * noise)
    return model


def _run(model: Any, arguments: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The outputs that are floating tensors, and the gradients of their weighted sum."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    out = model(**copy.deepcopy(arguments))
    outputs = [_without_padding(x, arguments.get("attention_mask")) for x in _floats(out)]
    generator = torch.Generator().manual_seed(4)
    loss = sum(
        (x.double() * torch.randn(x.shape, generator=generator)).mean()
        for x in outputs
        if x.requires_grad and x.isfinite().all()
    )
    if isinstance(loss, torch.Tensor):
        loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return [x.detach() for x in outputs], gradients


def _without_padding(x: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Zero the outputs of padded tokens: under a window they may attend nothing, and eager then averages all keys."""
    if attention_mask is None or x.shape[:2] != attention_mask.shape:
        return x
    return x.masked_fill(attention_mask.view(*x.shape[:2], *[1] * (x.dim() - 2)) == 0, 0.0)


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if key not in ("past_key_values", "attentions"):
                yield from _floats(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _floats(part)


def _errors(expected: Any, actual: Any) -> tuple[float, float]:
    """The largest errors of outputs and of gradients, relative to the largest number."""
    if len(expected[0]) != len(actual[0]) or expected[1].keys() != actual[1].keys():
        return math.inf, math.inf
    outputs = [_error(a, b, a.abs()) for a, b in zip(expected[0], actual[0], strict=True)]
    largest = max((g.abs().nan_to_num().max().item() for g in expected[1].values() if g.numel()), default=0.0)
    gradients = [_error(g, actual[1][n], torch.tensor(largest)) for n, g in expected[1].items() if g.numel()]
    return max(outputs, default=0.0), max(gradients, default=0.0)


def _error(a: torch.Tensor, b: torch.Tensor, size: torch.Tensor) -> float:
    if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
        return math.inf
    finite = a.isfinite()
    if not finite.any():
        return 0.0
    difference = (a - b)[finite].abs().max().item()
    scale = size[finite].max().item() if size.shape == a.shape else size.item()
    return difference / scale if difference else 0.0


class Calls:
    """Counts the calls of redblue's attention function."""

    def __enter__(self) -> list[int]:
        from transformers import AttentionInterface

        self.mapping = AttentionInterface._global_mapping
        self.function, count = self.mapping["redblue"], [0]

        def counting(*arguments: Any, **keywords: Any) -> Any:
            count[0] += 1
            return self.function(*arguments, **keywords)

        self.mapping["redblue"] = counting
        return count

    def __exit__(self, *error: object) -> None:
        self.mapping["redblue"] = self.function


def _generated(reference: Any, model: Any, arguments: dict[str, Any]) -> str | None:
    """Greedy generation from the same prompts, with padding on the left. None: the class does not generate."""
    if not hasattr(model, "can_generate") or not model.can_generate() or "input_ids" not in arguments:
        return None
    encoder_decoder = getattr(model.config, "is_encoder_decoder", False)
    prompt = {k: v for k, v in arguments.items() if not k.startswith("decoder_")}
    if "attention_mask" in prompt and not encoder_decoder:
        prompt["attention_mask"] = inputs.padding(left=True)
    settings: dict[str, Any] = {
        "max_new_tokens": NEW_TOKENS,
        "min_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "pad_token_id": 0,
    }
    if encoder_decoder:
        settings["decoder_start_token_id"] = 1
    try:
        torch.manual_seed(5)
        expected = reference.generate(**copy.deepcopy(prompt), **settings)
    except Exception:
        return "eager fails"
    try:
        torch.manual_seed(5)
        actual = model.generate(**copy.deepcopy(prompt), **settings)
    except Exception as error:
        return _text(error)
    if not isinstance(expected, torch.Tensor):
        return "same" if not _different(expected, actual) else "other tokens"
    return "same" if torch.equal(expected, actual) else "other tokens"


def _different(expected: Any, actual: Any) -> bool:
    pairs = zip(_floats(expected), _floats(actual), strict=False)
    return any(_error(a, b, a.abs()) > TOLERANCE for a, b in pairs)
