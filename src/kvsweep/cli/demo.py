"""`kvsweep demo`: a real model decodes while its KV cache is compacted; what it cost, freed and left out, as tables."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kvsweep.cli.terminal import DATA_FAULT, USAGE_FAULT, answer, fail, progress
from kvsweep.kernels.cuda.errors import CudaError
from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.ledger.errors import KvsweepError, UsageError

if TYPE_CHECKING:
    from kvsweep.scenarios.demo.result import DemoResult

COSTS = {
    "cpu_gather_bytes": "copied on the CPU into copy destinations",
    "cpu_destination_blocks": "CPU copy destinations allocated (blocks)",
    "h2d_bytes": "CPU memory to staging",
    "unpack_bytes": "staging to areas",
    "d2h_bytes": "device-written blocks mirrored to the CPU",
    "resident_moved_bytes": "moved from area to area on the device",
    "packed_bytes": "of these, by pack",
    "table_updates": "layer tables written",
    "metadata_bytes": "ids and tables in messages",
    "plan_s": "planning (seconds)",
    "wait_s": "waiting for ranks (seconds)",
}


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="1,024 prompt tokens, block 16: about half a minute.")] = False,
    text: Annotated[Path | None, typer.Option(help="A UTF-8 text of your own as the prompt.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Tokens of the text that are the prompt. [2048]")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens to emit. [256]")] = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after this many rounds instead of --tokens.", min=1)] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens in a block. [32]")] = None,
    budget: Annotated[float, typer.Option(help="Part of the whole blocks that a layer keeps.")] = 0.25,
    every: Annotated[int, typer.Option(help="Tokens between compaction rounds.", min=1)] = 16,
    selection: Annotated[Literal["layer", "shared"], typer.Option(help="A list a layer, or one for all.")] = "layer",
    scorer: Annotated[
        Literal["attention", "quest", "recency"], typer.Option(help="What ranks the blocks.")
    ] = "attention",
    hysteresis: Annotated[float, typer.Option(help="Factor on the scores of resident blocks, from 1.")] = 1.0,
    retain: Annotated[Literal["remap", "move"], typer.Option(help="Rewrite tables, or move bytes.")] = "remap",
    pack: Annotated[
        Literal["auto", "never"], typer.Option(help="Gather scattered areas after a shrinking keep.")
    ] = "auto",
    source: Annotated[
        Literal["source-only", "copy"], typer.Option(help="Name CPU blocks, or gather copies of them first.")
    ] = "source-only",
    method: Annotated[
        Literal["block", "token"], typer.Option(help="Select whole blocks, or tokens to pack (with --source copy).")
    ] = "block",
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="Of weights and KV.")] = "fp32",
    temperature: Annotated[float, typer.Option(help="0 is greedy; above, a seeded generator of the request's.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling, process epochs and the device's order.", min=0)] = 20260916,
    kernels: Annotated[
        Literal["auto", "native", "numpy"],
        typer.Option(help="What copies, ranks and plans: the same bytes either way."),
    ] = "auto",
    device: Annotated[
        Literal["host", "cuda"], typer.Option(help="Where the compacted KV is: memory of this process, or a GPU.")
    ] = "host",
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger file to begin; without it, one in a new temporary folder.")
    ] = None,
    go_on: Annotated[
        bool,
        typer.Option("--go-on", help="Take a ledger that another run has left: settle what was open first."),
    ] = False,
    writer: Annotated[
        Literal["inline", "thread"], typer.Option(help="Ledger written within each call, or by a thread.")
    ] = "inline",
    ack_fd: Annotated[
        int | None, typer.Option(help="Open file descriptor that gets each acknowledged position.", min=0)
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests that share half of their prompts.", min=1)] = 1,
    ranks: Annotated[int, typer.Option(help="Tensor-parallel ranks; each holds some of the KV heads.", min=1)] = 1,
    chaos: Annotated[
        int | None, typer.Option(help="Seed of a storm: late, repeated and failed messages, restarts, a tight pool.")
    ] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="A tiny seeded model with sliding windows.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The closing figures as JSON on stdout.")] = False,
) -> None:
    """Decode with a real model while its KV cache is compacted, and compare with plain decoding."""
    try:
        from kvsweep.scenarios.demo.options import DemoOptions
        from kvsweep.scenarios.demo.run import run_demo
        from kvsweep.scenarios.demo.text import TextError
        from kvsweep.scenarios.demo.weights import MissingModel, ModelFileError
    except ImportError as error:
        fail(f"the demo needs the package's extra 'demo' (in a checkout: pip install '.[demo]'): {error}", USAGE_FAULT)
    defaults = (1024, 96, 16) if quick else (2048, 256, 32)
    prompt, emit, size = (
        given if given is not None else default
        for given, default in zip((prompt_tokens, tokens, block_size), defaults, strict=True)
    )
    options = DemoOptions(
        prompt_tokens=prompt,
        tokens=emit,
        block_size=size,
        budget=budget,
        every=every,
        selection=selection,
        scorer=scorer,
        hysteresis=hysteresis,
        retain=retain,
        pack=pack,
        source=source,
        method=method,
        dtype=dtype,
        temperature=temperature,
        seed=seed,
        rounds=rounds,
        text=text,
        synthetic=synthetic,
        requests=requests,
        ranks=ranks,
        chaos=chaos,
        writer=writer,
        kernels=kernels,
        device=device,
    )
    path = ledger if ledger is not None else Path(tempfile.mkdtemp(prefix="kvsweep-")) / "demo.ledger"
    try:
        with progress("starting") as tell:
            url, command = f"sqlite:{path}", command_line(sys.argv[1:])
            result = run_demo(
                options,
                ledger=url,
                command=command,
                ack_fd=ack_fd,
                go_on=go_on,
                watch=lambda what, done, of: tell(done, of, what),
            )
    except (UsageError, TextError) as error:
        fail(error, USAGE_FAULT)
    except (KvsweepError, MissingModel, ModelFileError, KernelArgumentError, CudaError) as error:
        fail(error, DATA_FAULT)
    except MemoryError as error:
        fail(f"not enough memory for these sizes: {error}", DATA_FAULT)
    except UnicodeEncodeError as error:
        fail(f"--ledger: expected a path in UTF-8, got {str(path)!r} ({error.reason})", USAGE_FAULT)
    except ExceptionGroup as group:
        fail(ours_of(group), DATA_FAULT)
    if as_json:
        answer(result)
    else:
        Console().print(closing_table(result))
    if dtype == "fp32" and not result.lossless:
        fail(f"{result.first_difference} differs from plain decoding", DATA_FAULT)


def command_line(arguments: list[str]) -> list[str]:
    """The command as evidence: without where the output goes and without kernels and device, recorded apart."""
    kept, skip = ["kvsweep"], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in ("--ledger", "--ack-fd", "--kernels", "--device"):
            skip = True
        elif not argument.startswith(("--ledger=", "--ack-fd=", "--kernels=", "--device=", "--json")):
            kept.append(argument)
    return kept


def ours_of(group: ExceptionGroup[Exception]) -> KvsweepError | CudaError:
    """The first error of ours that a task group wrapped. Raises the group itself where there is none."""
    for error in group.exceptions:
        if isinstance(error, KvsweepError | CudaError):
            return error
        if isinstance(error, ExceptionGroup):
            return ours_of(error)
    raise group


# ---- the closing tables


def closing_table(result: DemoResult) -> Group:
    return Group(_text(result), _costs(result), _blocks(result), _run(result))


def _text(result: DemoResult) -> Text:
    words = " ".join(result.text.split())
    return Text(f"… {words[:400]}{' …' if len(words) > 400 else ''}\n", style="italic")


def _costs(result: DemoResult) -> Table:
    table = Table("cost", "reported", "counted", "what it is", title="What it cost")
    for name, meaning in COSTS.items():
        value, counted = result.metrics[name], result.counted.get(name)
        table.add_row(
            name,
            f"{value:,.3f}" if isinstance(value, float) else f"{value:,}",
            "" if counted is None else f"{counted:,}",
            meaning,
        )
    table.caption = "reported: by operations that ended well; counted: by the memories that the bytes went through"
    return table


def _blocks(result: DemoResult) -> Table:
    table = Table("blocks and areas", "count", title="What it freed")
    for name, value in (
        ("physical blocks released", result.physical_blocks_released),
        ("device pool", sum(result.device_blocks)),
        ("owned by one request at most", result.owned_blocks_max),
        ("owned at the end of decoding", result.owned_blocks),
        ("live in the fullest layer", result.live_blocks),
        ("vacant areas at the end", result.vacant_areas),
        ("areas uploaded", result.uploaded_areas),
        ("areas adopted without a copy", result.adopted_areas),
    ):
        table.add_row(name, f"{value:,}")
    if result.requests > 1:
        table.add_row("prompt blocks shared", f"{result.shared_blocks:,}")
        table.add_row("preemptions", f"{result.preemptions:,}")
    for mode, count in result.remap.items():
        table.add_row(f"retained by {mode}", f"{count:,}")
    return table


def _model(model: dict[str, Any]) -> str:
    made = f"SHA-256 {model['sha256']}" if model["sha256"] else "made from the seed"
    return f"{model['name']} {model['dtype']}, {made}"


def _counts(found: dict[str, int]) -> str:
    return "; ".join(f"{count} × {name}" for name, count in sorted(found.items()))


def _crowd(result: DemoResult) -> list[tuple[str, str]]:
    """Rows that only runs with several requests or ranks, or with a storm, have."""
    rows = []
    if result.requests > 1 or result.ranks > 1:
        rows.append(("requests, ranks", f"{result.requests}, {result.ranks}"))
    if result.refused:
        rows.append(("rounds that ended early", _counts(result.refused)))
    if result.storm:
        rows.append(("the storm", _counts(result.storm)))
    return rows


def _run(result: DemoResult) -> Table:
    from kvsweep.scenarios.demo.options import DRAFT_TOKENS

    same = "token for token" if result.lossless else f"differs first in {result.first_difference}"
    held = {name: count for name, count in result.held_at_end.items() if count}
    table = Table("run", title="The run")
    table.add_column("", overflow="fold")
    for name, value in (
        ("equals plain decoding", same),
        ("tokens", f"{sum(map(len, result.tokens.values()))} in {result.verifies} verifies, {result.rounds} rounds"),
        ("draft tokens accepted a verify", f"{result.accepted_per_verify:.2f} of {DRAFT_TOKENS}"),
        *_crowd(result),
        ("held when all had ended", _counts(held) if held else "nothing: every block is free again"),
        ("seconds", ", ".join(f"{what} {took:.1f}" for what, took in result.seconds.items())),
        ("model", _model(result.model)),
        ("text", result.source.splitlines()[0]),
        ("seed", str(result.seed)),
        ("digest", result.digest),
        ("kernels", result.kernels),
        ("not active, not run", ", ".join(result.not_run)),
        ("ledger", f"{result.ledger} ({result.events} events)"),
        ("look back", f"kvsweep log replay {result.ledger} --verify"),
    ):
        table.add_row(name, value)
    return table
