"""The command line. Every error is one sentence on stderr and a non-zero exit; every command has --json."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal, NoReturn, cast

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import kvsweep
from kvsweep.cli.explore import explore
from kvsweep.cli.log import log_app
from kvsweep.cli.model import model
from kvsweep.cli.scenario import scenario_app
from kvsweep.cli.simulate import simulate
from kvsweep.kernels.cuda.errors import CudaError
from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.ledger.errors import KvsweepError, UsageError

DATA_FAULT, USAGE_FAULT = 1, 2
# Newer releases of typer carry click inside, older ones ask for it; the base class is the same by either name.
CommandLineFault = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Coordinator of KV-cache compaction for LLM serving.",
)
app.add_typer(log_app, name="log")
app.add_typer(scenario_app, name="scenario")
app.command()(simulate)
app.command()(explore)
app.command()(model)


def fail(message: object, code: int) -> NoReturn:
    """One sentence on stderr."""
    typer.echo(f"kvsweep: {' '.join(str(message).split())}", err=True)
    raise typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(kvsweep.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Nothing to do before a command."""


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


@app.command()
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
        from kvsweep.cli.closing import closing_table
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
    console = Console(stderr=True)
    try:
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("starting", total=None)

            def watch(what: str, done: int, of: int) -> None:
                bar.update(task, description=what, completed=done, total=of)

            url, command = f"sqlite:{path}", command_line(sys.argv[1:])
            result = run_demo(options, ledger=url, command=command, ack_fd=ack_fd, go_on=go_on, watch=watch)
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
        typer.echo(msgspec.json.encode(result))
    else:
        Console().print(closing_table(result))
    if dtype == "fp32" and not result.lossless:
        fail(f"{result.first_difference} differs from plain decoding", DATA_FAULT)


@app.command()
def soak(
    requests: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 256,
    rounds: Annotated[int, typer.Option(help="Compaction rounds over all requests.", min=1)] = 10_000,
    ranks: Annotated[int, typer.Option(help="Ranks; two KV heads are there to split.", min=1, max=2)] = 2,
    seed: Annotated[int, typer.Option(help="Of selections.", min=0)] = 20260916,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Many requests and rounds without a model: does any table, queue or history grow?"""
    import anyio

    from kvsweep.scenarios.verify.soak import Soak

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("rounds", total=rounds)
        run = Soak(
            requests=requests,
            rounds=rounds,
            ranks=ranks,
            seed=seed,
            watch=lambda done: bar.update(task, completed=done),
        )
        result = anyio.run(run.run)
    if as_json:
        typer.echo(msgspec.json.encode(result))
    else:
        table = Table(
            "largest size", "first half", "second half", title=f"{result.rounds:,} rounds, {result.lives:,} lives"
        )
        for name, (early, late) in result.sizes.items():
            table.add_row(name, f"{early:,}", f"{late:,}")
        Console().print(table)
    if result.grown:
        fail(f"these have grown: {', '.join(result.grown)}", DATA_FAULT)


@app.command()
def bench(
    name: Annotated[
        Literal["planner", "selector", "gather", "scatter", "unpack", "retain", "log", "round"],
        typer.Argument(help="Which kernels, the ledger, or a whole round of the coordinator."),
    ],
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; the minimum counts.", min=1)] = 15,
    threads: Annotated[int, typer.Option(help="Of ours and of torch.", min=1, max=64)] = 1,
    isa: Annotated[
        Literal["scalar", "avx2", "avx512"] | None, typer.Option(help="Use no better instruction set than this.")
    ] = None,
    clock: Annotated[
        Literal["wall", "cpu"], typer.Option(help="CPU time is steadier where others use the machine; one thread only.")
    ] = "wall",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it works, measures nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Kernels, ledger and rounds against their peers, the machine's limits or their goals, measured in one run."""
    if name == "log":
        _bench_log(rounds=rounds, quick=quick, clock=clock, as_json=as_json)
        return
    if name == "round":
        _bench_round(rounds=rounds, quick=quick, clock=clock, as_json=as_json)
        return
    try:
        from kvsweep.scenarios.measure.bench.run import WIDE, report_table, run_bench
    except ImportError as error:
        fail(f"bench needs the native kernels and the package's extra 'demo': {error}", USAGE_FAULT)
    try:
        report = run_bench(name, rounds=rounds, quick=quick, threads=threads, isa=isa, clock=clock)
    except KernelArgumentError as error:
        fail(error, USAGE_FAULT)
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        console = Console(width=None if sys.stdout.isatty() else WIDE)  # a file has no width
        console.print(report_table(name, report, console.width))


def _bench_round(*, rounds: int, quick: bool, clock: Literal["wall", "cpu"], as_json: bool) -> None:
    from kvsweep.scenarios.measure.bench.round import QUICK, Size, round_table, run_round_bench

    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("rounds", total=None)
        report = run_round_bench(
            QUICK if quick else Size(),
            rounds=rounds,
            clock=clock,
            watch=lambda done, of: bar.update(task, completed=done, total=of),
        )
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        Console().print(round_table(report))


def _bench_log(*, rounds: int, quick: bool, clock: Literal["wall", "cpu"], as_json: bool) -> None:
    from kvsweep.scenarios.measure.bench.log import run_log_bench
    from kvsweep.scenarios.measure.bench.log_report import log_table

    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("making events", total=None)
        report = run_log_bench(
            quick=quick, rounds=rounds, clock=clock, progress=lambda step: bar.update(task, description=step)
        )
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        Console().print(log_table(report))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False) -> None:
    """What is active here, what is not, and why."""
    from kvsweep.cli.doctor import examine, findings_table

    findings = examine()
    if as_json:
        typer.echo(msgspec.json.encode(findings))
    else:
        Console().print(findings_table(findings))


def main() -> None:
    """Entry point: also what the parser says of a command line becomes one sentence."""
    try:
        code = app(standalone_mode=False)
    except CommandLineFault as error:
        message, code = error.format_message(), USAGE_FAULT
        if message:  # none where no command was given: the help has been shown
            typer.echo(f"kvsweep: {message}", err=True)
    sys.exit(code)
