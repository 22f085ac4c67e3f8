"""From parsed PTX to the table of operations that the core executes; one module of rules an instruction family."""
