"""Whatever cannot be meant is refused with the path of the field, before anything runs."""

from pathlib import Path

import pytest

from kvsweep.ledger.errors import SettingsError
from kvsweep.scenarios.verify.script.load import load_script, parse

FORMAT = "expected a field and value of the format"
OPEN = '[[step]]\ndo = "open"\nblocks = 2\n'


def refusal(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse(f'title = "x"\n{text}', "file.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wrold = 1", "$: FORMAT, got Object contains unknown field `wrold`"),
        (
            "[world]\nblok_size = 4",
            "$.world: FORMAT, got Object contains unknown field `blok_size`",
        ),
        (
            "[world]\nblock_size = 0",
            "$.world.block_size: FORMAT, got Expected `int` >= 1",
        ),
        (
            '[[step]]\ndo = "opne"',
            "$.step[0].do: FORMAT, got Invalid value 'opne'",
        ),
        (
            '[[step]]\ndo = "open"\nblokcs = 2',
            "$.step[0]: FORMAT, got Object contains unknown field `blokcs`",
        ),
        (
            '[[fault]]\ndo = "delay"\non = { message = "done", rnk = 1 }',
            "$.fault[0].on: FORMAT, got Object contains unknown field `rnk`",
        ),
        (
            '[[fault]]\ndo = "delay"\non = { message = "doen" }\nturns = 1',
            "$.fault[0].on.message: FORMAT, got Invalid enum value 'doen'",
        ),
        (
            '[[fault]]\ndo = "drop"\non = { message = "done" }\n[[step]]\ndo = "wait"\nuntil = { event = "finishd" }',
            "$.step[0].until.event: expected one of the events",
        ),
        (
            '[[fault]]\ndo = "drop"\non = { message = "done", rank = 2 }',
            "$.fault[0].on.rank: expected a rank below 2, got 2",
        ),
        (
            '[[fault]]\ndo = "delay"\non = { message = "acknowledge", rank = 0 }\nturns = 1',
            "$.fault[0].on.rank: expected no rank for the producer's acknowledge, got 0",
        ),
        (
            '[[fault]]\ndo = "delay"\non = { message = "done", request = "b" }\nturns = 1',
            "$.fault[0].on.request: expected one of ['@pool'], got 'b'",
        ),
        ('[[fault]]\ndo = "delay"\non = { message = "done" }', "$.fault[0]: expected turns or until, got neither"),
        (
            '[[fault]]\ndo = "fail"\non = { message = "done" }',
            "$.fault[0].on.message: expected a command to a rank, of ['move_blocks', 'store_blocks', 'transfer'], "
            "got 'done'",
        ),
        (
            '[[fault]]\ndo = "stale_epoch"\non = { message = "transfer" }',
            "$.fault[0].on.message: expected 'done', a rank's report, got 'transfer'",
        ),
        (
            '[[fault]]\ndo = "crash"\nrank = 0',
            "$.fault[0]: expected either before or after, got neither",
        ),
        (
            '[[fault]]\ndo = "crash"\nrank = 0\ncoordinator = true\nafter = { event = "rank_lost" }',
            "$.fault[0].rank: expected none where the coordinator crashes: every rank ends with it, got 0",
        ),
        (
            '[[step]]\ndo = "open"\nrequest = "@pool"',
            "$.step[0].request: expected another name: moments mean the pool by this one, got '@pool'",
        ),
        (
            '[[step]]\ndo = "upload"\nwant = [0]',
            "$.step[0].request: expected a request that an earlier step opens, of [], got 'a'",
        ),
        (
            f'{OPEN}[[step]]\ndo = "upload"\nwant = {{ 0 = [1] }}',
            "$.step[1].want: expected a list for each active layer [0, 1], got layers [0]",
        ),
        (
            f'{OPEN}[[step]]\ndo = "await"\nof = "u"',
            "$.step[1].of: expected an earlier step by its name, of [], got 'u'",
        ),
        (
            f'{OPEN}[[step]]\ndo = "upload"\nwant = [0]\nwait = false',
            "$.step[1].name: expected a name, so that a step that does not wait can be waited for, got ''",
        ),
        (
            '[[step]]\ndo = "wait"\nrefused = "x"',
            "$.step[0].refused: expected nothing: waiting is never refused, got 'x'",
        ),
        (
            f'{OPEN}[[step]]\ndo = "end_step"',
            "$.step[1].of: expected an open serving step, of [], got 'step'",
        ),
        ('[expect]\nsometimes = ["rain"]', "$.expect.sometimes[0]: expected one of the situations"),
        ('[expect]\nalways = ["rain"]', "$.expect.always[0]: expected one of the laws"),
        ("[expect.final]\nrain = 1", "$.expect.final: expected keys out of the figures"),
        (
            "[world]\nsource = 'copy'",
            "$.world.cpu_copy_blocks: expected at least 1 where the source is copy, got 0",
        ),
        (
            "[world]\nblock_size = 1024\ndevice_blocks = 100000\ncpu_blocks = 1\nstaging_blocks = 1",
            "$.world: expected at most 1073741824 bytes of KV and staging, got 6553796608",
        ),
        (
            "[world]\nunion = true",
            "$.world.union: expected false where every layer has its own table, got true",
        ),
        (
            "[world]\ngroups = [{ kind = 'sliding', window = 4 }]",
            "$.world.layers: expected at least one full-attention layer, got none",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_path(text: str, message: str) -> None:
    got = refusal(text)
    assert got.startswith("file.toml: ")
    got, message = got.removeprefix("file.toml: "), message.replace("FORMAT", FORMAT)
    if message.endswith(("the events", "the situations", "the laws", "the figures")):  # a list of all names follows
        head = message.rpartition(" the ")[0]
        assert got.startswith(f"{head} ["), got
    else:
        assert got == message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, bytes_only, broken = tmp_path / "no.toml", tmp_path / "bytes.toml", tmp_path / "broken.toml"
    bytes_only.write_bytes(b"title = '\xff'")
    broken.write_text("title = ")
    large = tmp_path / "large.toml"
    large.write_text("#" * (1 << 20) + "\n")
    for path, what in (
        (missing, "expected a readable TOML file, got No such file or directory"),
        (bytes_only, "expected UTF-8, got"),
        (broken, "expected TOML, got"),
        (large, "expected at most 1048576 bytes, got 1048577 bytes"),
    ):
        with pytest.raises(SettingsError) as caught:
            load_script(path)
        assert str(caught.value).startswith(f"{path}: {what}")
