"""A library as the source of a kernel for the Hugging Face hub, which its kernel-builder compiles.

- `export_hub.py`: the folder
- `torch_binding.cpp`, `python_package.py.txt`: the operator, and its Python face
- `build_toml.txt`, `flake_nix.txt`, `hub_readme.md`: the files that every folder has
"""
