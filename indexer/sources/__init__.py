"""Where a tree of files comes from.

- `opening`: tells the kinds of sources apart and opens one.
- `package`: a package of the registry.
- `checkout`: a git checkout, or a repository at a tag.
- `archive`: zip files, wheels and tar files.
- `folder`: a folder or a single file.
- `command`: runs pip and git.
- `scratch`: the temporary folder of a source.
"""
