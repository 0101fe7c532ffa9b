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
    models = [model(model_name, n=n) for model_name in (list_models() if name is None else [name])]
    data = [
        {
            "name": entry.name,
            "title": entry.title,
            "source": entry.source,
            "notes": list(entry.notes),
        }
        | {"layers": [asdict(layers) | {"problem": describe(layers.problem)} for layers in entry]}
        for entry in models
    ]
    show(data[0] if name else data, model_details(models[0]) if name else models_table(models), as_json)
