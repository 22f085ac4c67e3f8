"""The glossary, written for this project: what engineers ask, and the definitions that answer."""

import tomllib
from functools import cached_property
from pathlib import Path

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import KnowledgeError

GLOSSARY_FOLDER = Path(__file__).parent


class Concept(Record):
    """`terms`: names of the concept, as engineers write them. `asks`: what an engineer who needs it says, without its name.

    `code`: symbols that answer (`PipelineTmaAsync::consumer_release`) or stems of files, the most specific first.
    """

    name: str
    terms: tuple[str, ...]
    asks: tuple[str, ...]
    code: tuple[str, ...]


class Glossary(Record):
    concepts: tuple[Concept, ...]

    @cached_property
    def asks(self) -> tuple[tuple[int, str], ...]:
        """(concept, sentence) for every sentence, in order."""
        return tuple((index, ask) for index, concept in enumerate(self.concepts) for ask in concept.asks)

    @cached_property
    def digest(self) -> str:
        return digest(self.model_dump(mode="json"))


def load_glossary(folder: Path = GLOSSARY_FOLDER) -> Glossary:
    """The concepts of all files in a folder. Raises: KnowledgeError that names an invalid file."""
    concepts: list[Concept] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            with path.open("rb") as file:
                concepts += [Concept.model_validate(entry) for entry in tomllib.load(file).get("concept", [])]
        except (OSError, ValueError, TypeError) as exc:  # invalid TOML and invalid records raise ValueError
            raise KnowledgeError(f"glossary file {path.name} cannot be read: {str(exc).splitlines()[0]}") from exc
    return Glossary(concepts=tuple(concepts))
