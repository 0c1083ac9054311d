"""Commands about data sets."""

import typer

from torchcaps import data as datasets
from torchcaps.cli.options import Root, console
from torchcaps.cli.options import table as make_table

app = typer.Typer(no_args_is_help=True, help="List and download data sets.")


@app.command("ls")
def list_data(data: Root = None) -> None:
    """List all data sets and where they are stored."""
    lines = make_table("data set", "train + test", "where", "about")
    for name in datasets.DATASETS:
        about = datasets.info(name)
        shape = "x".join(map(str, about.shape))
        lines.add_row(
            name, f"{about.n_train:,} + {about.n_test:,}", datasets.status(name, data), f"{shape}: {about.about}"
        )
    console.print(lines)


@app.command("get")
def get_data(name: str, data: Root = None) -> None:
    """Download a data set into the cache; each mirror is tried in turn."""
    for path in datasets.get(name, data, progress=print):
        print(path)
