"""Frames between coordinator and rank: one message each, MessagePack, checked when decoded."""

import math
from typing import Final, TypeVar

import msgspec

from kvsweep.ledger.errors import KvsweepError
from kvsweep.ledger.ids import Rows
from kvsweep.ledger.messages import FromRank, ToRank

FRAME_BYTES: Final = 16 * 2**20
"""A longer frame is refused before it is decoded."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_TO_RANK: Final[msgspec.msgpack.Decoder[ToRank]] = msgspec.msgpack.Decoder(ToRank)
_FROM_RANK: Final[msgspec.msgpack.Decoder[FromRank]] = msgspec.msgpack.Decoder(FromRank)


class BadFrame(KvsweepError):
    """Bytes that are no message of this direction. The link stays usable."""

    def __init__(self, reason: str, size: int) -> None:
        self.reason, self.size = reason, size
        super().__init__(f"frame of {size} bytes: {reason}")


def encode(message: ToRank | FromRank) -> bytes:
    """One message as a frame."""
    return _ENCODER.encode(message)


def decode_to_rank(frame: bytes) -> ToRank:
    """A command for a rank. Raises BadFrame with the path of the field."""
    return _decoded(frame, _TO_RANK)


def decode_from_rank(frame: bytes) -> FromRank:
    """A rank's report. Raises BadFrame with the path of the field."""
    message = _decoded(frame, _FROM_RANK)
    _check_numbers(message, "$", len(frame))
    return message


def _check_numbers(value: msgspec.Struct, path: str, size: int) -> None:
    """Numbers that a ledger can hold: whole ones from 0 to 63 bits, seconds finite and not negative."""
    for name in value.__struct_fields__:
        item = getattr(value, name)
        if isinstance(item, msgspec.Struct):
            _check_numbers(item, f"{path}.{name}", size)
        elif isinstance(item, int) and not 0 <= item < 2**63:
            raise BadFrame(f"{path}.{name}: expected a whole number from 0 to 63 bits, got {item}", size)
        elif isinstance(item, float) and not (math.isfinite(item) and item >= 0):
            raise BadFrame(f"{path}.{name}: expected finite seconds from 0, got {item}", size)


M = TypeVar("M", bound=msgspec.Struct)


def _decoded(frame: bytes, decoder: "msgspec.msgpack.Decoder[M]") -> M:
    if len(frame) > FRAME_BYTES:
        raise BadFrame(f"expected at most {FRAME_BYTES} bytes", len(frame))
    try:
        message = decoder.decode(frame)
        for name in message.__struct_fields__:
            value = getattr(message, name)
            if isinstance(value, Rows):
                value.check()
    except (msgspec.DecodeError, KvsweepError) as error:
        raise BadFrame(str(error), len(frame)) from error
    return message
