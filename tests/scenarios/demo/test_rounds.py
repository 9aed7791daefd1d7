"""Many rounds: what a request owns stays within the bound, and nothing that is remembered grows with the rounds."""

from collections.abc import Sized
from typing import Any

import anyio
import msgspec
import pytest
from tests.scenarios.demo.sessions import (
    SEED,
    generate,
    opened,
    request_of,
    settings,
    text_tokens,
)

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import HOLE
from kvsweep.ledger.state import COMMANDS_KEPT, State
from kvsweep.scenarios.demo.loop import Session
from kvsweep.scenarios.demo.synthetic import synthetic_model

FIRST_ROUND, SAMPLED = 1, 20


class Occupancy:
    """Blocks of the full-attention group, recounted from the relation after every event; the tail is left out.

    bound    the most areas that one layer ever held at once since the first round, whoever held them: what the blocks
             may number if only uploads reserve any, because these fill vacant areas first
    adopted  blocks that the running round took over from the tail: they come whole, whatever areas are vacant
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.layout = session.layout
        self.round = 0
        self.bound = 0
        self.adopted: set[int] = set()
        self.seen: list[tuple[int, int]] = []  # (owned, bound) at the end of each round
        self.most = 0
        self.counted = session.kv.driver.state.ownership

    def blocks(self) -> tuple[int, int]:
        """(blocks that the request owns, areas that its fullest layer holds)."""
        state, key = self.session.kv.driver.state, self.session.key
        tail = {block.physical[0] for block in request_of(self.session).tail if block.physical[0] != HOLE}
        owned = set(state.ownership.owned(key, self.layout)[0].tolist()) - tail
        held: dict[int, set[int]] = {layer: set() for layer in self.layout.active_layers}
        for holding in state.ownership.holders(key).values():
            for layer, ids in holding.areas.items():
                if layer in held:
                    held[layer] |= set(ids.tolist()) - tail
        return len(owned), max(len(areas) for areas in held.values())

    def watch(self, event: Event) -> None:
        if isinstance(event, e.BlocksLeased | e.RetainPlanned):
            tail = {block.logical: block.physical[0] for block in request_of(self.session).tail}
            self.adopted |= {tail[logical] for logical in event.adopted.ids.tolist()}
        ownership = self.session.kv.driver.state.ownership
        if ownership is self.counted:
            return
        self.counted = ownership
        owned, held = self.blocks()
        self.bound = max(self.bound, held)
        self.most = max(self.most, owned)
        allowed = self.bound + len(self.adopted)
        assert owned <= allowed, f"round {self.round}, {type(event).__name__}: {owned} blocks owned, {allowed} allowed"

    def ended(self) -> None:
        """Called when a round has ended: what it adopted must have found its place."""
        self.round += 1
        self.adopted.clear()
        owned, _ = self.blocks()
        assert owned <= self.bound, f"round {self.round}: {owned} blocks owned at its end, {self.bound} allowed"
        self.seen.append((owned, self.bound))


def sizes(state: State) -> dict[str, int]:
    """Length of everything in the state that has one, by its path; what grows with the sequence is left out."""
    found: dict[str, int] = {}

    def visit(path: str, value: Any) -> None:
        if isinstance(value, msgspec.Struct):
            for field in value.__struct_fields__:
                visit(f"{path}.{field}", getattr(value, field))
        elif isinstance(value, dict):
            found[path] = len(value)
            for inner in value.values():
                visit(f"{path}[]", inner)
        elif isinstance(value, tuple | list) and isinstance(value, Sized):
            found[path] = max(found.get(path, 0), len(value))
            for inner in value:
                visit(f"{path}[]", inner)

    visit("state", state)
    return found


async def many_rounds(rounds: int, every: int, block_size: int, factor: float) -> Occupancy:
    """Rounds beside steps, as the demo runs them, with the laws checked each time."""
    selection = {"incumbent_factor": factor}
    async with opened(
        synthetic_model(SEED),
        text_tokens(32 * block_size),
        settings(selection=selection),
        block_size=block_size,
        every=every,
        room=5 * (rounds + 4) * every + 64,
    ) as session:
        driver = session.kv.driver
        session.feed()
        await session.round()
        view = request_of(session).view
        assert view is not None
        occupancy = Occupancy(session)
        owned, _ = occupancy.blocks()
        assert owned == int(view.physical.counts.max()), "pack after a first keep leaves what the fullest layer needs"
        assert session.progress.packs == FIRST_ROUND
        driver.watch(occupancy.watch)
        early: dict[str, int] = {}

        def stepped(_: int) -> None:
            if session.progress.rounds > occupancy.round + FIRST_ROUND:
                occupancy.ended()
                assert laws.check(driver.state) == []
            if session.progress.rounds == SAMPLED and not early:
                early.update(sizes(driver.state))

        await generate(session, 10**6, rounds=rounds, on_step=stepped)
        await session.kv.settled()
        assert session.progress.rounds >= rounds
        late = sizes(driver.state)
        # Idempotency keys are remembered up to a limit; what is open at one moment and not at another is bounded.
        grown = {path: (early.get(path, 0), size) for path, size in late.items() if size > early.get(path, 0) + 3}
        assert {path: sizes for path, sizes in grown.items() if not path.endswith(".commands")} == {}
        assert len(request_of(session).commands) == min(COMMANDS_KEPT, 2 * rounds) or rounds < COMMANDS_KEPT
    return occupancy


def test_b6_b7_sixty_rounds_stay_within_the_bound() -> None:
    """B6, B7: with hysteresis hardly anything is uploaded, so that only adopted tail blocks scatter the view."""
    occupancy = anyio.run(many_rounds, 60, 2, 4, 2.0)
    assert occupancy.round >= 50
    assert occupancy.most > min(owned for owned, _ in occupancy.seen), "nothing was ever scattered"


@pytest.mark.full
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_b6_b7_a_thousand_rounds_stay_within_the_bound(factor: float) -> None:
    """B6, B7: a round a step, the laws after each."""
    occupancy = anyio.run(many_rounds, 1000, 1, 8, factor)
    assert occupancy.round >= 900
