"""Sampling: greedy, counted draws, and a verification that equals plain decoding token for token."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kvsweep.scenarios.demo.sampling import Sampler, verify_tokens

SEED = 20260916
VOCAB = 12


def sampler(temperature: float = 1.0, seed: int = SEED, request_id: str = "req-7") -> Sampler:
    return Sampler(temperature=temperature, seed=seed, request_id=request_id)


def logits_after(prefix: list[int], salt: int) -> Tensor:
    """A toy language model: logits that depend on the last three tokens."""
    generator = np.random.default_rng([salt, *prefix[-3:]])
    return torch.from_numpy(generator.normal(0, 1.5, VOCAB).astype(np.float32))


def plain(count: int, chosen: Sampler, stop: tuple[int, ...] = ()) -> list[int]:
    out = [3]
    while len(out) <= count:
        out.append(chosen.sample(logits_after(out, 1)))
        if out[-1] in stop:
            break
    return out[1:]


def speculative(count: int, chosen: Sampler, draft_salt: int, stop: tuple[int, ...] = ()) -> tuple[list[int], int]:
    """Draft 4, verify, repeat; returns the tokens and the number of verifies."""
    out, verifies = [3], 0
    while len(out) <= count and out[-1] not in stop:
        drafted: list[int] = []
        for ahead in range(min(4, count - len(out))):
            drafted.append(chosen.propose(logits_after(out + drafted, draft_salt), ahead=ahead))
        target = torch.stack([logits_after(out + drafted[:j], 1) for j in range(len(drafted) + 1)])
        out += verify_tokens(target, drafted, chosen, stop=stop)
        verifies += 1
    return out[1:], verifies


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("draft_salt", [1, 2])
def test_speculative_output_and_state_equal_plain(temperature: float, draft_salt: int) -> None:
    """Whatever the draft says; a draft that knows the target is accepted whole."""
    one, two = sampler(temperature), sampler(temperature)
    tokens, verifies = speculative(101, two, draft_salt)
    assert tokens == plain(101, one)
    assert one.state() == two.state()
    assert (verifies == math.ceil(101 / 5)) == (draft_salt == 1)


def test_end_of_text_ends_a_verify_as_it_ends_plain_decoding() -> None:
    one, two = sampler(), sampler()
    expected = plain(500, one, stop=(5,))
    assert expected[-1] == 5
    assert speculative(500, two, 1, stop=(5,))[0] == expected
    assert one.state() == two.state()


def test_f3_retried_verify_gives_the_same_tokens_and_state() -> None:
    """F3: a retry from the kept state repeats the tokens and leaves the state byte-equal."""
    chosen = sampler()
    plain(3, chosen)
    before = chosen.state()
    target = torch.stack([logits_after([1], j) for j in range(5)])
    drafted = [chosen.propose(target[j], ahead=j) for j in range(4)]
    assert chosen.state() == before  # proposing draws nothing
    first = verify_tokens(target, drafted, chosen)
    after = chosen.state()
    chosen.restore(before)
    assert verify_tokens(target, drafted, chosen) == first
    assert chosen.state() == after
    assert len(first) == 5


def test_draws_are_counted_for_emitted_tokens_only() -> None:
    chosen = sampler()
    target = torch.stack([logits_after([1], j) for j in range(5)])
    wrong = [(chosen.propose(target[0], ahead=0) + 1) % VOCAB, 0, 0, 0]
    assert len(verify_tokens(target, wrong, chosen)) == 1
    assert chosen.draws == 1
    greedy = sampler(0.0)
    verify_tokens(target, wrong, greedy)
    assert greedy.draws == 0


def test_frequencies_follow_the_softmax() -> None:
    """20,000 draws: every count within 4.5 standard deviations of what softmax(logits / T) expects."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -30.0])
    chosen, n = sampler(1.5), 20_000
    counts = np.bincount([chosen.sample(logits) for _ in range(n)], minlength=5)
    p = np.exp(np.array([0.0, 1.0, -1.0, 2.0, -30.0]) / 1.5)
    p /= p.sum()
    sigma = np.sqrt(n * p * (1 - p))
    assert np.all(np.abs(counts - n * p) <= 4.5 * sigma + 1e-3), (SEED, counts.tolist())


def test_each_request_and_seed_has_its_own_draws() -> None:
    flat = torch.zeros(1000)
    runs = [[s.sample(flat) for _ in range(8)] for s in (sampler(), sampler(seed=1), sampler(request_id="req-8"))]
    assert runs[0] != runs[1] != runs[2] != runs[0]
    again = sampler()
    assert [again.sample(flat) for _ in range(8)] == runs[0]
    assert len(set(runs[0])) == 8


def test_greedy_takes_the_smallest_id_of_a_tie() -> None:
    assert sampler(0.0).sample(torch.tensor([1.0, 3.0, 3.0, 2.0])) == 1


def test_a_certain_token_is_always_drawn() -> None:
    chosen = sampler(0.01)
    assert {chosen.sample(torch.tensor([-1e4, 5.0, -1e4])) for _ in range(50)} == {1}


@pytest.mark.parametrize(("draw", "token"), [(0.0, 1), (0.5 - 2**-53, 1), (0.5, 2), (1 - 2**-53, 2)])
def test_the_ends_of_the_draw_never_reach_a_token_without_weight(
    monkeypatch: pytest.MonkeyPatch, draw: float, token: int
) -> None:
    """Tokens 0 and 3 have weight 0; 1 and 2 share the rest, each step closed below and open above."""
    chosen = sampler()
    monkeypatch.setattr(chosen, "_uniform", lambda index: draw)
    assert chosen.sample(torch.tensor([-1e4, 2.0, 2.0, -1e4])) == token


def test_sampler_refuses_bad_input() -> None:
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"temperature: expected a finite number >= 0, got"):
            sampler(bad)
    with pytest.raises(ValueError, match=r"seed: expected an integer >= 0, got -1"):
        sampler(seed=-1)
    with pytest.raises(ValueError, match=r"logits\[1\]: expected a finite number, got nan"):
        sampler().sample(torch.tensor([0.0, float("nan")]))
    with pytest.raises(ValueError, match=r"logits: expected \[vocab\], got shape \(1, 2\)"):
        sampler().sample(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"ahead: expected at least 0 tokens, got -1"):
        sampler().propose(torch.zeros(2), ahead=-1)
    with pytest.raises(ValueError, match=r"target_logits: expected \[3, vocab\], got \(2, 4\)"):
        verify_tokens(torch.zeros(2, 4), [1, 2], sampler())
    with pytest.raises(ValueError, match=r"state: expected 24 bytes of this seed and request"):
        sampler().restore(sampler(seed=2).state())
