"""From parsed PTX to the table of operations that the core executes.

| file | what is in it |
|---|---|
| `program.py` | the program of one entry: every instruction lowered, operations laid out |
| `lowering.py` | the state that the rules share: slots of operands, operations emitted so far |
| `table.py` | the core's declarations: enums, the record, every handler with its operands |
| `opcode.py` | how opcodes are read, and rules for operations of one lane |
| `rules/` | the rules, one module per instruction family |
| `inlining.py` | calls replaced by the bodies of what they call |
| `mentions.py` | the registers that instructions mention |
| `slots.py`, `loops.py` | the register file; how far a register's life reaches |
| `unwritten.py` | registers read before they are written; registers of a wgmma |
| `variables.py` | where parameters, variables and constants lie |
"""
