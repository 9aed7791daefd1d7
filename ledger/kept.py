"""Attributes that are worked out when they are first asked for."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class kept(Generic[T]):
    """As functools.cached_property, without its lock, which in Python 3.11 is nearly half of a first look.

    Two threads that ask first may both work it out; what they get is equal.
    """

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "kept[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> "T | kept[T]":
        if instance is None:
            return self
        found = instance.__dict__[self._name] = self._find(instance)
        return found
