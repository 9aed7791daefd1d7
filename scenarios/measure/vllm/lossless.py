"""Lossless mode against stock: four configurations, faults on the way back, and the start-up as a user writes it."""

from __future__ import annotations

from typing import Any, Final

from kvsweep.scenarios.measure.vllm.job import BLOCK, Batch, Engine, Ran
from kvsweep.scenarios.measure.vllm.judge import MARGIN, SAME_ATTENTION, compare, pool_faults, summary_faults
from kvsweep.scenarios.measure.vllm.kit import Kit, prompts

REQUESTS: Final = 16
TOKENS: Final = 96
ABORTED: Final = {3: 20, 9: 50}  # requests that their client gives up, after so many tokens
COMMITS: Final = 200  # over the four configurations together

# Each pair of values of ranks, prefix caching and chunking occurs once; compiled goes with chunked.
CONFIGURATIONS: Final[dict[str, dict[str, Any]]] = {
    "tp1": {"ranks": 1, "prefix_caching": False, "chunked": None, "eager": True},
    "tp1-cached-chunked-compiled": {"ranks": 1, "prefix_caching": True, "chunked": 64, "eager": False},
    "tp3-cached": {"ranks": 3, "prefix_caching": True, "chunked": None, "eager": True},
    "tp3-chunked-compiled": {"ranks": 3, "prefix_caching": False, "chunked": 64, "eager": False},
}
POISONED: Final = "tp1-cached-chunked-compiled"  # blocks that went back are overwritten, beside shared prefixes
SHAPE: Final[dict[str, Any]] = {"blocks": 44, "context": 512, "requests": REQUESTS}


def batch(kit: Kit, *, shared: bool) -> Batch:
    """Sixteen prompts of 72 to 360 tokens; with `shared`, four beginnings of two blocks that four prompts each have."""
    given = prompts(kit.tokens, count=REQUESTS, shortest=72, longest=360, shared=2 * BLOCK if shared else 0, groups=4)
    return Batch(prompts=given, tokens=TOKENS, abort=ABORTED)


def against_stock(
    kit: Kit, name: str, stock: Ran, ours: Ran, engine: Engine, *, commits: int, forgiven: bool = False
) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Faults, figures and rows of a lossless run: tokens, pool, summary, ledger."""
    compared, summary = compare(stock, ours), kit.summary(engine)
    faults = [
        f"{name}: request {one.request}, token {one.position}: stock says {one.stock}, we {one.ours}, and its own best "
        f"two are {one.gap:.2g} apart (more than {MARGIN:g})"
        for one in compared.wrong
    ]
    if not compared.largest_logprob_delta <= SAME_ATTENTION:
        faults.append(f"{name}: logprobs differ by up to {compared.largest_logprob_delta:.2g}")
    found = [*pool_faults(ours), *summary_faults(summary, released=True, commits=commits)]
    if stock.preemptions == 0 or ours.preemptions == 0:
        found.append(f"preemptions: expected some, got {stock.preemptions} in stock and {ours.preemptions} in ours")
    faults += [f"{name}: {one}" for one in [*found, *kit.replay_faults(engine, summary)]]
    figures = {"compared": compared, "summary": summary, "preemptions": [stock.preemptions, ours.preemptions]}
    excused = f", {len(compared.excused)} excused" if compared.excused else ""
    rows = [
        (f"{name}: tokens equal to stock", f"{compared.equal:,} of {compared.positions:,}{excused}"),
        (f"{name}: largest difference of a logprob", f"{compared.largest_logprob_delta:.1e}"),
        (f"{name}: commits, blocks given back", f"{summary['commits']:,}, {summary['released_blocks']:,}"),
        (f"{name}: checksums wrong", f"{summary['checksums']['wrong']} of {summary['checksums']['checked']:,}"),
        (f"{name}: preemptions, stock and ours", f"{stock.preemptions}, {ours.preemptions}"),
    ]
    return faults, figures, rows


def check_lossless(kit: Kit) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Every configuration: stock's run, then ours over the same prompts and the same small pool."""
    faults: list[str] = []
    figures: dict[str, Any] = {}
    rows: list[tuple[str, str]] = []
    commits = 0
    for name, shape in CONFIGURATIONS.items():
        asked = batch(kit, shared=shape["prefix_caching"])
        (stock,) = kit.run(kit.engine(f"lossless-{name}-stock", **SHAPE, **shape), asked)
        kit.kept[name] = stock
        poison = name == POISONED
        engine = kit.engine(f"lossless-{name}", connector={"poison": poison}, **SHAPE, **shape)
        (ours,) = kit.run(engine, asked)
        found, figures[name], more = against_stock(kit, name, stock, ours, engine, commits=1)
        faults += found
        rows += more
        summary = figures[name]["summary"]
        commits += summary["commits"]
        if poison:
            rows.append((f"{name}: blocks poisoned", f"{summary['poisoned_blocks']:,}"))
            if summary["poisoned_blocks"] == 0:
                faults.append(f"{name}: poisoned_blocks: expected some, got 0")
    rows.append(("commits in all", f"{commits:,}"))
    if commits < COMMITS:
        faults.append(f"commits: expected at least {COMMITS} over all configurations, got {commits}")
    return faults, figures, rows


