"""The page of a result, as Markdown: the figure, the findings, the tables, and how they were obtained."""

from __future__ import annotations

from redblue.studies.experiments.experiment import Table
from redblue.studies.experiments.result import Result


def page(result: Result) -> str:
    """Write the page of a result."""
    about = result.about
    findings = "\n".join(f"- {line}" for line in result.findings)
    tables = "\n\n".join(f"## {shown.title}\n\n{table(shown)}" for shown in about.tables(result.rows))
    return f"""\
# {about.title}

{about.question}

![{about.title}]({result.experiment}.svg)

{findings}

*`{result.command}`: {result.provenance}. All numbers: [{result.experiment}.json]({result.experiment}.json).*

{tables}

## Method and reasons

{about.method.strip()}
"""


def table(content: Table) -> str:
    """Write a table as Markdown."""
    head = ["---"] * content.left + ["---:"] * (len(content.columns) - content.left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (content.columns, head, *content.rows))
