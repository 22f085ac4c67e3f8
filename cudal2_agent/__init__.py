"""The installed package. Each folder beside this file is a link to the folder of that name at the repository's root.

Code, tests, type checker and wheel import `cudal2_agent.FOLDER`, so that an environment holds this name and `cudal2` only.
"""
