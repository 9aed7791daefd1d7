"""F3: a verify that is called again emits the same tokens, leaves the generator as it was, and uploads once."""

import pytest
from tests.scenarios.demo.sessions import (
    SEED,
    device_bytes,
    first_difference,
    opened,
    request_of,
    settings,
    text_tokens,
)

from kvsweep.ledger import events as e
from kvsweep.ledger.messages import Preempt
from kvsweep.scenarios.demo.model import Model
from kvsweep.scenarios.demo.synthetic import synthetic_model

BLOCK, PROMPT = 8, 120


@pytest.fixture(scope="module")
def model() -> Model:
    return synthetic_model(SEED)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_f3_a_retried_verify_gives_the_same_tokens_and_the_same_generator_state_and_uploads_once(
    model: Model, temperature: float
) -> None:
    """The answer to a verify is lost after it was made; its caller goes back to what it held and calls again."""
    prompt = text_tokens(PROMPT)
    async with opened(model, prompt, settings(), block_size=BLOCK, temperature=temperature) as session:
        kv, events = session.kv, list[e.Event]()
        kv.driver.watch(events.append)
        session.feed()
        await kv.settled()
        kv.handle(Preempt(request=session.key))  # what is selected next has to come from the CPU
        await kv.settled()
        assert session.resume()
        selection = session.select()
        drawn = 0
        for number in range(6):
            name = f"select-{selection.selection_revision}"
            first = await kv.upload(selection, idempotency_key=name)
            view, copied = request_of(session).view, kv.driver.metrics.h2d_bytes
            tokens, state = list(session.tokens), session.sampler.state()
            session.step()
            emitted, after, held = session.tokens[len(tokens) :], session.sampler.state(), device_bytes(session)
            assert emitted

            session.tokens[:] = tokens
            session.sampler.restore(state)
            again = await kv.upload(selection, idempotency_key=name)
            assert again.operation == first.operation, "the first attempt's result, no second attempt"
            session.step()
            assert session.tokens[len(tokens) :] == emitted, f"seed {SEED}, step {number}"
            assert session.sampler.state() == after, f"seed {SEED}, step {number}"
            assert (state == after) == (temperature == 0.0)
            assert first_difference(held, device_bytes(session)) is None
            assert request_of(session).view == view
            assert kv.driver.metrics.h2d_bytes == copied > 0
            drawn += len(emitted)
        planned = [event for event in events if isinstance(event, e.UploadPlanned)]
        assert len(planned) == 1, "one upload over all steps and retries"
        assert session.sampler.draws == (0 if temperature == 0.0 else 1 + drawn)
