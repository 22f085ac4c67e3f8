"""How a run's candidates are measured.

`measurements`: screens, evaluates and races built candidates. `source_screen`: which sources of a model are not timed, because
their prediction is far behind the best measured time.
"""
