"""The glossary: concepts in TOML files, by area of CUTLASS.

- `glossary`: reads and checks the files.
"""

from cudal2_agent.knowledge.glossary.glossary import Concept, Glossary, load_glossary

__all__ = ["Concept", "Glossary", "load_glossary"]