FAULTS: Final[dict[str, dict[str, Any]]] = {
    "dropped": {"drop": 0.3, "seed": 1},
    "duplicated": {"duplicate": 0.6, "seed": 2},
    "delayed": {"delay": 0.6, "seed": 3},
    "all three": {"drop": 0.2, "duplicate": 0.3, "delay": 0.3, "seed": 4},
}


def check_faults(kit: Kit) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """The worker half loses, repeats and holds back completions: same tokens, each operation committed once."""
    shape, asked = CONFIGURATIONS["tp1"], batch(kit, shared=False)
    if "tp1" not in kit.kept:
        (kit.kept["tp1"],) = kit.run(kit.engine("faults-stock", **SHAPE, **shape), asked)
    stock = kit.kept["tp1"]
    faults: list[str] = []
    figures: dict[str, Any] = {}
    rows: list[tuple[str, str]] = []
    for name, given in FAULTS.items():
        connector = {"faults": given, "deadline_s": 0.5}
        engine = kit.engine(f"faults-{name.replace(' ', '-')}", connector=connector, **SHAPE, **shape)
        (ours,) = kit.run(engine, asked)
        found, figures[name], _ = against_stock(kit, name, stock, ours, engine, commits=1)
        summary = figures[name]["summary"]
        done = summary["faults"]
        wanted = ("dropped", "duplicated", "delayed") if name == "all three" else (name,)
        found += [f"{name}: completions {kind}: expected some, got none" for kind in wanted if not done[kind]]
        faults += found
        acks = ", ".join(f"{count} {kind}" for kind, count in summary["acks"].items())
        injected = ", ".join(f"{count} {kind}" for kind, count in done.items() if count)
        rows += [
            (f"{name}: completions", injected),
            (f"{name}: acknowledgements", acks),
            (f"{name}: commits, aborted", f"{summary['commits']}, {summary['aborted']}"),
        ]
    return faults, figures, rows


def check_start(kit: Kit) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """One option on an ordinary engine, its core in a process of its own: it serves, and it goes down cleanly."""
    given = prompts(kit.tokens, count=4, shortest=40, longest=120)
    asked = Batch(prompts=given, tokens=32)
    shape: dict[str, Any] = {"blocks": 64, "context": 512, "multiprocess": True}
    (stock,) = kit.run(kit.engine("start-stock", **shape), asked)
    plain = Engine(name="start", model=str(kit.model), module=kit.module, connector={}, **shape)
    (ours,) = kit.run(plain, asked)
    compared = compare(stock, ours)
    faults = [f"start: {len(compared.wrong)} requests differ from stock"] if compared.wrong else []
    output = (kit.folder / "start" / "output.txt").read_text(encoding="utf-8", errors="replace")
    if "Traceback" in output:
        faults.append("start: its output has a traceback")
    config = '{"kv_connector": "KVSweepConnector", "kv_role": "kv_both"}'
    return faults, {"compared": compared}, [(config, f"{compared.equal} of {compared.positions} tokens equal")]
