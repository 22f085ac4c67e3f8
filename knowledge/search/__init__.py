"""Search over the published releases.

- `searcher`: opens the search and answers a query with hits.
- `scoring`: how well every piece answers a query, and the order of releases.
- `concepts`: which concepts of the glossary a question is about.
- `names`: the names in a question that stand in few files.
- `variants`: the special variants that a question asks for, listed with their words in variants.toml.
- `fusion`: scores of several signals joined into one.
- `selection`: which of the ranked pieces are shown, and with which lines.
- `weights`: what each part of the search counts.
"""

from cudal2_agent.knowledge.search.searcher import open_search

__all__ = ["open_search"]
