"""PTX text as records: what NVRTC and nvcc emit, inline assembly included.

| file | what is in it |
|---|---|
| `module.py` | the records, and the errors `PtxError` and `Unsupported` |
| `parser.py` | a module: variables and functions |
| `lexer.py` | text without comments; limits of size and steps |
| `declarations.py`, `initialisers.py`, `constants.py` | declarations, initial values, constant expressions |
| `body.py`, `operands.py`, `scopes.py` | statements of a function, their operands, and what names denote |
"""
