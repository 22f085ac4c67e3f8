"""Writes a library as the source of a kernel for the Hugging Face hub (`build.toml`, edition 5 of `kernels` 0.17).

Covered: an operator `mm` that falls back to PyTorch's, with gradients and a fake implementation. Its machine code is data.
Not covered: entries with f16 sums, because `torch.matmul` sums in f32.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.agent.library.export.export_cpp import (
    CppExport,
    counts_of,
    entries_text,
    header_text,
    named_kernels,
    readme_values,
    write_files,
)
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.library import LibraryEntry, LibraryManifest
from cudal2_agent.contract.records.task import AccumulatorType
from cudal2_agent.contract.whole_file import new_folder

KERNEL = "cudal2-gemm"
PACKAGE = "cudal2_gemm"


def export_hub(kernels: Sequence[tuple[LibraryEntry, BuiltKernel]], manifest: LibraryManifest, folder: Path) -> CppExport:
    """Write the folder, which appears whole or not at all and must be new or empty.

    Raises: UsageError where no kernel sums in f32 without an activation, or where the folder is in use or cannot be written.
    """
    named = named_kernels([each for each in kernels if each[0].task.accumulate is AccumulatorType.F32], "")
    if not named:
        raise UsageError(f"library {manifest.name} has no kernel with f32 sums to export")
    values = {**readme_values(manifest, named), "kernel": KERNEL, "package": PACKAGE, "licence_tag": manifest.licence.lower()}
    texts = {
        "build.toml": _filled("build_toml.txt", values),
        "flake.nix": _filled("flake_nix.txt", values),
        "README.md": _filled("hub_readme.md", values),
        "cudal2/cudal2.hpp": header_text(),
        "cudal2/entries.cpp": entries_text(named, manifest.chip),
        "torch-ext/torch_binding.cpp": _text("torch_binding.cpp"),
        f"torch-ext/{PACKAGE}/__init__.py": _filled("python_package.py.txt", values),
    }
    with new_folder(folder) as staging:
        write_files(staging, {name: text.encode() for name, text in texts.items()})
        write_files(staging, {f"torch-ext/{PACKAGE}/{name}": kernel.cubin for _, kernel, name in named})
    return counts_of(named)


def _filled(name: str, values: dict[str, str]) -> str:
    return Template(_text(name)).substitute(values)


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
