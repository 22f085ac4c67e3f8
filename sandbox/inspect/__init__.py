"""Inspection of compiled code: what a kernel uses, and what it must not do.

| file | what is in it |
|---|---|
| `inspection.py` | the rules over launches, resources and accumulators, and what is reported of a kernel |
| `facts.py` | what depends on the code alone: read once, kept in the cache, with the rules over PTX, SASS and ELF |
| `code.py` | facts of a parsed PTX module |
| `arithmetic.py` | number formats of matrix instructions and of roundings; what a module's task allows |
| `addresses.py` | whether addresses of module variables and parameters serve for reading only, and loads stay inside them |
| `elf.py` | the cubin's sections, symbols and module variables; the rules over them |
| `sass.py` | nvdisasm's listing |
| `allow_lists.py` | opcodes, special registers and constant words that a kernel may use, with the reason for each |
| `resources.py` | registers, spills, shared memory; CTAs per SM |
"""
