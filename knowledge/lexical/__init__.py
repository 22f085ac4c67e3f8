"""The lexical index: which words a piece is searched by, and where they stand.

- `lexical_index`: one generation of the index: BM25 by field, and the columns that filters need.
- `analysis`: text as search words, a piece's words by field, and the text its vector is made of.
- `word_index`: BM25 over short texts.
- `signatures`: MinHash signatures, by which near-equal pieces are known.
- `symbols`: where symbols, files and mentioned names stand in a generation.
- `anchors`: where the definitions that the glossary names stand in a generation.
"""
