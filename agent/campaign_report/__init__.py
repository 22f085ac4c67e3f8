"""The results of campaigns: their file, their figures, and one HTML page.

- `result_file.py`: rows as gzip JSON lines, and which row of a shape counts
- `figures.py`: geometric means and shares of a set of rows, by class
"""
