"""A library as a folder for C++ programs that need the CUDA driver only.

- `export_cpp.py`: the folder, and its header from `cudal2/launcher/native/`
- `entries_cpp.py`: entries and their plans as C++ data
- `example.cpp`, `cmake_lists.txt`, `folder_readme.md`: the files that every folder has
"""
