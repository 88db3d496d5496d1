"""Every order of messages between clients and nodes: tokens grow, and one at a time has the lock.

The search drives the real steps, and so finds what is wrong with a rule that is put in their place.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.locks.redis.scripts import Script, keys_of
from fencing.locks.redlock import acquiring
from fencing.locks.redlock.asking import Wanted
from fencing.locks.redlock.scripts import ACCEPT, LOCK, RELEASE
from tests.support.redlock_model import Node, Violation, explore, run_script, wander

if TYPE_CHECKING:
    from collections.abc import Generator

    from fencing.embedded import ValkeyProcess

WALKS = 1000


def written_back(
    call: Any,
    holder: str,
    token: int,
    *,
    trusted_until: float,
) -> Generator[Any, Any, int]:
    """The rule that is not enough: the largest counter and one, written back to a majority."""
    any_answer = Wanted(frozenset({"accepted", "above", "absent", "other"}))
    yield from call.ask(any_answer, ACCEPT, holder, str(token))
    return token


def test_in_every_order_a_later_token_is_larger() -> None:
    found = explore()
    assert found.states > 5000
    # Both ways through, and nodes that have refused a token.
    assert found.grants == {(0, 1), (1, 2)}
    assert found.refused


def test_a_largest_counter_that_is_written_back_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acquiring, "accepted", written_back)
    with pytest.raises(Violation, match="is granted the lock, token 1, after 1"):
        explore()


def wander_about() -> tuple[set[tuple[int, int]], int]:
    grants: set[tuple[int, int]] = set()
    refused = 0
    for seed in range(WALKS):
        found = wander(seed)
        grants |= found.grants
        refused += found.refused
    return grants, refused


def test_wherever_one_wanders_a_later_token_is_larger() -> None:
    """Three clients with several rounds, repeated requests, and leases that run out."""
    grants, refused = wander_about()
    assert {(0, 1), (1, 2), (2, 3)} <= grants
    assert refused > 100


def test_whoever_believes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquiring, "trust_ends", lambda asked_at, ttl: asked_at + ttl + 1e6)
    with pytest.raises(Violation, match="while another has it"):
        wander_about()


SCRIPTS: dict[str, Script] = {"lock": LOCK, "accept": ACCEPT, "release": RELEASE}
WORD_AND_ECHO = 2


def told_by(client: redis.Redis, keys: tuple[bytes, ...], script: str, *args: str) -> list[str]:
    answer: Any = client.eval(SCRIPTS[script].text, len(keys), *keys, *args)
    texts = [fact.decode() if isinstance(fact, bytes) else str(fact) for fact in answer]
    assert texts[1] == args[0]
    word, facts = texts[0], texts[WORD_AND_ECHO:]
    return [word, *(facts[1:3] if word == "held" else facts)]


@pytest.mark.parametrize("seed", range(20))
def test_the_modelled_scripts_are_the_real_ones(own_nodes: list[ValkeyProcess], seed: int) -> None:
    chance = random.Random(seed)
    holders = [f"{stem * 24}{number:08x}" for stem in "ab" for number in range(2)]
    keys = keys_of(f"model-{seed}", "r")
    node = Node()
    with redis.Redis(port=own_nodes[0].port) as client:
        for _ in range(60):
            holder = chance.choice(holders)
            token = str(chance.randint(1, 6))
            script, *args = chance.choice(
                [
                    ("lock", holder, "60000", "me"),
                    ("lock", holder, "60000", "me"),
                    ("accept", holder, token),
                    ("accept", holder, token, "own"),
                    ("release", holder),
                    ("release", holder, *(["unknown"] if chance.random() < 0.05 else [])),
                ]
            )
            if script == "release" and chance.random() < 0.02:
                args = [holder[:24], "unknown"]
            node, answer = run_script(node, script, tuple(args))
            assert told_by(client, keys, script, *args) == list(answer)
