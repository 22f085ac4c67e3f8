"""Kernel libraries: built from what campaigns and runs measured, prepared, and checked. `cudal2/library` reads them.

`library_building`: a library from a store or from rows. `measured_kernels`: their winners. `entry_choice`: from winners to
entries, and why others are left out. `algorithms/`: the same for algorithms of cuBLASLt, and their tuning.
`library_writing`: a library as a folder, with built kernels, or as one packed file. `entry_source`: the source of an entry,
written again. `preparing`: builds entries into the cache. `padded_m`: builds and proves an entry for a smaller M.
`m_ranges`: one kernel of an entry for many M.
`row_file`: rows of a command that resumes where it was. `paired_programs`: two programs in turns, and the ratio of their times.
`invariant_building`: builds the kernels of the batch-invariant mode. `torch_kernels`: compiles the C++ part of `cudal2.enable`.
`library_check`: verifies and times entries anew, algorithms by `algorithms/`. `entry_sample`: which of them.
`export/`: entries as files for other programs, in C++ or for the Hugging Face hub.
"""
