"""The size of a network. It is apart from torch, so that a command can be read without it."""

from pydantic import Field

from contract.base import Record


class NetworkSize(Record):
    """`members` of an ensemble, each with `depth` layers of `width` units and an embedding of `dimensions`."""

    members: int = Field(3, ge=1)
    width: int = Field(512, ge=1)
    depth: int = Field(3, ge=1)
    dimensions: int = Field(8, ge=1)
    dropout: float = Field(0.05, ge=0, lt=1)
