"""The text of a file as pieces.

- `split`: chooses the splitter by the file's suffix.
- `cpp`, `python`: the definitions in C++ or CUDA, and in Python.
- `outline`: the definitions of a file, and families of generated siblings.
- `blanking`: C++ prepared for the grammar.
- `spans`: definitions cut and merged to pieces of a readable size.
- `plain`: text without a grammar, in windows.
- `text_lines`: lines of a file, and where to cut a long stretch of them.
- `card`: the words that describe a piece.
- `assembly`: the record of a split file, with the GPU architectures of its pieces.
- `documents/`: documents as sections.
"""
