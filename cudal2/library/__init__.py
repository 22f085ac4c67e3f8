"""Kernel libraries: what campaigns found, as entries that a program looks up by its product.

- `kernel_library.py`: a library opened for reading: its entries by task and by id.
- `library_form.py`: the files of a library, as a folder or packed into one file.
- `prepared_kernels.py`: the cache of built kernels that `cudal2-agent library prepare` fills.
- `invariant_set.py`: the kernels of the batch-invariant mode in that cache.
- `shipped/`: the libraries that come with the product.
"""
