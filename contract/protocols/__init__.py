"""`protocols`: what the agent requires of a policy, a sandbox and a store. `workbench`: what tools of a model may ask for."""
