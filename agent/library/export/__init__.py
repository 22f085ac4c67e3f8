"""A library as files for other programs: a folder for C++ programs that need the CUDA driver only, or for the Hugging Face hub.

- `exporting.py`: what is exported, and where to
- `export_cpp.py`: the folder for C++, its header from `cudal2/launcher/native/`, entries and their plans as C++ data
- `example.cpp`, `cmake_lists.txt`, `folder_readme.md`: the files that every folder for C++ has
- `export_hub.py`: the source of a kernel for the hub, which its kernel-builder compiles
- `torch_binding.cpp`, `python_package.py.txt`: the operator, and its Python face
- `build_toml.txt`, `flake_nix.txt`, `hub_readme.md`: the files that every source for the hub has
"""
