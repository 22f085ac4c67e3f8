"""The rules of lowering, one module per instruction family; `rules` joins them by opcode."""
