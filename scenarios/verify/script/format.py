"""A scenario file: title, world, steps, faults, expectations. Typed; a misspelt field is refused with its path."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from kvsweep.scenarios.verify.script.faults import Fault
from kvsweep.scenarios.verify.script.steps import Step
from kvsweep.scenarios.verify.script.world import Count, Part, ScenarioWorld

SEED = 20260916
MAX_STEPS = MAX_FAULTS = 1000


class Expect(Part, frozen=True, kw_only=True):
    """What must be seen. Every law is checked in every run, whether it is named or not.

    always     laws that the scenario is about, by name
    sometimes  situations that must be reached, by name
    events     exact number of facts of a kind: `upload_aborted = 1`
    verdicts   exact number of reports from ranks and the producer with this verdict: duplicate, stale, future, conflict
    final      figures at the end, exactly: what `kvsweep scenario run --json` shows under `figures`
    steps      judged: each step ends as it says; free: a step may be refused, abort, find nothing to speak of, or be
               left behind where it waits for long: for scenarios that nobody has written. Laws are judged all the same
    """

    always: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()
    events: dict[str, Count] = field(default_factory=dict)
    verdicts: dict[str, Count] = field(default_factory=dict)
    final: dict[str, int] = field(default_factory=dict)
    steps: Literal["judged", "free"] = "judged"


class Script(Part, frozen=True, kw_only=True):
    """One scenario.

    title   a noun phrase: what happens
    shows   contract clauses, in short form: "F2", "I: stale ACK"
    about   a sentence or two for readers
    """

    title: Annotated[str, Meta(min_length=1, max_length=200)]
    about: str = ""
    shows: tuple[str, ...] = ()
    seed: Annotated[int, Meta(ge=0, le=2**62)] = SEED  # of links, devices and choices
    world: ScenarioWorld = ScenarioWorld()  # what there is
    step: Annotated[tuple[Step, ...], Meta(max_length=MAX_STEPS)] = ()  # what is done, in order
    fault: Annotated[tuple[Fault, ...], Meta(max_length=MAX_FAULTS)] = ()  # what goes wrong
    expect: Expect = Expect()  # what must be seen
