"""The knowledge base, filled by the indexer and opened for searches.

`knowledge_base`: opens it as the settings say, and sums up its contents. `indexing`: adds, updates, removes and rebuilds
releases. `splitting`: one file's pieces and words; apart, because each worker process imports it and nothing else.
`default_index`: the retriever of a run, with the index that a first run builds.
"""
