"""The launch plan as data.

`plan`: a plan, and how it is resolved for a task and a chip. `expression`: its integer expressions. `tensor_view`: what tensor
maps describe. `launching`: what all launchers share: parameters as bytes, edges between launches, zeroing. `chip`: limits and
rates of the target architectures.
"""
