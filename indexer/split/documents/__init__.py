"""Documents as sections.

- `sections`: splits a document at its headings.
- `markdown`, `restructured`, `hypertext`, `pdf`: find the headings of their format.
"""
