"""The indexer: from a source of files to a published release of the knowledge base.

- `pipeline`: reads a tree, splits and stages what is new, and publishes the release.
- `workers`: splits files in processes of their own.
- `tree`: a tree of files to index, and the name of its release.
- `listing`: which files of a folder can be split, and notices of what was left out.
- `walk`: reads the files of a tree.
- `diff`: two releases compared.
- `sources/`: where a tree comes from: a package, a repository, an archive, a folder.
- `split/`: the text of a file as pieces.
"""
