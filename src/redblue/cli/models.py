"""`redblue models`: the models of the catalogue and their attention shapes."""

from __future__ import annotations

from dataclasses import asdict

from redblue.catalogue.models import list_models, model
from redblue.cli.options import Json, ModelN, ModelName
from redblue.cli.output import show
from redblue.cli.tables import model_details, models_table
from redblue.lab.plans import describe

EPILOG = "Example: redblue models. One model: redblue models deepseek-v3, or path/to/config.json"


def command(
    name: ModelName = None,
    n: ModelN = None,
    as_json: Json = False,
) -> None:
    """Show the attention shapes of the catalogue's models, or of any config.json."""
    models = [model(each, n=n) for each in (list_models() if name is None else [name])]
    data = [
        {"name": each.name, "title": each.title, "source": each.source, "notes": list(each.notes)}
        | {"layers": [asdict(layers) | {"problem": describe(layers.problem)} for layers in each]}
        for each in models
    ]
    show(data[0] if name else data, model_details(models[0]) if name else models_table(models), as_json)
